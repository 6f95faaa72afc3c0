use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};
use sympozium_api::SympoziumPolicySpec;

use super::*;

/// Policies with few entries each, so that two of them often have something in common.
pub fn any_policy() -> impl Strategy<Value = SympoziumPolicySpec> {
    let parts = prop::collection::vec(any_part(), 0..8);
    parts.prop_map(|parts| {
        let parts: BTreeMap<&str, Value> = parts.into_iter().collect();
        serde_json::from_value(json!(parts)).expect("a policy")
    })
}

fn any_part() -> impl Strategy<Value = (&'static str, Value)> {
    prop_oneof![any_restriction(), any_opening()]
}

fn some(values: &'static [&'static str]) -> impl Strategy<Value = Vec<&'static str>> {
    prop::collection::vec(prop::sample::select(values), 0..4)
}

fn any_restriction() -> impl Strategy<Value = (&'static str, Value)> {
    let amounts = || prop::option::of(prop::sample::select(&["0", "1500m", "2", "2Gi", "1e3", "nonsense"][..]));
    let seccomp = prop::option::of(prop_oneof![
        Just(json!({ "type": "RuntimeDefault" })),
        Just(json!({ "type": "Localhost", "localhostProfile": "a.json" })),
        Just(json!({ "type": "Unconfined" })),
    ]);
    let agent_sandbox = prop::option::of((any::<bool>(), prop::option::of(some(&["gvisor", "kata", "other"]))));
    let sandbox =
        (any::<bool>(), amounts(), amounts(), any::<bool>(), seccomp, agent_sandbox, some(&["kernel", "network"]));
    let sandbox = sandbox.prop_map(|(required, cpu, memory, mounts, seccomp, agent_sandbox, mut isolation)| {
        isolation.dedup();
        let agent_sandbox =
            agent_sandbox.map(|(required, classes)| json!({ "required": required, "allowedRuntimeClasses": classes }));
        json!({
            "required": required, "maxCPU": cpu, "maxMemory": memory, "allowHostMounts": mounts,
            "seccompProfile": seccomp, "agentSandboxPolicy": agent_sandbox, "minimumIsolation": isolation,
        })
    });
    let action = || prop::sample::select(&["allow", "ask", "deny"][..]);
    let tools = prop::sample::select(
        &[
            "execute_command",
            "fetch_url",
            "read_file",
            "x/*",
            "x/t",
            "team/x/*",
            "team/x/t",
            "sympozium-system/x/t",
            "t",
            "*",
        ][..],
    );
    let gating = (action(), prop::collection::vec((tools, action()), 0..4)).prop_map(|(default, rules)| {
        let rules: Vec<_> = rules.into_iter().map(|(tool, action)| json!({ "tool": tool, "action": action })).collect();
        json!({ "defaultAction": default, "rules": rules })
    });
    let features = &["code-execution", "sub-agents", "browser-automation", "file-access", "unknown"];
    let gates = prop::collection::btree_map(prop::sample::select(&features[..]), any::<bool>(), 0..4);
    let models =
        (prop::option::of(some(&["team", "other"])), prop::option::of(some(&["gpt-4o*", "gpt*", "gpt-4o-mini", "*"])));
    prop_oneof![
        sandbox.prop_map(|sandbox| ("sandboxPolicy", sandbox)),
        (0..4, 0..4)
            .prop_map(|(depth, at_once)| ("subagentPolicy", json!({ "maxDepth": depth, "maxConcurrent": at_once }))),
        gating.prop_map(|gating| ("toolGating", gating)),
        gates.prop_map(|gates| ("featureGates", json!(gates))),
        models.prop_map(|(spaces, names)| (
            "modelPolicy",
            json!({ "allowedNamespaces": spaces, "allowedModels": names })
        )),
        prop::option::of(some(&["ghcr.io", "ghcr.io/org", "ghcr.io/org/*", "docker.io/library", "no host"]))
            .prop_map(|registries| ("imagePolicy", json!({ "allowedRegistries": registries }))),
        some(&["secrets", "events", "*"])
            .prop_map(|resources| ("lifecyclePolicy", json!({ "deniedResources": resources }))),
    ]
}

