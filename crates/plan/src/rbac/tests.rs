use proptest::prelude::*;

use super::*;

fn words(list: &str) -> Vec<String> {
    let word = |word: &str| match word {
        "core" => String::new(),
        _ => word.to_owned(),
    };
    list.split(',').filter(|word| !word.is_empty()).map(word).collect()
}

fn rule(groups: &str, resources: &str, verbs: &str, names: &str) -> Rule {
    Rule {
        api_groups: words(groups),
        resources: words(resources),
        verbs: words(verbs),
        resource_names: words(names),
        non_resource_urls: Vec::new(),
    }
}

fn path(path: &str) -> Rule {
    Rule { verbs: words("get"), non_resource_urls: words(path), ..Rule::default() }
}

#[test]
fn rights_that_lead_to_more_rights_are_found() {
    use Escalation as E;
    for (groups, resources, verbs, expected) in [
        ("*", "pods", "get", Some(E::Wildcard)),
        ("core", "*", "get", Some(E::Wildcard)),
        ("core", "pods/*", "get", Some(E::Wildcard)),
        ("apps", "*/scale", "patch", Some(E::Wildcard)),
        ("core", "pods", "*", Some(E::Wildcard)),
        ("rbac.authorization.k8s.io", "roles", "escalate", Some(E::Verb)),
        ("rbac.authorization.k8s.io", "clusterroles", "bind", Some(E::Verb)),
        ("core", "users", "impersonate", Some(E::Verb)),
        ("certificates.k8s.io", "signers", "approve", Some(E::Verb)),
        ("core", "pods/exec", "create", Some(E::PodAccess)),
        ("core", "pods/exec", "get", Some(E::PodAccess)),
        ("core", "pods/attach", "create", Some(E::PodAccess)),
        ("core", "pods/portforward", "create", Some(E::PodAccess)),
        ("core", "pods/ephemeralcontainers", "patch", Some(E::PodAccess)),
        ("core", "pods", "create", Some(E::PodWrite)),
        ("core", "pods", "delete", Some(E::PodWrite)),
        ("core", "pods/binding", "create", Some(E::PodWrite)),
        ("core", "replicationcontrollers", "update", Some(E::PodWrite)),
        ("apps", "deployments", "patch", Some(E::PodWrite)),
        ("extensions", "deployments", "patch", Some(E::PodWrite)),
        ("batch", "cronjobs", "create", Some(E::PodWrite)),
        ("agents.x-k8s.io", "sandboxes", "create", Some(E::PodWrite)),
        ("core", "serviceaccounts/token", "create", Some(E::Token)),
        ("core", "secrets", "get", Some(E::Secret)),
        ("core", "secrets", "list", Some(E::Secret)),
        ("core", "secrets", "patch", Some(E::Secret)),
        ("core", "secrets/status", "get", Some(E::Secret)),
        ("rbac.authorization.k8s.io", "rolebindings", "create", Some(E::Rbac)),
        ("certificates.k8s.io", "certificatesigningrequests/approval", "update", Some(E::Certificate)),
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "create", Some(E::Api)),
        ("apiextensions.k8s.io", "customresourcedefinitions", "update", Some(E::Api)),
        ("core", "nodes/proxy", "get", Some(E::Proxy)),
        ("core", "services/proxy", "create", Some(E::Proxy)),
        ("core", "persistentvolumes", "create", Some(E::Volume)),
        ("sympozium.ai", "toolapprovals", "get", Some(E::OwnKinds)),
        ("networking.k8s.io", "networkpolicies", "delete", Some(E::Network)),
        ("cilium.io", "ciliumnetworkpolicies", "create", Some(E::Network)),
        ("core", "namespaces", "patch", Some(E::Namespace)),
        ("core", "namespaces/finalize", "update", Some(E::Namespace)),
        ("core", "bindings", "create", Some(E::Node)),
        ("core", "nodes", "patch", Some(E::Node)),
        ("core", "nodes/status", "update", Some(E::Node)),
        ("networking.k8s.io", "networkpolicies", "get", None),
        ("networking.k8s.io", "ingresses", "create", None),
        ("core", "namespaces", "list", None),
        ("core", "nodes", "watch", None),
        ("core", "pods", "get", None),
        ("core", "pods/log", "get", None),
        ("core", "persistentvolumes", "get", None),
        ("core", "configmaps", "create", None),
        ("apps", "deployments", "get", None),
        ("apps", "deployments/scale", "patch", None),
        ("batch", "jobs", "watch", None),
        ("rbac.authorization.k8s.io", "roles", "list", None),
        ("apiextensions.k8s.io", "customresourcedefinitions", "get", None),
        ("apps", "secrets", "get", None),
    ] {
        let asked = rule(groups, resources, verbs, "");
        let expected: Vec<_> = expected.map(|expected| (expected, asked.clone())).into_iter().collect();
        assert_eq!(escalations(&asked), expected, "{groups} {resources} {verbs}");
    }
    let metrics = path("/metrics");
    assert_eq!(escalations(&metrics), [(E::Path, metrics.clone())]);
}

