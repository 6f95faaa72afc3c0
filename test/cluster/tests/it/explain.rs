//! What `sympozium explain` prints is what a real API server says: every grant that it tells is there while the bindings
//! are, and what it does not tell is not.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sympozium_api::names::SkillPackName;
use sympozium_api::{Agent, AgentRun, SkillPack, SympoziumPolicy};
use sympozium_plan::admit::{
    Agents, Candidates, Decision, Facts, Input, NO_RUNTIME_CLASSES, PackCandidates, PackObject, Settings, admit,
};
use sympozium_plan::explain::{Explanation, Grant, IdentityInfo, explain};
use sympozium_plan::plan::{PlanSettings, plan};
use sympozium_plan::rbac::{Rule, Scope, find_uncovered};
use sympozium_plan::render::{CreationStep, RenderSettings, render};
use sympozium_testkit::cluster::{Kubectl, Namespace, Security, eventually};

use crate::kinds::{root, with_kinds};

/// How long the API server may take to see a binding, or that it is gone.
const PATIENCE: Duration = Duration::from_secs(180);

/// Questions about what is not told, for each identity.
const SAMPLE: usize = 120;

/// A namespace in which nothing of the test is.
const ELSEWHERE: &str = "kube-public";

/// One question to the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Asked {
    namespace: String,
    group: String,
    resource: String,
    verb: String,
    name: String,
}

#[test]
fn every_grant_that_is_told_holds_and_nothing_else_does() -> Result<()> {
    let Some(cluster) = with_kinds()? else {
        return Ok(());
    };
    let admin = cluster.kubectl();
    let mut seed = 0x5eed;
    for pack in ["k8s-ops", "k8s-ops-admin", "sre-observability", "incident-response", "llmfit"] {
        let namespace = cluster.namespace("explain", Security::Restricted)?;
        let (explanation, grants) = realised(&namespace, pack)?;
        let whose: Vec<Option<&str>> = explanation.kubernetes.iter().map(|it| it.pack.as_deref()).collect();
        ensure!(whose == [Some(pack), None], "identities of {whose:?}");
        let created = create(&admin, &namespace, &grants)?;
        let outcome = agrees(&admin, &namespace, &explanation, &mut seed);
        // Cluster-wide grants have no owner for the garbage collector.
        let removed = remove_bindings(&admin, &created);
        outcome.with_context(|| format!("pack {pack}"))?;
        removed?;
        nothing_is_left(&admin, &namespace, &explanation)
            .with_context(|| format!("pack {pack}, when its bindings are gone"))?;
    }
    Ok(())
}

/// A run of the pack in the cluster, explained and rendered with its real UID.
fn realised(namespace: &Namespace, pack: &str) -> Result<(Explanation, Vec<Value>)> {
    let stored = namespace.create(&json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun", "metadata": {"name": pack},
        "spec": {
            "agentRef": "a", "task": "Check.", "skills": [{"skillPackRef": pack}],
            "lifecycle": {
                "preRun": [{"name": "fetch", "image": "ghcr.io/example/fetch:1"}],
                "postRun": [{"name": "publish", "image": "ghcr.io/example/publish:1"}],
                "rbac": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}],
            },
        },
    }))?;
    let run: AgentRun = serde_json::from_value(stored)?;
    let agent: Agent = serde_json::from_value(json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "Agent", "metadata": {"name": "a"},
        "spec": {"policyRef": "p", "authRefs": [{"provider": "openai", "secret": "key"}], "agents": {"default": {"model": "gpt-4o"}}},
    }))?;
    let pack_object: SkillPack = read(&format!("config/skillpacks/{pack}.yaml"))?;
    let mut floor: SympoziumPolicy = read("config/policies/floor.yaml")?;
    let rights = floor.spec.rbac_policy.as_mut().context("no rights in the floor")?;
    rights.cluster_rbac_namespaces = Some(vec![namespace.name().into()]);
    let mut policy = floor.clone();
    policy.metadata.name = Some("p".to_owned());
    let packs = BTreeMap::from([(
        SkillPackName::new(pack),
        PackCandidates { own: None, system: Some(PackObject { pack: &pack_object, author: None }) },
    )]);
    let settings = Settings::default();
    let input = Input {
        run: &run,
        namespace: namespace.name(),
        agents: Agents { agent: Some(&agent), instance: None, author: None },
        packs: &packs,
        policies: Candidates { own: Some(&policy), system: None },
        floor: Some(&floor.spec),
        models: Candidates::default(),
        author: None,
        runtime_classes: &NO_RUNTIME_CLASSES,
        facts: Facts::default(),
        settings: &settings,
    };
    let admitted = match admit(&input) {
        Decision::Admitted(admitted) => admitted,
        Decision::Denied(denied) => bail!("{pack} is denied: {:#?}", denied.violations),
    };
    let planned = plan(&input, &admitted, &PlanSettings::default())?;
    let rendered = render(&planned.plan, &planned.texts, &RenderSettings::default())?;
    let grants = rendered.objects_of_step(CreationStep::Grants).map(|it| it.to_value());
    let grants: Vec<Value> = grants.collect::<Result<_, _>>()?;
    Ok((explain(&planned.plan), grants))
}