fn any_opening() -> impl Strategy<Value = (&'static str, Value)> {
    let egress = prop::sample::select(&["api.github.com", "*.github.com", "db.team.svc", "10.0.0.1", "127.1"][..]);
    let egress = prop::collection::vec((egress, prop::option::of(prop::sample::select(&[80, 443][..]))), 0..4);
    let network = (any::<bool>(), any::<bool>(), egress).prop_map(|(deny, bus, egress)| {
        let egress: Vec<_> = egress.into_iter().map(|(host, port)| json!({ "host": host, "port": port })).collect();
        json!({ "denyAll": deny, "allowEventBus": bus, "allowedEgress": egress })
    });
    let rule = || {
        (some(&["", "apps", "*"]), some(&["pods", "secrets", "*"]), some(&["get", "list", "*"])).prop_map(
            |(groups, resources, verbs)| json!({ "apiGroups": groups, "resources": resources, "verbs": verbs }),
        )
    };
    let rules = || prop::collection::vec(rule(), 0..3);
    let rbac = (prop::option::of(rules()), rules(), prop::option::of(some(&["team", "default"])));
    let host = (
        prop::option::of(some(&["x", "team/x", "sympozium-system/x", "other"])),
        prop::option::of(some(&["team", "other"])),
        any::<[bool; 4]>(),
        prop::collection::vec((prop::sample::select(&["/", "/data", "/data/a", "/proc"][..]), any::<bool>()), 0..3),
    );
    let host = host.prop_map(|(packs, namespaces, [network, pid, privileged, root], paths)| {
        let paths: Vec<_> = paths.into_iter().map(|(path, read_only)| json!({ "pathPrefix": path, "readOnly": read_only })).collect();
        json!({ "packs": packs, "namespaces": namespaces, "hostNetwork": network, "hostPID": pid, "privileged": privileged, "runAsRoot": root, "allowedHostPaths": paths })
    });
    let approvers = prop::option::of(some(&["sre", "dev"]));
    let approval = (approvers, 1..3, 10..1000, any::<[bool; 2]>()).prop_map(|(names, count, seconds, [scope, author])| {
        let names = names.map(|names| names.into_iter().map(|name| json!({ "kind": "Group", "name": name })).collect::<Vec<_>>());
        json!({ "approvers": names, "requiredApprovals": count, "expiresAfterSeconds": seconds, "allowRunScope": scope, "allowRunAuthor": author })
    });
    prop_oneof![
        network.prop_map(|network| ("networkPolicy", network)),
        rbac.prop_map(|(ceiling, exceptions, spaces)| (
            "rbacPolicy",
            json!({ "ceiling": ceiling, "exceptions": exceptions, "clusterRBACNamespaces": spaces })
        )),
        host.prop_map(|host| ("hostAccessPolicy", host)),
        (prop::option::of(some(&["x", "team/x", "other"])), any::<bool>(), any::<bool>()).prop_map(
            |(packs, system, shadow)| (
                "packPolicy",
                json!({ "allowedPacks": packs, "allowSystemPacks": system, "allowShadowing": shadow })
            )
        ),
        approval.prop_map(|approval| ("approvalPolicy", approval)),
    ]
}

