//! Permissions at the Kubernetes API: what a pack or a hook may request, and who must consent.

use super::*;

const FLOOR: &str = include_str!("../../../../../../config/policies/floor.yaml");

#[test]
fn no_pack_gets_rights_from_which_more_follow() {
    for (group, resource, verb) in [
        ("*", "pods", "get"),
        ("", "*", "get"),
        ("", "pods", "*"),
        ("rbac.authorization.k8s.io", "roles", "escalate"),
        ("rbac.authorization.k8s.io", "clusterroles", "bind"),
        ("", "users", "impersonate"),
        ("", "secrets", "list"),
        ("", "pods/exec", "create"),
        ("", "serviceaccounts/token", "create"),
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations", "update"),
        ("apiextensions.k8s.io", "customresourcedefinitions", "create"),
        ("", "nodes/proxy", "get"),
        ("sympozium.ai", "toolapprovals", "update"),
    ] {
        let rule = format!("[{{apiGroups: ['{group}'], resources: ['{resource}'], verbs: ['{verb}']}}]");
        let allowed_by_others = "floor: {rbacPolicy: {clusterRBACNamespaces: [team]}}";
        for field in ["rbac", "clusterRBAC"] {
            let harness = Harness::new(&format!("{}\n{allowed_by_others}", pack_with(&format!("{field}: {rule}"))));
            assert_eq!(denying_rules(&harness), ["rbac-escalation"], "{field} {group} {resource} {verb}");
        }
        let hooks = Harness::new(&format!("run: {{lifecycle: {{rbac: {rule}}}}}"));
        assert_eq!(denying_rules(&hooks), ["rbac-escalation"], "hook: {group} {resource} {verb}");
    }
}

#[test]
fn an_exception_must_be_listed_by_the_policy_and_by_the_floor() {
    let pack = pack_with("rbac: [{apiGroups: [''], resources: [secrets], verbs: [get]}]");
    let exception = "{rbacPolicy: {exceptions: [{apiGroups: [''], resources: [secrets], verbs: [get]}]}}";
    for (policy, floor, expected) in [
        ("null", "null", false),
        // A floor that is silent has not consented, and neither has one that is not there.
        (exception, "null", false),
        (exception, "{}", false),
        (exception, exception, true),
        (exception, "{rbacPolicy: {clusterRBACNamespaces: [default]}}", false),
        ("null", exception, false),
        ("{}", exception, false),
    ] {
        let harness = Harness::new(&format!("{pack}\npolicy: {policy}\nfloor: {floor}"));
        assert_eq!(harness.decide().2.is_some(), expected, "{policy} {floor}");
    }
}

/// The floor's consent is enough for it, and no policy's is where the floor has the section.
#[test]
fn a_right_that_is_not_known_to_be_harmless_needs_the_floors_consent() {
    let pack = pack_with("rbac: [{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get]}]");
    let lists = "{rbacPolicy: {exceptions: [{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get]}]}}";
    let speaks = "{rbacPolicy: {clusterRBACNamespaces: [default]}}";
    for (policy, floor, expected) in [
        ("null", "null", false),
        ("{}", "{}", false),
        ("null", lists, true),
        ("{}", lists, true),
        (lists, lists, true),
        (lists, speaks, false),
        (speaks, speaks, false),
        // No policy consents where the floor has no section, or there is no floor.
        (lists, "null", false),
        (lists, "{}", false),
        (lists, "{networkPolicy: {denyAll: false}}", false),
        // A policy that bounds permissions bounds these too.
        ("{rbacPolicy: {ceiling: [{apiGroups: [''], resources: [pods], verbs: [get]}]}}", lists, false),
    ] {
        let harness = Harness::new(&format!("{pack}\npolicy: {policy}\nfloor: {floor}"));
        assert_eq!(harness.decide().2.is_some(), expected, "{policy} {floor}");
    }
}