#[test]
fn a_rule_of_many_words_is_looked_at_word_by_word() {
    let asked = rule("core,apps", "pods,deployments,secrets", "get,patch", "a");
    let found: Vec<_> = escalations(&asked)
        .into_iter()
        .map(|(escalation, right)| (escalation, right.resources.concat(), right.verbs.concat()))
        .collect();
    let expected = [
        (Escalation::PodWrite, "pods", "patch"),
        (Escalation::PodWrite, "deployments", "patch"),
        (Escalation::Secret, "secrets", "get"),
        (Escalation::Secret, "secrets", "patch"),
    ]
    .map(|(escalation, resource, verb)| (escalation, resource.to_owned(), verb.to_owned()));
    assert_eq!(found, expected);
}

#[test]
fn rules_cover_as_in_kubernetes() {
    for (held, asked, covered) in [
        (vec![rule("core", "pods", "get,list", "")], rule("core", "pods", "get", ""), true),
        (vec![rule("core", "pods", "get", "")], rule("core", "pods", "get,list", ""), false),
        (
            vec![rule("core", "pods", "get", ""), rule("core", "pods", "list", "")],
            rule("core", "pods", "get,list", ""),
            true,
        ),
        (vec![rule("*", "*", "*", "")], rule("apps", "deployments/scale", "patch", "x"), true),
        (vec![rule("*", "*", "*", "")], path("/metrics"), false),
        (vec![rule("apps", "*/scale", "patch", "")], rule("apps", "deployments/scale", "patch", ""), true),
        (vec![rule("apps", "*/scale", "patch", "")], rule("apps", "deployments", "patch", ""), false),
        (vec![rule("apps", "deployments", "patch", "")], rule("apps", "deployments/scale", "patch", ""), false),
        (vec![rule("core", "configmaps", "get", "a,b")], rule("core", "configmaps", "get", "a"), true),
        (vec![rule("core", "configmaps", "get", "a")], rule("core", "configmaps", "get", ""), false),
        (vec![rule("core", "configmaps", "get", "")], rule("core", "configmaps", "get", "a"), true),
        (vec![rule("core", "pods", "get", "")], rule("*", "pods", "get", ""), false),
        (vec![path("/healthz,/api/*")], path("/api/v1"), true),
        (vec![path("/healthz")], path("/healthz,/metrics"), false),
        (vec![], rule("core", "pods", "get", ""), false),
        (vec![], rule("", "", "", ""), true),
    ] {
        assert_eq!(find_uncovered(&held, &asked).map(|missing| missing.is_none()), Ok(covered), "{held:?} {asked:?}");
    }
    let missing = find_uncovered(&[rule("core", "pods", "get", "")], &rule("core", "pods,services", "get,list", ""));
    assert_eq!(missing, Ok(Some(rule("core", "services", "get", ""))));
}

#[test]
fn a_rule_of_too_many_rights_is_not_taken_apart() {
    let many = (0..64).map(|number| format!("r{number}")).collect::<Vec<_>>();
    let asked = Rule {
        api_groups: many.clone(),
        resources: many.clone(),
        verbs: many.clone(),
        resource_names: many,
        non_resource_urls: Vec::new(),
    };
    assert_eq!(find_uncovered(&[], &asked), Err(TooManyPermissions(64 * 64 * 64 * 64)));
    assert_eq!(find_uncovered(&[rule("*", "*", "*", "")], &asked), Ok(None));
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let words = |words: &'static [&'static str]| {
        prop::collection::vec(prop::sample::select(words).prop_map(str::to_owned), 1..3)
    };
    (
        words(&["", "apps", "*"]),
        words(&["pods", "pods/log", "*/log", "*", "secrets"]),
        words(&["get", "list", "*"]),
        prop::collection::vec(prop::sample::select(&["a", "b"][..]).prop_map(str::to_owned), 0..3),
    )
        .prop_map(|(api_groups, resources, verbs, resource_names)| Rule {
            api_groups,
            resources,
            verbs,
            resource_names,
            non_resource_urls: Vec::new(),
        })
}

proptest! {
    #[test]
    fn covering_is_reflexive_and_transitive(a in any_rule(), b in any_rule(), c in any_rule()) {
        let covers = |held: &Rule, asked: &Rule| find_uncovered(std::slice::from_ref(held), asked) == Ok(None);
        prop_assert!(covers(&a, &a));
        if covers(&a, &b) && covers(&b, &c) {
            prop_assert!(covers(&a, &c));
        }
    }

    #[test]
    fn more_rules_cover_no_less(held in prop::collection::vec(any_rule(), 0..4), more in any_rule(), asked in any_rule()) {
        if find_uncovered(&held, &asked) == Ok(None) {
            let held = [held, vec![more]].concat();
            prop_assert_eq!(find_uncovered(&held, &asked), Ok(None));
        }
    }
}
