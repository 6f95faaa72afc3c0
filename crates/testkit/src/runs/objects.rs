//! The objects of a generated run, by what they are.

use serde_json::{Value, json};

use super::{Dice, NAMESPACE};

/// The objects of a run while they are changed.
pub struct Objects<'o>(pub &'o mut Vec<Value>);

impl Objects<'_> {
    /// The spec of the run.
    pub fn run(&mut self) -> &mut Value {
        &mut self.0[0]["spec"]
    }

    /// The spec of its agent.
    pub fn agent(&mut self) -> &mut Value {
        &mut self.0[1]["spec"]
    }

    /// The spec of the policy that the agent names.
    pub fn policy(&mut self) -> &mut Value {
        self.policy_where(|name| name != "floor")
    }

    /// The spec of the floor.
    pub fn floor(&mut self) -> &mut Value {
        self.policy_where(|name| name == "floor")
    }

    fn policy_where(&mut self, is: impl Fn(&str) -> bool) -> &mut Value {
        let found = self.0.iter_mut().find(|object| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            object["kind"] == "SympoziumPolicy" && is(name)
        });
        match found {
            Some(found) => &mut found["spec"],
            None => unreachable!("a generated run has a policy and a floor"),
        }
    }

    /// Packs with a sidecar: only those have a part in the plan.
    pub fn packs(&mut self) -> impl Iterator<Item = &mut Value> {
        let is = |it: &&mut Value| it["kind"] == "SkillPack" && it["spec"].get("sidecar").is_some();
        self.0.iter_mut().filter(is)
    }

    /// Their sidecars.
    pub fn sidecars(&mut self) -> impl Iterator<Item = &mut Value> {
        self.packs().map(|it| &mut it["spec"]["sidecar"])
    }

    /// The first sidecar.
    pub fn sidecar(&mut self) -> Option<&mut Value> {
        self.sidecars().next()
    }

    /// The first sidecar of a pack of this namespace.
    pub fn sidecar_in(&mut self, namespace: &str) -> Option<&mut Value> {
        let mut packs = self.packs();
        let found = packs.find(|it| it["metadata"]["namespace"] == namespace);
        found.map(|it| &mut it["spec"]["sidecar"])
    }

    /// The hooks: the run's own, or else the agent's.
    pub fn hooks(&mut self) -> Option<&mut Value> {
        let own = self.0[0]["spec"].get("lifecycle").is_some();
        if own { self.run().get_mut("lifecycle") } else { self.agent().pointer_mut("/agents/default/lifecycle") }
    }

    /// The first hook, before the run or after it.
    pub fn hook(&mut self) -> Option<&mut Value> {
        let hooks = self.hooks()?;
        let mut lists = ["preRun", "postRun"].into_iter();
        let list = lists.find(|it| hooks[*it].is_array())?;
        hooks[list].get_mut(0)
    }

    /// Takes all rights from packs and hooks.
    pub fn clear_rights(&mut self) {
        for sidecar in self.sidecars() {
            remove(sidecar, &["rbac", "clusterRBAC"]);
        }
        if let Some(hooks) = self.hooks() {
            remove(hooks, &["rbac"]);
        }
    }

    /// Takes both sandboxes from the run.
    pub fn clear_sandboxes(&mut self) {
        remove(self.run(), &["sandbox", "agentSandbox"]);
    }

    /// Lets the policies reach a host: the floor too, if it has a say.
    pub fn open_host(&mut self, host: &str, port: u16) {
        let egress = json!({ "host": host, "port": port });
        let policy = self.policy();
        if policy.get("networkPolicy").is_none() {
            policy["networkPolicy"] = json!({ "denyAll": false, "allowedEgress": [] });
        }
        push(&mut policy["networkPolicy"], "allowedEgress", egress.clone());
        if let Some(network) = self.floor().get_mut("networkPolicy") {
            push(network, "allowedEgress", egress);
        }
    }

    /// Gives the first sidecar access to the node, and lets both policies give it to every pack of the run.
    pub fn open_node(&mut self) -> Option<()> {
        let powers = json!({
            "hostNetwork": true, "hostPID": true, "privileged": true, "runAsRoot": true,
            "allowedHostPaths": [{ "pathPrefix": "/srv", "readOnly": false }, { "pathPrefix": "/var/log" }],
        });
        let policy = self.policy();
        policy["hostAccessPolicy"] = powers.clone();
        policy["sandboxPolicy"]["allowHostMounts"] = json!(true);
        let floor = self.floor();
        floor["hostAccessPolicy"] = powers;
        floor["hostAccessPolicy"]["namespaces"] = json!([NAMESPACE]);
        floor["sandboxPolicy"]["allowHostMounts"] = json!(true);
        self.sidecar()?["hostAccess"] = json!({
            "enabled": true, "mounts": [{ "hostPath": "/var/log", "mountPath": "/host/log" }],
        });
        Some(())
    }
}

/// Takes fields away.
pub fn remove(object: &mut Value, fields: &[&str]) {
    if let Some(object) = object.as_object_mut() {
        object.retain(|field, _| !fields.contains(&field.as_str()));
    }
}

/// Adds to a list, which is made where it is missing.
pub fn push(object: &mut Value, list: &str, item: Value) {
    if !object[list].is_array() {
        object[list] = json!([]);
    }
    if let Some(list) = object[list].as_array_mut() {
        list.push(item);
    }
}

/// One right at the Kubernetes API.
pub fn right(group: &str, resource: &str, verb: &str) -> Value {
    json!({ "apiGroups": [group], "resources": [resource], "verbs": [verb] })
}

/// One of these rights.
pub fn any_right(dice: &mut Dice, rights: &[(&str, &str, &str)]) -> Value {
    let (group, resource, verb) = rights[dice.below(rights.len())];
    right(group, resource, verb)
}
