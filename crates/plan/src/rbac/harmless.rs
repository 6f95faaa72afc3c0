//! Permissions that are known to be harmless. All others need consent.
//!
//! A list of dangerous permissions is never complete: every API that is installed brings kinds whose controllers act
//! with permissions of their own. So this list names what is harmless, and [`escalations`] explains for some of the
//! rest why it is not.

use std::collections::BTreeMap;

use super::{Escalation, Rule, Scope, escalations};

/// The harmless verbs on a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VerbSet {
    /// `get`, `list` and `watch`.
    Read,
    /// The same, and setting the number of replicas. Only in one namespace: across the cluster it can stop the work of
    /// others.
    Scale,
}

impl VerbSet {
    /// The verbs that are harmless in this scope.
    const fn harmless_verbs(self, scope: Scope) -> &'static [&'static str] {
        match (self, scope) {
            (Self::Scale, Scope::Namespace) => &["get", "list", "watch", "update", "patch"],
            (Self::Read, _) | (Self::Scale, Scope::Cluster) => &READ_VERBS,
        }
    }
}

/// The verbs that change nothing.
const READ_VERBS: [&str; 3] = ["get", "list", "watch"];

/// Whether a rule allows only reads. `get` on `pods/exec` runs commands, `get` on a proxy sends requests, and a
/// wildcard includes both.
pub fn is_read_only(rule: &Rule) -> bool {
    use Escalation::{PodAccess, Proxy, Wildcard};
    let acts = |kind: &Escalation| matches!(kind, PodAccess | Proxy | Wildcard);
    rule.verbs.iter().all(|verb| READ_VERBS.contains(&verb.as_str()))
        && !escalations(rule).iter().any(|(kind, _)| acts(kind))
}

/// Group, resources and the harmless verbs on them.
///
/// Reads are those of the ClusterRole `view` of Kubernetes: ordinary objects of a namespace, no Secrets, no RBAC
/// objects. In addition there are nodes, volumes, storage classes and metrics, which the packs that we ship read, and
/// `scale`.
const HARMLESS_RESOURCES: &[(&str, &[&str], VerbSet)] = &[
    (
        "",
        &[
            "configmaps",
            "endpoints",
            "events",
            "limitranges",
            "namespaces",
            "namespaces/status",
            "nodes",
            "nodes/status",
            "persistentvolumeclaims",
            "persistentvolumeclaims/status",
            "persistentvolumes",
            "persistentvolumes/status",
            "pods",
            "pods/log",
            "pods/status",
            "podtemplates",
            "replicationcontrollers",
            "replicationcontrollers/status",
            "resourcequotas",
            "resourcequotas/status",
            "serviceaccounts",
            "services",
            "services/status",
        ],
        VerbSet::Read,
    ),
    ("", &["replicationcontrollers/scale"], VerbSet::Scale),
    (
        "apps",
        &[
            "controllerrevisions",
            "daemonsets",
            "daemonsets/status",
            "deployments",
            "deployments/status",
            "replicasets",
            "replicasets/status",
            "statefulsets",
            "statefulsets/status",
        ],
        VerbSet::Read,
    ),
    ("apps", &["deployments/scale", "replicasets/scale", "statefulsets/scale"], VerbSet::Scale),
    ("autoscaling", &["horizontalpodautoscalers", "horizontalpodautoscalers/status"], VerbSet::Read),
    ("batch", &["cronjobs", "cronjobs/status", "jobs", "jobs/status"], VerbSet::Read),
    ("discovery.k8s.io", &["endpointslices"], VerbSet::Read),
    ("events.k8s.io", &["events"], VerbSet::Read),
    ("metrics.k8s.io", &["nodes", "pods"], VerbSet::Read),
    ("networking.k8s.io", &["ingressclasses", "ingresses", "ingresses/status", "networkpolicies"], VerbSet::Read),
    ("policy", &["poddisruptionbudgets", "poddisruptionbudgets/status"], VerbSet::Read),
    ("storage.k8s.io", &["storageclasses", "volumeattachments"], VerbSet::Read),
];

/// The harmless permissions as rules: what an author is assumed to hold when nothing is known about them.
pub fn harmless_rules(scope: Scope) -> Vec<Rule> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let classes = HARMLESS_RESOURCES.iter();
    classes
        .map(|(group, resources, verbs)| Rule {
            api_groups: words(&[group]),
            resources: words(resources),
            verbs: words(verbs.harmless_verbs(scope)),
            ..Rule::default()
        })
        .collect()
}

