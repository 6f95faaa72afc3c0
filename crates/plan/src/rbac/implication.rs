//! Consequences of RBAC rules beyond their text.
//!
//! `patch deployments` does not say that it can be used to read any Secret of the namespace; people who grant it should
//! know. Every permission in [`escalations`] has a consequence here, and so have less severe ones that are often
//! granted without much thought.

#[cfg(test)]
mod tests;

use serde::Serialize;

use super::{Escalation, Rule, escalations};

/// Where a rule applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Scope {
    /// In one namespace.
    Namespace,
    /// In all namespaces, and to cluster-scoped objects.
    Cluster,
}

/// How severe a consequence is, in the order in which a reader should see them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Weight {
    /// More permissions than the rule names.
    MoreRights,
    /// The work of others can be stopped, changed or redirected.
    Disturbance,
    /// Data of others can be read.
    Disclosure,
}

/// A consequence of a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Implication {
    /// How severe it is.
    pub weight: Weight,
    /// The permissions that it follows from, in short form: `patch deployments`.
    pub rights: Vec<String>,
    /// The consequence, as the end of a sentence that begins with the permission.
    pub consequence: String,
}

/// All consequences of a rule, the most severe first, each once.
pub fn implications(rule: &Rule, scope: Scope) -> Vec<Implication> {
    let mut found: Vec<Implication> = Vec::new();
    let mut add = |weight, consequence: &str, right: &Rule| {
        let consequence = fill_placeholders(consequence, scope, &rule.resource_names);
        let right = describe(right);
        let same =
            |implication: &&mut Implication| implication.consequence == consequence && implication.weight == weight;
        match found.iter_mut().find(same) {
            Some(known) if known.rights.contains(&right) => {}
            Some(known) => known.rights.push(right),
            None => found.push(Implication { weight, rights: vec![right], consequence }),
        }
    };
    for (escalation, right) in escalations(rule) {
        let resource = right.resources.first().map_or("", String::as_str);
        let verb = right.verbs.first().map_or("", String::as_str);
        let (weight, consequence) = escalation_consequence(escalation, resource, verb);
        add(weight, consequence, &right);
        if escalation == Escalation::Wildcard {
            for (weight, consequence) in wildcard_consequences(&right) {
                add(weight, consequence, &right);
            }
        }
    }
    for right in permission_tuples(rule) {
        let (group, resource, verb) = right;
        let milder = minor_consequences(group, resource, verb);
        let own = single_rule(rule, right);
        // An unknown write may lead to anything. Of several groups, only one has the resource.
        let is_known = |group: &String| {
            let same = (group.as_str(), resource, verb);
            !self::minor_consequences(same.0, same.1, same.2).is_empty()
                || !escalations(&single_rule(rule, same)).is_empty()
        };
        if !READ_VERBS.contains(&verb) && !rule.api_groups.iter().any(is_known) {
            add(Weight::MoreRights, UNKNOWN, &own);
        }
        for (weight, consequence) in milder {
            add(weight, consequence, &own);
        }
    }
    if scope == Scope::Cluster {
        let reads = |verb: &str| READ_VERBS.contains(&verb) || verb == "*";
        for right in permission_tuples(rule) {
            let (_, resource, verb) = right;
            if reads(verb) && !CLUSTER_SCOPED.contains(&resource) {
                let consequence = "reads it in every namespace: of every team that shares the cluster";
                add(Weight::Disclosure, consequence, &single_rule(rule, right));
            }
        }
    }
    found.sort_by_key(|implication| implication.weight);
    found
}

/// Cluster-scoped resources: reading them shows nothing of a tenant.
const CLUSTER_SCOPED: &[&str] = &[
    "certificatesigningrequests",
    "clusterroles",
    "clusterrolebindings",
    "customresourcedefinitions",
    "namespaces",
    "nodes",
    "persistentvolumes",
    "storageclasses",
    "volumeattachments",
];

const READ_VERBS: &[&str] = &["get", "list", "watch"];

/// Group, resource and verb of every single permission.
fn permission_tuples(rule: &Rule) -> impl Iterator<Item = (&str, &str, &str)> {
    rule.resources.iter().flat_map(move |resource| {
        rule.api_groups.iter().flat_map(move |group| {
            let verbs = rule.verbs.iter();
            verbs.map(move |verb| (group.as_str(), resource.as_str(), verb.as_str()))
        })
    })
}

fn single_rule(rule: &Rule, (group, resource, verb): (&str, &str, &str)) -> Rule {
    Rule {
        api_groups: vec![group.to_owned()],
        resources: vec![resource.to_owned()],
        verbs: vec![verb.to_owned()],
        resource_names: rule.resource_names.clone(),
        non_resource_urls: Vec::new(),
    }
}

/// A permission without its group and the names of objects, which are in the rule itself.
fn describe(right: &Rule) -> String {
    let things = match right.resources.as_slice() {
        [] => &right.non_resource_urls,
        resources => resources,
    };
    format!("{} {}", right.verbs.join(","), things.join(","))
}

