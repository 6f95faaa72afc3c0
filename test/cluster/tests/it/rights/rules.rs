//! Rules of RBAC as the manifests have them, and which calls they are for.

use std::fs;

use anyhow::{Context as _, Result};
use serde_json::Value;
use sympozium_testkit::cluster::Call;
use sympozium_testkit::static_build::workspace_root;

/// Where the rules are.
const MANIFEST: &str = "config/install/10-rights.yaml";

/// A rule, and where it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The whole cluster when absent.
    namespace: Option<String>,
    groups: Vec<String>,
    resources: Vec<String>,
    /// Any when empty.
    names: Vec<String>,
    verbs: Vec<String>,
}

/// The rules of a ServiceAccount, which are called as it is.
pub fn of_account(account: &str) -> Result<Vec<Rule>> {
    let text = fs::read_to_string(workspace_root().join(MANIFEST)).context(MANIFEST)?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text)?;
    let roles = documents
        .iter()
        .filter(|it| it["kind"] == "ClusterRole" || it["kind"] == "Role")
        .filter(|it| it["metadata"]["name"] == account);
    Ok(roles
        .flat_map(|role| {
            let namespace = role["metadata"]["namespace"].as_str().map(str::to_owned);
            let rules = role["rules"].as_array().cloned().unwrap_or_default();
            rules.into_iter().map(move |rule| Rule::read(namespace.clone(), &rule))
        })
        .collect())
}

impl Rule {
    fn read(namespace: Option<String>, rule: &Value) -> Self {
        let texts = |field: &str| {
            let all = rule[field].as_array().into_iter().flatten();
            all.filter_map(|it| it.as_str().map(str::to_owned)).collect()
        };
        Self {
            namespace,
            groups: texts("apiGroups"),
            resources: texts("resources"),
            names: texts("resourceNames"),
            verbs: texts("verbs"),
        }
    }

    /// Whether a call needs no other rule.
    pub fn covers(&self, call: &Call) -> bool {
        let resource = match call.subresource.as_str() {
            "" => call.resource.clone(),
            subresource => format!("{}/{subresource}", call.resource),
        };
        // A list or a watch of one object by name is authorised with that name, which the log has in the path only.
        let named = |name: &String| call.name == *name || call.path.contains(&format!("metadata.name%3D{name}"));
        self.namespace.as_ref().is_none_or(|it| call.namespace == *it)
            && self.groups.contains(&call.group)
            && self.resources.contains(&resource)
            && self.verbs.contains(&call.verb)
            && (self.names.is_empty() || self.names.iter().any(named))
    }

    /// The rights in it, one by one.
    pub fn split(&self) -> Vec<Self> {
        let mut all = Vec::new();
        for group in &self.groups {
            for resource in &self.resources {
                for verb in &self.verbs {
                    all.push(Self {
                        groups: vec![group.clone()],
                        resources: vec![resource.clone()],
                        verbs: vec![verb.clone()],
                        ..self.clone()
                    });
                }
            }
        }
        all
    }

    /// Verb and resource, for people and for exceptions.
    pub fn describe(&self) -> String {
        let slash = |group: &String| match group.as_str() {
            "" => String::new(),
            group => format!("{group}/"),
        };
        let groups: String = self.groups.iter().map(slash).collect();
        format!("{} {groups}{}", self.verbs.join(","), self.resources.join(","))
    }
}

/// Whether a text has a form in which `*` stands for anything.
pub fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|text| {
            (0..=text.len()).filter(|at| text.is_char_boundary(*at)).any(|at| matches(rest, &text[at..]))
        }),
    }
}

/// Which calls a rule is for decides what the audit can find, so it is tried without a cluster.
#[test]
fn a_rule_covers_what_it_names_and_nothing_else() {
    let call = Call {
        user: String::new(),
        impersonated: None,
        verb: "get".to_owned(),
        group: "sympozium.ai".to_owned(),
        resource: "agentruns".to_owned(),
        subresource: String::new(),
        namespace: "a".to_owned(),
        name: "r".to_owned(),
        path: String::new(),
        user_agent: String::new(),
        code: 200,
        message: String::new(),
    };
    let rule = Rule::read(
        None,
        &serde_json::json!({ "apiGroups": ["sympozium.ai"], "resources": ["agentruns", "agents"], "verbs": ["get", "list"] }),
    );
    let with = |change: &dyn Fn(&mut Call)| {
        let mut call = call.clone();
        change(&mut call);
        call
    };
    assert!(rule.covers(&call));
    for other in [
        with(&|it| it.verb = "patch".to_owned()),
        with(&|it| it.group = String::new()),
        with(&|it| it.resource = "models".to_owned()),
        with(&|it| it.subresource = "status".to_owned()),
    ] {
        assert!(!rule.covers(&other), "{other:?}");
    }
    let narrow = Rule { namespace: Some("b".to_owned()), ..rule.clone() };
    assert!(!narrow.covers(&call));
    let named = Rule { names: vec!["x".to_owned()], ..rule.clone() };
    assert!(!named.covers(&call));
    assert!(named.covers(&with(&|call| {
        call.name = String::new();
        call.path = "/apis?fieldSelector=metadata.name%3Dx&watch=true".to_owned();
    })));
    let rights: Vec<_> = rule.split().iter().map(Rule::describe).collect();
    assert_eq!(
        rights,
        [
            "get sympozium.ai/agentruns",
            "list sympozium.ai/agentruns",
            "get sympozium.ai/agents",
            "list sympozium.ai/agents"
        ]
    );
    assert!(matches("a * c", "a b c") && matches("a*", "a") && !matches("a * c", "a b d"));
}
