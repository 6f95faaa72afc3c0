use super::*;

fn rule(groups: &str, resources: &str, verbs: &str) -> Rule {
    let words = |list: &str| {
        let words = list.split(',').filter(|word| !word.is_empty());
        let core = |word: &str| match word {
            "core" => String::new(),
            _ => word.to_owned(),
        };
        words.map(core).collect()
    };
    Rule { api_groups: words(groups), resources: words(resources), verbs: words(verbs), ..Rule::default() }
}

fn consequences_of(rule: &Rule, scope: Scope) -> Vec<String> {
    implications(rule, scope)
        .into_iter()
        .map(|implication| format!("{}: {}", implication.rights.join("; "), implication.consequence))
        .collect()
}

#[test]
fn consequences_are_in_plain_words() {
    for (groups, resources, verbs, expected) in [
        (
            "apps",
            "deployments",
            "patch",
            "patch deployments: can read any Secret and use any ServiceAccount of the namespace: it writes what pods mount and run",
        ),
        ("core", "pods", "delete", "delete pods: can stop workloads of the namespace"),
        (
            "core",
            "pods",
            "update",
            "update pods: can put an image of its choice into any running pod of the namespace, and so use its Secrets and ServiceAccount",
        ),
        ("core", "secrets", "get", "get secrets: can read any Secret of the namespace"),
        (
            "core",
            "secrets",
            "patch",
            "patch secrets: can read and replace any Secret of the namespace: an empty patch answers with it",
        ),
        (
            "core",
            "pods/exec",
            "create",
            "create pods/exec: can run commands in any pod of the namespace, with that pod's Secrets and ServiceAccount",
        ),
        (
            "core",
            "serviceaccounts/token",
            "create",
            "create serviceaccounts/token: can make tokens of any ServiceAccount of the namespace, and do what that may",
        ),
        (
            "core",
            "nodes/proxy",
            "get",
            "get nodes/proxy: can run commands in every pod of the nodes, by way of the kubelet",
        ),
        (
            "core",
            "pods",
            "get",
            "get pods: shows images, commands and environment values of pods, credentials included where they are written there",
        ),
        (
            "apps",
            "deployments",
            "list",
            "list deployments: shows images, commands and environment values of pods, credentials included where they are written there",
        ),
        ("core", "pods/log", "get", "get pods/log: reads whatever programs log, often credentials and personal data"),
        ("core", "configmaps", "get", "get configmaps: reads settings of other programs, which often hold credentials"),
        (
            "core",
            "configmaps",
            "update",
            "update configmaps: can change settings that other programs trust, which is often as good as changing the programs",
        ),
        (
            "core",
            "events",
            "list",
            "list events: reads messages about other programs, which can quote commands and errors",
        ),
        ("core", "nodes", "list", "list nodes: shows every machine of the cluster: addresses, versions, labels"),
        (
            "apps",
            "deployments/scale",
            "patch",
            "patch deployments/scale: can stop any such workload of the namespace, or multiply it",
        ),
        (
            "networking.k8s.io",
            "ingresses",
            "create",
            "create ingresses: can send traffic that is meant for others elsewhere",
        ),
        ("example.com", "databases", "create", "create databases: makes a controller act, which has rights of its own"),
    ] {
        let asked = rule(groups, resources, verbs);
        assert_eq!(consequences_of(&asked, Scope::Namespace), [expected]);
    }
}

#[test]
fn rights_with_one_consequence_share_a_line_and_the_heaviest_comes_first() {
    let asked = rule("core,apps", "pods,deployments", "get,list,create");
    assert_eq!(
        consequences_of(&asked, Scope::Namespace),
        [
            "create pods; create deployments: can read any Secret and use any ServiceAccount of the namespace: it writes what pods mount and run",
            "get pods; list pods; get deployments; list deployments: shows images, commands and environment values of pods, credentials included where they are written there",
        ]
    );
}

#[test]
fn in_the_whole_cluster_reading_reaches_every_team() {
    assert_eq!(
        consequences_of(&rule("core", "services", "get,list"), Scope::Cluster),
        ["get services; list services: reads it in every namespace: of every team that shares the cluster"]
    );
    assert_eq!(
        consequences_of(&rule("core", "nodes", "get"), Scope::Cluster),
        ["get nodes: shows every machine of the cluster: addresses, versions, labels"]
    );
    assert_eq!(consequences_of(&rule("core", "services", "get"), Scope::Namespace), [] as [&str; 0]);
}

