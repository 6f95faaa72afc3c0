//! Permissions at the Kubernetes API.

use serde_json::{Value, json};

use super::walk::{Untraced, Walk, demand, list, text};

const EXCEPTIONS: &str = "/spec/rbacPolicy/exceptions";

/// What may be read without consent, by group. Separate from the product's own table, so that a mistake in one of the
/// two is noticed.
const READABLE: &[(&str, &str)] = &[
    (
        "",
        "configmaps endpoints events namespaces nodes persistentvolumeclaims persistentvolumes pods pods/log pods/status services",
    ),
    ("apps", "daemonsets deployments deployments/scale replicasets statefulsets"),
    ("batch", "cronjobs jobs"),
];
/// What may also be written without consent, in one namespace.
const SCALABLE: &[(&str, &str)] = &[("apps", "deployments/scale")];
/// Of what needs consent, resources of the core group that lead to further permissions, whatever the verb.
const ESCALATING: &[&str] = &["secrets", "pods/exec", "pods/attach", "pods/portforward"];

/// One verb on one resource of one group, for all objects or for those of some names.
struct Permission<'r> {
    group: &'r str,
    resource: &'r str,
    verb: &'r str,
    names: &'r [Value],
}

impl<'r> Permission<'r> {
    /// Expands a rule.
    fn all(rule: &'r Value) -> Result<Vec<Self>, Untraced> {
        let mut rights = Vec::new();
        for group in list(&rule["apiGroups"]) {
            for resource in list(&rule["resources"]) {
                rights.extend(list(&rule["verbs"]).iter().map(|verb| Self {
                    group: text(group),
                    resource: text(resource),
                    verb: text(verb),
                    names: list(&rule["resourceNames"]),
                }));
            }
        }
        demand(!rights.is_empty(), || format!("{rule}, which is no right"))?;
        Ok(rights)
    }

    fn is_harmless(&self, in_cluster: bool) -> bool {
        let is_of = |table: &[(&str, &str)]| {
            let mut rows = table.iter().filter(|(group, _)| *group == self.group);
            rows.any(|(_, resources)| resources.split(' ').any(|resource| resource == self.resource))
        };
        match self.verb {
            "get" | "list" | "watch" => is_of(READABLE),
            "patch" | "update" => is_of(SCALABLE) && !in_cluster,
            _ => false,
        }
    }

    /// Whether the policy must except it too, not the floor alone.
    fn escalates(&self) -> bool {
        let is_wildcard = [self.group, self.resource, self.verb].iter().any(|word| word.contains('*'));
        is_wildcard || (self.group.is_empty() && ESCALATING.contains(&self.resource))
    }

    /// Whether one of these rules includes it.
    fn is_in(&self, rules: &Value) -> bool {
        let has = |words: &Value, word: &str| list(words).iter().any(|listed| listed == word || listed == "*");
        list(rules).iter().any(|rule| {
            let names = list(&rule["resourceNames"]);
            let has_names =
                names.is_empty() || (!self.names.is_empty() && self.names.iter().all(|name| names.contains(name)));
            has(&rule["apiGroups"], self.group)
                && has(&rule["resources"], self.resource)
                && has(&rule["verbs"], self.verb)
                && has_names
        })
    }
}

impl std::fmt::Display for Permission<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the right to {} {}/{}", self.verb, self.group, self.resource)
    }
}

impl Walk<'_> {
    /// Rules are those of the pack or the hooks. In the namespace of the run their author is unknown: the floor trusts
    /// it, or they have none. What is not known to be harmless is excepted, and everything is within every ceiling.
    pub fn permissions(&mut self) -> Result<(), Untraced> {
        for identity in list(&self.plan["identities"]) {
            let (object, own, cluster) = match identity["pack"].as_str() {
                Some(pack) => {
                    let sidecar = "/spec/sidecar";
                    let fields = (format!("{sidecar}/rbac"), format!("{sidecar}/clusterRBAC"));
                    (self.pack(pack)?, fields.0, fields.1)
                }
                None => {
                    let (object, lifecycle) = self.hooks();
                    (object, format!("{lifecycle}/rbac"), String::new())
                }
            };
            let consent = "/spec/rbacPolicy/clusterRBACNamespaces";
            let trusted = list(self.get(self.floor, consent)).contains(&json!(self.namespace()));
            let of_system = identity["pack"].is_string() && self.is_of_system(object);
            for (rules, field) in [("namespaceRules", &own), ("clusterRules", &cluster)] {
                for rule in list(&identity[rules]) {
                    let written = self.get(object, field);
                    demand(list(written).contains(rule), || format!("the right {rule}"))?;
                    self.by(object, field.clone());
                    for right in Permission::all(rule)? {
                        let is_harmless = right.is_harmless(rules == "clusterRules");
                        if !is_harmless {
                            self.except(&right)?;
                        }
                        self.bound(&right, identity["pack"].is_null())?;
                    }
                    if !of_system || rules == "clusterRules" {
                        demand(trusted, || format!("the right {rule} of an unknown author"))?;
                        self.by(self.floor, consent);
                    }
                }
            }
            let parts = list(&self.plan["parts"]).iter();
            for part in parts.filter(|part| part["identity"] == identity["name"]) {
                let holder = match text(&part["role"]["kind"]) {
                    "skill" => part["role"]["pack"] == identity["pack"],
                    "preRun" | "postRun" => identity["pack"].is_null(),
                    _ => false,
                };
                demand(holder, || format!("{} is {}", part["name"], identity["name"]))?;
            }
        }
        let known = |name: &Value| list(&self.plan["identities"]).iter().any(|identity| identity["name"] == *name);
        let mut parts = list(&self.plan["parts"]).iter();
        let stranger = parts.find(|part| part["identity"].is_string() && !known(&part["identity"]));
        demand(stranger.is_none(), || format!("an unknown identity: {stranger:?}"))
    }

    /// That a right which is not known to be harmless is an exception of the floor, and one from which others follow also of the policy.
    fn except(&mut self, right: &Permission<'_>) -> Result<(), Untraced> {
        if right.escalates() {
            demand(right.is_in(self.get(self.policy, EXCEPTIONS)), || {
                format!("{right}, which the policy does not except")
            })?;
            self.by(self.policy, EXCEPTIONS);
        }
        let consents = self.get(self.floor, EXCEPTIONS);
        demand(right.is_in(consents), || format!("{right}, to which the floor does not consent"))?;
        self.by(self.floor, EXCEPTIONS);
        Ok(())
    }

    /// A permission is within the ceilings, and hooks have none that policies deny to them.
    fn bound(&mut self, right: &Permission<'_>, is_of_hooks: bool) -> Result<(), Untraced> {
        for policy in [self.policy, self.floor] {
            let field = "/spec/rbacPolicy/ceiling";
            let ceiling = self.get(policy, field);
            if ceiling.is_array() {
                demand(right.is_in(ceiling), || format!("{right}, beyond the ceiling"))?;
                self.by(policy, field);
            }
            let denied = list(self.get(policy, "/spec/lifecyclePolicy/deniedResources"));
            let main = right.resource.split('/').next();
            let is_denied = denied.iter().any(|resource| resource == right.resource || resource.as_str() == main);
            demand(!is_of_hooks || !is_denied, || format!("{right}, denied to hooks"))?;
        }
        Ok(())
    }
}