fn read<K: DeserializeOwned>(path: &str) -> Result<K> {
    let text = fs::read_to_string(root().join(path))?;
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options(&text, options).with_context(|| format!("reading {path}"))
}

/// Creates accounts, roles and bindings; the bindings, as kind and name.
fn create(admin: &Kubectl, namespace: &Namespace, grants: &[Value]) -> Result<Vec<(String, Value)>> {
    let mut bindings = Vec::new();
    for object in grants {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        // Secrets with tokens are the controller's to fill.
        if kind == "Secret" {
            continue;
        }
        if object["metadata"]["namespace"].is_null() {
            admin.create(object)?
        } else {
            namespace.create(object)?
        };
        if kind.starts_with("Cluster") || kind == "RoleBinding" {
            bindings.push((kind, object.clone()));
        }
    }
    Ok(bindings)
}

fn remove_bindings(admin: &Kubectl, created: &[(String, Value)]) -> Result<()> {
    for (kind, object) in created.iter().rev() {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
        admin.clone().in_namespace(namespace).run(&["delete", kind, name, "--ignore-not-found"])?;
    }
    Ok(())
}

fn agrees(admin: &Kubectl, namespace: &Namespace, explanation: &Explanation, seed: &mut u64) -> Result<()> {
    for identity in &explanation.kubernetes {
        let told: Vec<Asked> = identity.grants.iter().flat_map(|grant| questions(grant, namespace.name())).collect();
        ensure!(!told.is_empty(), "nothing is told");
        eventually("the bindings to hold", PATIENCE, || {
            let denied = answers(admin, identity, &told)?;
            let denied = denied.iter().filter(|(_, allowed)| !allowed).count();
            Ok((denied == 0).then_some(()))
        })
        .or_else(|_| {
            let denied = answers(admin, identity, &told)?;
            let denied: Vec<_> = denied.into_iter().filter(|(_, allowed)| !allowed).collect();
            bail!("told and not granted: {denied:#?}")
        })?;
        let others = not_told(identity, namespace.name(), seed)?;
        let granted: Vec<Asked> = answers(admin, identity, &others)?
            .into_iter()
            .filter_map(|(asked, allowed)| allowed.then_some(asked))
            .collect();
        assert_eq!(granted, [], "granted and not told");
    }
    Ok(())
}

fn nothing_is_left(admin: &Kubectl, namespace: &Namespace, explanation: &Explanation) -> Result<()> {
    for identity in &explanation.kubernetes {
        let told = identity.grants.iter();
        let told: Vec<Asked> = told.flat_map(|it| questions(it, namespace.name())).collect();
        eventually("the rights to end", PATIENCE, || {
            let granted = answers(admin, identity, &told)?;
            Ok(granted.iter().all(|(_, allowed)| !allowed).then_some(()))
        })?;
    }
    Ok(())
}

/// Every single right of a grant; one that holds in the whole cluster is asked for elsewhere.
fn questions(grant: &Grant, own: &str) -> Vec<Asked> {
    let namespace = match grant.scope {
        Scope::Namespace => own,
        Scope::Cluster => ELSEWHERE,
    };
    let rule = &grant.rule;
    let names = match rule.resource_names.as_slice() {
        [] => vec![String::new()],
        names => names.to_vec(),
    };
    let mut asked = Vec::new();
    for group in &rule.api_groups {
        for resource in &rule.resources {
            for verb in &rule.verbs {
                for name in &names {
                    asked.push(Asked {
                        namespace: namespace.to_owned(),
                        group: group.clone(),
                        resource: resource.clone(),
                        verb: verb.clone(),
                        name: name.clone(),
                    });
                }
            }
        }
    }
    asked
}