/// Fills in the placeholders for the scope and for the named objects.
fn fill_placeholders(consequence: &str, scope: Scope, names: &[String]) -> String {
    let place = match scope {
        Scope::Namespace => "the namespace",
        Scope::Cluster => "every namespace",
    };
    let any = if names.is_empty() { "any" } else { "a named" };
    consequence.replace("{place}", place).replace("{any}", any)
}

/// The consequence of a permission that leads to further permissions.
fn escalation_consequence(escalation: Escalation, resource: &str, verb: &str) -> (Weight, &'static str) {
    use Weight::{Disclosure, Disturbance, MoreRights};
    let deletes = matches!(verb, "delete" | "deletecollection");
    let reads = READ_VERBS.contains(&verb);
    let (main, sub) = resource.split_once('/').unwrap_or((resource, ""));
    match escalation {
        Escalation::Wildcard => (MoreRights, "also holds for whatever is installed later, in kinds and in verbs"),
        Escalation::Verb => match verb {
            "impersonate" => (MoreRights, "can act as any user that it names, administrators included"),
            "bind" => (MoreRights, "can give itself what {any} role allows"),
            "escalate" => (MoreRights, "can write any right into a role it may change"),
            _ => (MoreRights, CERTIFICATES),
        },
        Escalation::PodAccess => match sub {
            "exec" => {
                (MoreRights, "can run commands in {any} pod of {place}, with that pod's Secrets and ServiceAccount")
            }
            "attach" => (MoreRights, "can read what {any} pod of {place} prints, and type into it"),
            "portforward" => (MoreRights, "can connect to every port of {any} pod of {place}, past NetworkPolicies"),
            _ => (
                MoreRights,
                "can put a program of its choice into {any} running pod of {place}, beside that pod's Secrets",
            ),
        },
        Escalation::PodWrite => match (main, sub) {
            _ if deletes => (Disturbance, "can stop workloads of {place}"),
            (_, "eviction") => (Disturbance, "can stop workloads of {place}"),
            (_, "status") => (Disturbance, "can report a false state of workloads"),
            (_, "resize") => (Disturbance, "can starve {any} pod of {place}"),
            ("pods", "binding") => (MoreRights, NODES),
            ("pods", "") if verb != "create" => (
                MoreRights,
                "can put an image of its choice into {any} running pod of {place}, and so use its Secrets and ServiceAccount",
            ),
            _ => (
                MoreRights,
                "can read any Secret and use any ServiceAccount of {place}: it writes what pods mount and run",
            ),
        },
        Escalation::Token => (MoreRights, "can make tokens of {any} ServiceAccount of {place}, and do what that may"),
        Escalation::Secret => match verb {
            _ if reads => (MoreRights, "can read {any} Secret of {place}"),
            _ if deletes => (Disturbance, "can destroy {any} Secret of {place}"),
            "create" => (
                MoreRights,
                "can plant Secrets that others trust, and have tokens of ServiceAccounts written into them",
            ),
            _ => (MoreRights, "can read and replace {any} Secret of {place}: an empty patch answers with it"),
        },
        Escalation::Rbac if deletes => (Disturbance, "can take rights away from others"),
        Escalation::Rbac => (MoreRights, "can give its rights to any user, for longer than the run lasts"),
        Escalation::Certificate => (MoreRights, CERTIFICATES),
        Escalation::Api => {
            (MoreRights, "can change what the API server accepts, alters and serves, and read what passes: Secrets too")
        }
        Escalation::Proxy if main == "nodes" => {
            (MoreRights, "can run commands in every pod of the nodes, by way of the kubelet")
        }
        Escalation::Proxy => (MoreRights, "can send requests to {any} pod or Service of {place}, past NetworkPolicies"),
        Escalation::Volume if deletes => (Disturbance, "can destroy stored data of others"),
        Escalation::Volume => (MoreRights, "can offer a directory of a node as a volume, and so take over the node"),
        Escalation::Network => {
            (MoreRights, "can open or close the network of {any} pod of {place}, the run's own included")
        }
        Escalation::Namespace if deletes => (Disturbance, "can delete {any} namespace with everything in it"),
        Escalation::Namespace => {
            (MoreRights, "can change which security rules hold in {any} namespace: its labels say so")
        }
        Escalation::Node => (MoreRights, NODES),
        Escalation::Path => (Disclosure, "reads what the API server tells about itself: metrics, logs, settings"),
        Escalation::OwnKinds => (MoreRights, "can reach runs and approvals: a skill could approve what it asks for"),
    }
}

const CERTIFICATES: &str = "can have certificates issued that the cluster trusts, and so become any user";
const UNKNOWN: &str = "may lead to anything: what follows from it is not known here";
const NODES: &str = "can choose where pods run, and draw others' pods to a node";