/// The permissions of a rule that are neither known to be harmless nor escalations, which are denied separately: one
/// rule for each group and resource, with all of its verbs.
///
/// Wildcards are escalations. So every right of every rule is harmless, or here, or in [`escalations`].
pub fn unlisted_rules(rule: &Rule, scope: Scope) -> Vec<Rule> {
    let mut found: BTreeMap<(&str, &str), Rule> = BTreeMap::new();
    for group in &rule.api_groups {
        for resource in &rule.resources {
            for verb in &rule.verbs {
                let right = Rule {
                    api_groups: vec![group.clone()],
                    resources: vec![resource.clone()],
                    verbs: vec![verb.clone()],
                    resource_names: rule.resource_names.clone(),
                    non_resource_urls: Vec::new(),
                };
                if is_harmless(group, resource, verb, scope) || !escalations(&right).is_empty() {
                    continue;
                }
                let known = found.entry((group, resource));
                let known = known.or_insert_with(|| Rule { verbs: Vec::new(), ..right });
                if !known.verbs.contains(verb) {
                    known.verbs.push(verb.clone());
                }
            }
        }
    }
    found.into_values().collect()
}

fn is_harmless(group: &str, resource: &str, verb: &str, scope: Scope) -> bool {
    let mut classes = HARMLESS_RESOURCES.iter();
    classes.any(|(known, resources, verbs)| {
        *known == group && resources.contains(&resource) && verbs.harmless_verbs(scope).contains(&verb)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rbac::{find_uncovered, resource_covers, word_covers};

    fn right(group: &str, resource: &str, verb: &str) -> Rule {
        Rule {
            api_groups: vec![group.to_owned()],
            resources: vec![resource.to_owned()],
            verbs: vec![verb.to_owned()],
            ..Rule::default()
        }
    }

    #[test]
    fn what_reviews_found_is_not_harmless() {
        for (group, resource, verb) in [
            ("node.k8s.io", "runtimeclasses", "create"),
            ("node.k8s.io", "runtimeclasses", "get"),
            ("discovery.k8s.io", "endpointslices", "create"),
            ("discovery.k8s.io", "endpointslices", "patch"),
            ("", "endpoints", "update"),
            ("", "services", "create"),
            ("", "services", "patch"),
            ("", "services/status", "patch"),
            ("coordination.k8s.io", "leases", "get"),
            ("coordination.k8s.io", "leases", "update"),
            ("argoproj.io", "workflows", "create"),
            ("argoproj.io", "workflows", "get"),
            ("tekton.dev", "pipelineruns", "create"),
            ("serving.knative.dev", "services", "create"),
            ("kubevirt.io", "virtualmachines", "patch"),
            ("cert-manager.io", "certificates", "list"),
            ("networking.k8s.io", "ingresses", "create"),
            ("gateway.networking.k8s.io", "httproutes", "patch"),
            ("", "configmaps", "update"),
            ("", "persistentvolumeclaims", "delete"),
            ("", "serviceaccounts", "create"),
            ("", "events", "create"),
            ("", "resourcequotas", "patch"),
            ("autoscaling", "horizontalpodautoscalers", "patch"),
            ("policy", "poddisruptionbudgets", "delete"),
            ("scheduling.k8s.io", "priorityclasses", "create"),
            ("storage.k8s.io", "storageclasses", "create"),
            ("resource.k8s.io", "resourceclaims", "create"),
            ("rbac.authorization.k8s.io", "roles", "list"),
            ("apiextensions.k8s.io", "customresourcedefinitions", "get"),
            ("", "nodes/metrics", "get"),
            ("", "nodes/log", "get"),
            ("apps", "daemonsets/scale", "patch"),
            ("apps", "deployments/scale", "delete"),
            ("apps", "pods", "get"),
            ("", "deployments", "get"),
            ("", "Pods", "get"),
            ("", "events", "GET"),
            ("", "events", "use"),
            ("", "", "get"),
        ] {
            let asked = right(group, resource, verb);
            for scope in [Scope::Namespace, Scope::Cluster] {
                assert_eq!(unlisted_rules(&asked, scope), std::slice::from_ref(&asked), "{asked} {scope:?}");
            }
        }
    }

    #[test]
    fn reading_and_scaling_are_harmless() {
        for (group, resource, verb) in [
            ("", "pods", "get"),
            ("", "pods/log", "get"),
            ("", "configmaps", "list"),
            ("", "nodes", "watch"),
            ("apps", "deployments", "list"),
            ("discovery.k8s.io", "endpointslices", "watch"),
            ("metrics.k8s.io", "pods", "get"),
        ] {
            let asked = right(group, resource, verb);
            for scope in [Scope::Namespace, Scope::Cluster] {
                assert_eq!(unlisted_rules(&asked, scope), [], "{asked} {scope:?}");
            }
        }
        let scale = right("apps", "deployments/scale", "patch");
        assert_eq!(unlisted_rules(&scale, Scope::Namespace), []);
        // A user who scales everything to zero stops the work of every team.
        assert_eq!(unlisted_rules(&scale, Scope::Cluster), [scale]);
    }

    #[test]
    fn no_class_is_both_harmless_and_an_escalation() {
        let mut groups: Vec<_> = HARMLESS_RESOURCES.iter().map(|(group, _, _)| *group).collect();
        assert!(groups.is_sorted());
        groups.dedup();
        for (group, resources, verbs) in HARMLESS_RESOURCES {
            assert!(resources.is_sorted(), "{group}");
            let all = match verbs {
                VerbSet::Read => &["get", "list", "watch"][..],
                VerbSet::Scale => &["get", "list", "watch", "update", "patch"],
            };
            for resource in *resources {
                for verb in all {
                    let right = right(group, resource, verb);
                    assert_eq!(escalations(&right), [], "{right}");
                    assert_eq!(unlisted_rules(&right, Scope::Namespace), [], "{right}");
                }
            }
        }
    }

    fn any_word(known: &'static [&'static str]) -> impl Strategy<Value = String> {
        prop_oneof![
            4 => prop::sample::select(known).prop_map(str::to_owned),
            1 => "[a-z*/.]{0,12}",
        ]
    }

    fn any_rule() -> impl Strategy<Value = Rule> {
        let some = |known| prop::collection::vec(any_word(known), 1..4);
        let groups = &["", "apps", "batch", "*", "example.com", "node.k8s.io"];
        let resources = &["pods", "*", "*/scale", "pods/*", "deployments/scale", "secrets", "widgets"];
        let verbs = &["get", "list", "watch", "patch", "create", "*", "approve"];
        (some(groups), some(resources), some(verbs)).prop_map(|(api_groups, resources, verbs)| Rule {
            api_groups,
            resources,
            verbs,
            ..Rule::default()
        })
    }

    proptest! {
        /// A permission that is not in the table is returned as unlisted or as an escalation, and one with a `*`, which
        /// covers every permission, always is.
        #[test]
        fn nothing_outside_of_the_table_passes(rule in any_rule(), cluster in any::<bool>()) {
            let scope = if cluster { Scope::Cluster } else { Scope::Namespace };
            let refused: Vec<Rule> = unlisted_rules(&rule, scope)
                .into_iter()
                .chain(escalations(&rule).into_iter().map(|(_, right)| right))
                .collect();
            for group in &rule.api_groups {
                for resource in &rule.resources {
                    for verb in &rule.verbs {
                        let is_refused = refused.iter().any(|unlisted_rule| {
                            unlisted_rule.api_groups.contains(group)
                                && unlisted_rule.resources.contains(resource)
                                && unlisted_rule.verbs.contains(verb)
                        });
                        let is_listed = HARMLESS_RESOURCES.iter().any(|(known, resources, verbs)| {
                            let reads = ["get", "list", "watch"].contains(&verb.as_str());
                            let scales = *verbs == VerbSet::Scale
                                && !cluster
                                && ["update", "patch"].contains(&verb.as_str());
                            known == group && resources.contains(&resource.as_str()) && (reads || scales)
                        });
                        prop_assert_eq!(is_refused, !is_listed, "{} {} {}", group, resource, verb);
                    }
                }
            }
        }

        /// An author who holds the harmless permissions can grant what needs no consent, and nothing else.
        #[test]
        fn what_is_harmless_covers_what_needs_no_consent(rule in any_rule(), cluster in any::<bool>()) {
            let scope = if cluster { Scope::Cluster } else { Scope::Namespace };
            let needs_none = unlisted_rules(&rule, scope).is_empty() && escalations(&rule).is_empty();
            let is_covered = find_uncovered(&harmless_rules(scope), &rule) == Ok(None);
            prop_assert_eq!(is_covered, needs_none, "{}", rule);
        }

        /// What a rule covers decides, not how it is written: if it covers a permission outside of the table, it does
        /// not pass.
        #[test]
        fn wildcards_stand_for_everything(rule in any_rule(), other in any_rule()) {
            let stands = |held: &[String], asked: &[String], is: fn(&str, &str) -> bool| {
                asked.iter().any(|asked| held.iter().any(|held| is(held, asked)))
            };
            let passes = |rule: &Rule| {
                unlisted_rules(rule, Scope::Namespace).is_empty() && escalations(rule).is_empty()
            };
            for asked in unlisted_rules(&other, Scope::Namespace) {
                let covers = stands(&rule.api_groups, &asked.api_groups, word_covers)
                    && stands(&rule.resources, &asked.resources, resource_covers)
                    && stands(&rule.verbs, &asked.verbs, word_covers);
                prop_assert!(!(covers && passes(&rule)), "{} passes, and covers {}", rule, asked);
            }
        }
    }

    #[test]
    fn what_acts_by_get_is_no_reading() {
        for (group, resource, verb, expected) in [
            ("", "configmaps", "get", true),
            ("", "secrets", "list", true),
            ("example.com", "widgets", "watch", true),
            ("", "configmaps", "patch", false),
            ("", "pods/exec", "get", false),
            ("", "pods/portforward", "get", false),
            ("", "nodes/proxy", "get", false),
            ("*", "widgets", "get", false),
            ("", "*", "get", false),
            ("", "pods", "*", false),
        ] {
            let asked = right(group, resource, verb);
            assert_eq!(is_read_only(&asked), expected, "{asked}");
        }
    }

    #[test]
    fn a_wildcard_is_an_escalation_and_named_once() {
        let all = right("*", "*", "*");
        assert_eq!(unlisted_rules(&all, Scope::Namespace), []);
        assert_eq!(escalations(&all), [(Escalation::Wildcard, all.clone())]);
    }
}