#[test]
fn names_narrow_the_consequences() {
    let asked = Rule { resource_names: vec!["one".to_owned()], ..rule("core", "secrets", "get") };
    assert_eq!(consequences_of(&asked, Scope::Namespace), ["get secrets: can read a named Secret of the namespace"]);
}

#[test]
fn a_wildcard_has_the_consequences_of_what_it_covers() {
    let all: Vec<_> = implications(&rule("*", "*", "*"), Scope::Cluster);
    let says = |text: &str| all.iter().any(|implication| implication.consequence.contains(text));
    for text in [
        "installed later",
        "any Secret of every namespace",
        "run commands in any pod",
        "give its rights to any user",
        "write any right into a role",
        "stop workloads",
    ] {
        assert!(says(text), "{text}: {all:#?}");
    }
    let reading: Vec<_> = implications(&rule("core", "*", "get"), Scope::Namespace);
    let reading: Vec<_> = reading.iter().map(|implication| implication.consequence.as_str()).collect();
    assert_eq!(
        reading,
        ["also holds for whatever is installed later, in kinds and in verbs", "can read any Secret of the namespace"]
    );
}

/// A change that adds an escalation must add its consequence.
#[test]
fn every_refused_right_has_a_consequence() {
    for group in [
        "",
        "*",
        "apps",
        "batch",
        "agents.x-k8s.io",
        "rbac.authorization.k8s.io",
        "certificates.k8s.io",
        "admissionregistration.k8s.io",
        "networking.k8s.io",
        "sympozium.ai",
    ] {
        for resource in [
            "*",
            "pods",
            "pods/exec",
            "pods/attach",
            "pods/portforward",
            "pods/ephemeralcontainers",
            "pods/eviction",
            "pods/binding",
            "bindings",
            "secrets",
            "serviceaccounts/token",
            "nodes",
            "nodes/proxy",
            "services/proxy",
            "namespaces",
            "persistentvolumes",
            "deployments",
            "jobs",
            "networkpolicies",
            "roles",
            "toolapprovals",
            "certificatesigningrequests/approval",
        ] {
            for verb in [
                "*",
                "get",
                "list",
                "create",
                "update",
                "patch",
                "delete",
                "bind",
                "escalate",
                "impersonate",
                "approve",
            ] {
                let asked = rule(if group.is_empty() { "core" } else { group }, resource, verb);
                for scope in [Scope::Namespace, Scope::Cluster] {
                    let found = implications(&asked, scope);
                    if !escalations(&asked).is_empty() {
                        assert!(!found.is_empty(), "{asked}");
                    }
                    for implication in found {
                        assert!(!implication.consequence.contains(['{', '}']), "{}", implication.consequence);
                    }
                }
            }
        }
    }
}

/// An unknown permission is never reported to be without consequences.
#[test]
fn writes_that_are_not_known_may_lead_to_anything() {
    for (group, resource, verb) in [
        ("node.k8s.io", "runtimeclasses", "create"),
        ("storage.k8s.io", "csidrivers", "patch"),
        ("scheduling.k8s.io", "priorityclasses", "update"),
        ("flowcontrol.apiserver.k8s.io", "flowschemas", "delete"),
        ("example.com", "widgets", "create"),
        ("", "inventions", "invent"),
    ] {
        let rule = single_rule(&Rule::default(), (group, resource, verb));
        let weights: Vec<Weight> =
            implications(&rule, Scope::Namespace).into_iter().map(|implication| implication.weight).collect();
        assert_eq!(weights, [Weight::MoreRights], "{verb} {resource}");
    }
    for (group, resource, verb, weight) in [
        ("", "nodes/log", "get", Weight::Disclosure),
        ("", "nodes/configz", "get", Weight::Disclosure),
        ("", "services/status", "patch", Weight::Disturbance),
        ("policy", "poddisruptionbudgets", "delete", Weight::Disturbance),
        ("", "resourcequotas", "update", Weight::Disturbance),
    ] {
        let rule = single_rule(&Rule::default(), (group, resource, verb));
        let found = implications(&rule, Scope::Namespace);
        assert!(found.iter().any(|implication| implication.weight == weight), "{verb} {resource}: {found:?}");
    }
}
