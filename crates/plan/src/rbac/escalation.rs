//! Permissions that no pack and no hook may request unless a policy lists them: those that lead to further permissions.

use std::collections::BTreeSet;

use super::Rule;

/// A class of permissions that lead to further permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Escalation {
    /// `*` anywhere: it grows with every API that is installed later.
    Wildcard,
    /// `escalate`, `bind`, `impersonate` and other verbs that grant or assume permissions.
    Verb,
    /// Commands, ports and containers of other pods.
    PodAccess,
    /// Writes to pods or pod templates, which give access to any image, ServiceAccount and Secret of the namespace.
    PodWrite,
    /// Tokens of ServiceAccounts.
    Token,
    /// Secrets. An empty patch reads one as well as `get` does.
    Secret,
    /// Writes to roles and bindings.
    Rbac,
    /// Certificates that the cluster trusts.
    Certificate,
    /// Objects that change how the API server answers: webhooks, admission policies, CRDs, aggregated APIs.
    Api,
    /// Requests through the API server to nodes, pods and services.
    Proxy,
    /// Cluster-wide volumes, which may be directories of a node.
    Volume,
    /// Writes to NetworkPolicies: one of them confines the run.
    Network,
    /// Writes to namespaces, whose labels decide which rules apply in them.
    Namespace,
    /// Writes to nodes, and the choice of the node of a pod.
    Node,
    /// Paths that are not resources.
    Path,
    /// Our own kinds: a skill must not approve its own questions, or start runs.
    OwnKinds,
}

impl Escalation {
    /// Why it is denied, as the end of a sentence that begins with the permission.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Wildcard => "`*` also means whatever is installed later",
            Self::Verb => "the verb hands out or takes on rights",
            Self::PodAccess => "it reaches into other pods",
            Self::PodWrite => {
                "a user who writes pods or pod templates can use any image, ServiceAccount and Secret of the namespace"
            }
            Self::Token => "it makes tokens of ServiceAccounts",
            Self::Secret => "it reaches Secrets",
            Self::Rbac => "it changes who may do what",
            Self::Certificate => "it makes certificates that the cluster trusts",
            Self::Api => "it changes how the API server answers",
            Self::Proxy => "it sends requests through the API server",
            Self::Volume => "a volume of the cluster can be a directory of a node",
            Self::Network => "it changes what pods may reach, the run's own too",
            Self::Namespace => "a namespace's labels say which rules hold in it",
            Self::Node => "it changes nodes, or which pods run where",
            Self::Path => "paths that are no resources cannot be granted to a skill",
            Self::OwnKinds => "a skill must not start, approve or change runs",
        }
    }
}

/// The single permissions of a rule that lead to further permissions, each with its class, once per resource and verb.
pub fn escalations(rule: &Rule) -> Vec<(Escalation, Rule)> {
    let mut found = Vec::new();
    for path in deduplicate(&rule.non_resource_urls) {
        let right = Rule { verbs: rule.verbs.clone(), non_resource_urls: vec![path.clone()], ..Rule::default() };
        found.push((Escalation::Path, right));
    }
    let groups = deduplicate(&rule.api_groups);
    let verbs = deduplicate(&rule.verbs);
    for resource in deduplicate(&rule.resources) {
        for group in &groups {
            for verb in &verbs {
                if let Some(escalation) = classify(group, resource, verb) {
                    let right = Rule {
                        api_groups: vec![(*group).clone()],
                        resources: vec![resource.clone()],
                        verbs: vec![(*verb).clone()],
                        resource_names: rule.resource_names.clone(),
                        non_resource_urls: Vec::new(),
                    };
                    found.push((escalation, right));
                }
            }
        }
    }
    found
}

/// Removes duplicates and keeps the order, so that no single permission is seen twice.
fn deduplicate(words: &[String]) -> Vec<&String> {
    let mut seen = BTreeSet::new();
    words.iter().filter(|word| seen.insert(*word)).collect()
}

/// The first class, in the order of this match, that a single permission belongs to.
fn classify(group: &str, resource: &str, verb: &str) -> Option<Escalation> {
    let (main, sub) = match resource.split_once('/') {
        Some((main, sub)) => (main, Some(sub)),
        None => (resource, None),
    };
    let writes = !matches!(verb, "get" | "list" | "watch");
    let core = group.is_empty();
    let found = match () {
        () if [group, resource, verb, main].contains(&"*") || sub == Some("*") => Escalation::Wildcard,
        () if ESCALATING_VERBS.contains(&verb) => Escalation::Verb,
        () if group == OUR_GROUP => Escalation::OwnKinds,
        () if core && main == "pods" && sub.is_some_and(|sub| POD_ACCESS.contains(&sub)) => Escalation::PodAccess,
        () if core && sub == Some("proxy") => Escalation::Proxy,
        () if core && resource == "serviceaccounts/token" => Escalation::Token,
        () if core && main == "secrets" => Escalation::Secret,
        () if core && main == "persistentvolumes" && writes => Escalation::Volume,
        () if core && main == "namespaces" && writes => Escalation::Namespace,
        () if core && main == "nodes" && writes => Escalation::Node,
        () if core && main == "bindings" && writes => Escalation::Node,
        // In any group: network plugins have such kinds of their own.
        () if writes && main.ends_with("networkpolicies") => Escalation::Network,
        () if writes && sub != Some("scale") && POD_TEMPLATES.contains(&(group, main)) => Escalation::PodWrite,
        () if writes && SANDBOX_GROUPS.contains(&group) => Escalation::PodWrite,
        () if writes && group == "rbac.authorization.k8s.io" => Escalation::Rbac,
        () if writes && group == "certificates.k8s.io" => Escalation::Certificate,
        () if writes && API_GROUPS.contains(&group) => Escalation::Api,
        () => return None,
    };
    Some(found)
}

/// Whether objects of a kind are pods, or contain a pod template.
pub(super) fn has_pod_template(group: &str, resource: &str) -> bool {
    POD_TEMPLATES.contains(&(group, resource)) || SANDBOX_GROUPS.contains(&group)
}

const OUR_GROUP: &str = "sympozium.ai";
/// Verbs that act on permissions.
const ESCALATING_VERBS: &[&str] = &["approve", "attest", "bind", "escalate", "impersonate", "sign"];
/// Subresources that give access to a running pod.
const POD_ACCESS: &[&str] = &["attach", "ephemeralcontainers", "exec", "portforward"];
/// Kinds that are pods or contain a pod template.
const POD_TEMPLATES: &[(&str, &str)] = &[
    ("", "pods"),
    ("", "podtemplates"),
    ("", "replicationcontrollers"),
    ("apps", "controllerrevisions"),
    ("apps", "daemonsets"),
    ("apps", "deployments"),
    ("apps", "replicasets"),
    ("apps", "statefulsets"),
    ("batch", "cronjobs"),
    ("batch", "jobs"),
    ("extensions", "daemonsets"),
    ("extensions", "deployments"),
    ("extensions", "replicasets"),
];
/// Groups whose objects wrap pods.
const SANDBOX_GROUPS: &[&str] = &["agents.x-k8s.io", "extensions.agents.x-k8s.io"];
/// Groups whose objects change how the API server answers.
const API_GROUPS: &[&str] = &["admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io"];