/// Under the floor that we ship, which lists these namespaces, with authors that are not recorded: as the controller
/// admits.
fn of_unknown_authors(changes: &str, listed: &[&str]) -> Harness {
    let mut harness = Harness::new(changes);
    let mut floor = shipped(FLOOR);
    let rbac = floor.rbac_policy.as_mut().expect("a part about rights");
    rbac.cluster_rbac_namespaces = Some(listed.iter().map(|namespace| (*namespace).into()).collect());
    let author = Permissions::for_unknown_author(Some(&floor), NAMESPACE);
    harness.author = Some(author.clone());
    harness.agent_author = Some(author.clone());
    harness.pack_author = Some(author);
    harness.floor = Some(floor);
    harness
}

/// Listing a namespace consents to grants there. It does not give its users what the floor's exceptions leave to packs
/// of the system namespace.
#[test]
fn an_unknown_author_grants_what_is_harmless_and_only_where_the_floor_lists_the_namespace() {
    let rule =
        |resources: &str, verbs: &str| format!("[{{apiGroups: [''], resources: [{resources}], verbs: [{verbs}]}}]");
    let hooks = |rules: &str| format!("{{preRun: [{{name: h, image: 'ghcr.io/org/h:1'}}], rbac: {rules}}}");
    let askers = |rules: &str| {
        [
            pack_with(&format!("rbac: {rules}")),
            format!("run: {{lifecycle: {}}}", hooks(rules)),
            format!("agent: {{agents: {{default: {{lifecycle: {}}}}}}}", hooks(rules)),
        ]
    };
    let nothing: &[&str] = &[];
    for (resources, verbs, where_listed) in [
        ("pods, configmaps, services", "get, list, watch", nothing),
        ("services", "create", &["rbac-author"]),
        ("services, configmaps", "create, update, patch, delete", &["rbac-author"]),
        ("pods", "delete", &["rbac-escalation", "rbac-author"]),
    ] {
        for changes in askers(&rule(resources, verbs)) {
            let rules = |listed: &[&str]| -> Vec<&'static str> {
                let (reasons, ..) = of_unknown_authors(&changes, listed).decide();
                reasons.iter().map(|reason| reason.rule).collect()
            };
            assert_eq!(rules(&[NAMESPACE]), where_listed, "{changes}");
            let elsewhere = match where_listed {
                [] => &["rbac-author"][..],
                rules => rules,
            };
            assert_eq!(rules(&["default"]), elsewhere, "{changes}");
            assert_eq!(rules(&[]), elsewhere, "{changes}");
        }
    }
    // The operator's own pack has the permissions that the exceptions are for.
    let pack = pack_with("rbac: [{apiGroups: [''], resources: [services, configmaps], verbs: [get, create, patch]}]");
    let mut harness = of_unknown_authors(&pack.replace("own:", "system:"), &[]);
    harness.pack_author = None;
    assert_eq!(harness.decide().0, []);
}

#[test]
fn no_exception_covers_writes_in_the_whole_cluster() {
    let with = |rule: &str| of_unknown_authors(&pack_with(&format!("clusterRBAC: [{rule}]")), &[NAMESPACE]);
    for (rule, by_users, by_operators) in [
        ("{apiGroups: [''], resources: [nodes, configmaps], verbs: [get, list, watch]}", &[][..], &[][..]),
        (
            "{apiGroups: [''], resources: [configmaps], verbs: [update, patch]}",
            &["rbac-author", "rbac-unlisted"],
            &["rbac-unlisted"],
        ),
        (
            "{apiGroups: [apps], resources: [deployments], verbs: [patch]}",
            &["rbac-escalation", "rbac-author"],
            &["rbac-escalation"],
        ),
    ] {
        let mut harness = with(rule);
        // The policy excepts everything that the floor leaves to it.
        harness.policy = harness.floor.clone().map(|floor| SympoziumPolicy::new("p", floor));
        if let Some(agent) = &mut harness.agent {
            agent.spec.policy_ref = Some("p".into());
        }
        let rules = |harness: &Harness| -> Vec<&'static str> {
            harness.decide().0.iter().map(|violation| violation.rule).collect()
        };
        assert_eq!(rules(&harness), by_users, "{rule}");
        harness.pack_author = None;
        assert_eq!(rules(&harness), by_operators, "{rule}");
    }
}