/// Values of the lattice: policies in either role, the defaults without them, and the top.
pub fn any_effective() -> impl Strategy<Value = EffectivePolicy> {
    prop_oneof![
        4 => any_policy().prop_map(|spec| EffectivePolicy::from_named(&spec, SYSTEM_NAMESPACE)),
        4 => any_policy().prop_map(|spec| EffectivePolicy::from_floor(&spec, SYSTEM_NAMESPACE)),
        1 => Just(EffectivePolicy::top()),
        1 => Just(EffectivePolicy::base()),
        1 => Just(EffectivePolicy::without_floor()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_meet_is_one(a in any_effective(), b in any_effective(), c in any_effective()) {
        prop_assert_eq!(a.meet(&b), b.meet(&a));
        prop_assert_eq!(a.meet(&b).meet(&c), a.meet(&b.meet(&c)));
        prop_assert_eq!(a.meet(&a), a.clone());
        prop_assert_eq!(a.meet(&EffectivePolicy::top()), a.clone());
    }

    #[test]
    fn the_order_is_that_of_the_meet(a in any_effective(), b in any_effective()) {
        let both = a.meet(&b);
        prop_assert!(both.is_at_most(&a) && both.is_at_most(&b));
        prop_assert!(a.is_at_most(&EffectivePolicy::top()));
        if a.is_at_most(&b) && b.is_at_most(&a) {
            prop_assert_eq!(a, b);
        }
    }

    #[test]
    fn a_floor_bounds_and_gives_nothing(floor in any_policy(), named in prop::option::of(any_policy())) {
        let effective = EffectivePolicy::from_specs(Some(&floor), named.as_ref(), SYSTEM_NAMESPACE);
        let given = named.as_ref().map_or_else(EffectivePolicy::base, |named| EffectivePolicy::from_named(named, SYSTEM_NAMESPACE));
        prop_assert!(effective.is_at_most(&given));
        prop_assert!(effective.is_at_most(&EffectivePolicy::from_floor(&floor, SYSTEM_NAMESPACE)));
    }
}

#[test]
fn a_part_that_is_absent_restricts_nothing_and_opens_nothing() {
    let empty = SympoziumPolicySpec::default();
    let named = EffectivePolicy::from_named(&empty, SYSTEM_NAMESPACE);
    assert_eq!(EffectivePolicy { has_policy: false, ..named }, EffectivePolicy::base());
    let floor = EffectivePolicy::from_floor(&empty, SYSTEM_NAMESPACE);
    assert_eq!(EffectivePolicy { has_policy: false, ..floor }, EffectivePolicy::without_floor());
}

#[test]
fn entries_that_mean_nothing_are_named_with_what_they_do() {
    let spec: SympoziumPolicySpec = serde_json::from_value(json!({
        "sandboxPolicy": { "maxCPU": "lots", "maxMemory": "1GB", "seccompProfile": { "type": "Unconfined" } },
        "featureGates": { "browser": false, "files": true },
        "networkPolicy": { "allowedEgress": [{ "host": "ok.example" }, { "host": "127.1" }] },
        "imagePolicy": { "allowedRegistries": ["acme", "ghcr.io/ok", "*"] },
    }))
    .expect("a policy");
    let found: Vec<_> = EffectivePolicy::invalid_entries(&spec)
        .into_iter()
        .map(|entry| format!("{}: {}; {}", entry.field, entry.reason, entry.effect))
        .collect();
    assert_eq!(
        found,
        [
            "sandboxPolicy.maxCPU: `lots` is not an amount such as `2`, `200m` or `256Mi`; it allows nothing",
            "sandboxPolicy.maxMemory: `1GB` is not an amount such as `2`, `200m` or `256Mi`; it allows nothing",
            "sandboxPolicy.seccompProfile: it is not a filter; `RuntimeDefault` is one; it allows nothing",
            "featureGates.browser: there is no such feature; there are `code-execution`, `sub-agents`, `browser-automation` and `file-access`; every run under the policy is denied",
            "featureGates.files: there is no such feature; there are `code-execution`, `sub-agents`, `browser-automation` and `file-access`; it opens nothing",
            "networkPolicy.allowedEgress[1]: `127.1` looks like an address but is none; write four decimal numbers; it allows nothing",
            "imagePolicy.allowedRegistries[0]: `acme` does not begin with a registry's host; images of Docker Hub are below `docker.io/`; it allows nothing",
            "imagePolicy.allowedRegistries[2]: `*` does not begin with a registry's host; images of Docker Hub are below `docker.io/`; it allows nothing",
        ]
    );
    let policy = EffectivePolicy::from_named(&spec, SYSTEM_NAMESPACE);
    assert_eq!(policy.isolation.max_cpu, Some(crate::quantity::ExactQuantity::ZERO));
    assert_eq!(policy.isolation.seccomp, Allowed::none());
    assert_eq!(policy.registries.quote_members(), "`ghcr.io/ok`");
}

#[test]
fn the_named_policy_fills_in_before_the_floor() {
    let spec = |class: &str, image: Option<&str>| -> SympoziumPolicySpec {
        serde_json::from_value(json!({ "sandboxPolicy": {
            "defaultImage": image, "agentSandboxPolicy": { "defaultRuntimeClass": class },
        } }))
        .expect("a policy")
    };
    let defaults = PolicyDefaults::from_specs(Some(&spec("kata", Some("a.io/b"))), Some(&spec("gvisor", None)));
    let expected =
        PolicyDefaults { sandbox_image: Some("a.io/b".into()), runtime_class: Some("gvisor".into()), seccomp: None };
    assert_eq!(defaults, expected);
}