const VERBS: &[&str] = &[
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
    "bind",
    "escalate",
    "impersonate",
];

const RESOURCES: &[(&str, &str)] = &[
    ("", "pods"),
    ("", "pods/exec"),
    ("", "pods/log"),
    ("", "pods/portforward"),
    ("", "secrets"),
    ("", "configmaps"),
    ("", "serviceaccounts"),
    ("", "serviceaccounts/token"),
    ("", "services"),
    ("", "events"),
    ("", "nodes"),
    ("", "nodes/proxy"),
    ("", "namespaces"),
    ("", "persistentvolumes"),
    ("apps", "deployments"),
    ("apps", "deployments/scale"),
    ("apps", "daemonsets"),
    ("apps", "statefulsets"),
    ("batch", "jobs"),
    ("batch", "cronjobs"),
    ("rbac.authorization.k8s.io", "roles"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
    ("networking.k8s.io", "networkpolicies"),
    ("networking.k8s.io", "ingresses"),
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("sympozium.ai", "agentruns"),
    ("sympozium.ai", "toolapprovals"),
    ("coordination.k8s.io", "leases"),
];

/// A sample of what no grant tells, different for each identity and the same in each run.
fn not_told(identity: &IdentityInfo, own: &str, seed: &mut u64) -> Result<Vec<Asked>> {
    let rules = |scopes: &[Scope]| -> Vec<Rule> {
        let grants = identity.grants.iter();
        let grants = grants.filter(|it| scopes.contains(&it.scope));
        grants.map(|it| Rule::from(&it.rule)).collect()
    };
    let inside = rules(&[Scope::Namespace, Scope::Cluster]);
    let outside = rules(&[Scope::Cluster]);
    let mut sample: Vec<Asked> = Vec::new();
    // Far more draws than are needed: what is told is a small part of what there is.
    for _ in 0..SAMPLE * 50 {
        if sample.len() == SAMPLE {
            return Ok(sample);
        }
        // The constants of Knuth's MMIX; the low bits of such a sequence are poor.
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let drawn = usize::try_from(*seed >> 33)?;
        let (group, resource) = RESOURCES[drawn % RESOURCES.len()];
        let verb = VERBS[drawn / RESOURCES.len() % VERBS.len()];
        let is_inside = (drawn / RESOURCES.len() / VERBS.len()).is_multiple_of(2);
        let (namespace, held) = if is_inside { (own, &inside) } else { (ELSEWHERE, &outside) };
        let right = Rule {
            api_groups: vec![group.to_owned()],
            resources: vec![resource.to_owned()],
            verbs: vec![verb.to_owned()],
            ..Rule::default()
        };
        let asked = Asked {
            namespace: namespace.to_owned(),
            group: group.to_owned(),
            resource: resource.to_owned(),
            verb: verb.to_owned(),
            name: String::new(),
        };
        if find_uncovered(held, &right)?.is_some() && !sample.contains(&asked) {
            sample.push(asked);
        }
    }
    bail!("only {} of {SAMPLE} questions were found", sample.len())
}

/// Asks what the identity may do; each question with its answer.
fn answers(admin: &Kubectl, identity: &IdentityInfo, asked: &[Asked]) -> Result<Vec<(Asked, bool)>> {
    let account = format!("system:serviceaccount:{}:{}", identity.namespace, identity.service_account);
    let groups = [
        "system:serviceaccounts".to_owned(),
        format!("system:serviceaccounts:{}", identity.namespace),
        "system:authenticated".to_owned(),
    ];
    let review = |asked: &Asked| {
        let (resource, sub) = asked.resource.split_once('/').unwrap_or((&asked.resource, ""));
        json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": account, "groups": groups,
                "resourceAttributes": {
                    "namespace": asked.namespace, "group": asked.group, "resource": resource,
                    "subresource": sub, "verb": asked.verb, "name": asked.name,
                },
            },
        })
    };
    let answers = asked.iter().map(|asked| {
        let answer = admin.create(&review(asked))?;
        Ok((asked.clone(), answer["status"]["allowed"] == true))
    });
    answers.collect()
}