/// Examples of the most dangerous permissions that a `*` covers.
const DANGEROUS_EXAMPLES: &[(&str, &str, &str)] = &[
    ("", "secrets", "get"),
    ("apps", "deployments", "patch"),
    ("", "pods/exec", "create"),
    ("rbac.authorization.k8s.io", "rolebindings", "create"),
    ("rbac.authorization.k8s.io", "roles", "escalate"),
    ("", "serviceaccounts/token", "create"),
    ("", "pods", "delete"),
];

/// Consequences of a permission with `*`, by the dangerous permissions that the `*` covers.
fn wildcard_consequences(right: &Rule) -> Vec<(Weight, &'static str)> {
    let held = std::slice::from_ref(right);
    let stood_for = DANGEROUS_EXAMPLES.iter().filter(|(group, resource, verb)| {
        let asked = Rule {
            resource_names: right.resource_names.clone(),
            ..single_rule(&Rule::default(), (group, resource, verb))
        };
        super::find_uncovered(held, &asked) == Ok(None)
    });
    stood_for
        .flat_map(|(group, resource, verb)| {
            let concrete = single_rule(&Rule::default(), (group, resource, verb));
            escalations(&concrete)
        })
        .map(|(escalation, concrete)| escalation_consequence(escalation, &concrete.resources[0], &concrete.verbs[0]))
        .collect()
}

/// Consequences of permissions that are not escalations.
fn minor_consequences(group: &str, resource: &str, verb: &str) -> Vec<(Weight, &'static str)> {
    use Weight::{Disclosure, Disturbance};
    let reads = READ_VERBS.contains(&verb) || verb == "*";
    let writes = !READ_VERBS.contains(&verb);
    let mut found = Vec::new();
    let mut add = |holds: bool, weight, consequence| {
        if holds {
            found.push((weight, consequence));
        }
    };
    let (main, sub) = resource.split_once('/').unwrap_or((resource, ""));
    let is = |groups: &[&str], names: &[&str]| groups.contains(&group) && names.contains(&resource);
    let templates = super::escalation::has_pod_template(group, main) && sub.is_empty();
    add(
        reads && templates,
        Disclosure,
        "shows images, commands and environment values of pods, credentials included where they are written there",
    );
    add(
        reads && is(&[""], &["pods/log"]),
        Disclosure,
        "reads whatever programs log, often credentials and personal data",
    );
    let settings = is(&[""], &["configmaps"]);
    add(reads && settings, Disclosure, "reads settings of other programs, which often hold credentials");
    add(
        writes && settings,
        Disturbance,
        "can change settings that other programs trust, which is often as good as changing the programs",
    );
    let events = is(&["", "events.k8s.io"], &["events"]);
    add(reads && events, Disclosure, "reads messages about other programs, which can quote commands and errors");
    add(writes && events, Disturbance, "can write events that mislead their readers");
    add(reads && is(&[""], &["nodes"]), Disclosure, "shows every machine of the cluster: addresses, versions, labels");
    add(
        reads && is(&[""], &["namespaces"]),
        Disclosure,
        "shows the names of all teams and what they are labelled with",
    );
    add(writes && sub == "scale", Disturbance, "can stop {any} such workload of {place}, or multiply it");
    add(
        writes && is(&["autoscaling"], &["horizontalpodautoscalers"]),
        Disturbance,
        "can stop or multiply workloads that scale by it",
    );
    add(
        reads && group.is_empty() && main == "nodes" && !["", "proxy"].contains(&sub),
        Disclosure,
        "reads what the kubelet tells about a node: its settings, its logs, all of its pods",
    );
    let protects = is(&["policy"], &["poddisruptionbudgets"]) || is(&[""], &["resourcequotas", "limitranges"]);
    add(writes && protects, Disturbance, "can lift bounds that protect the work of others");
    let routes = is(&[""], &["services", "services/status", "endpoints"])
        || is(&["discovery.k8s.io"], &["endpointslices"])
        || is(&["networking.k8s.io", "extensions"], &["ingresses"])
        || group == "gateway.networking.k8s.io";
    add(writes && routes, Disturbance, "can send traffic that is meant for others elsewhere");
    add(
        writes && is(&[""], &["persistentvolumeclaims"]),
        Disturbance,
        "can take or delete storage, with the data in it",
    );
    add(
        writes && is(&[""], &["serviceaccounts"]),
        Disturbance,
        "can make identities that outlast the run, or delete those that others use",
    );
    add(
        writes && is(&["coordination.k8s.io"], &["leases"]),
        Disturbance,
        "can stop controllers that hold such a lease",
    );
    add(reads && group == "rbac.authorization.k8s.io", Disclosure, "shows who may do what");
    let is_custom = group.contains('.') && !group.ends_with(".k8s.io");
    add(
        writes && is_custom && group != sympozium_api::labels::GROUP,
        Weight::MoreRights,
        "makes a controller act, which has rights of its own",
    );
    add(
        reads && is_custom && group != sympozium_api::labels::GROUP,
        Disclosure,
        "reads objects of an installed kind, which may hold credentials",
    );
    found
}
