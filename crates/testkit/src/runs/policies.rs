//! The policies of generated runs: most of them open what the run wants.

use serde_json::{Value, json};

use super::{Dice, NAMESPACE, OTHER_SERVICE, OWN_MODEL, Pack, SYSTEM_NAMESPACE, Wanted, object};

pub fn policy(dice: &mut Dice, packs: &[Pack], wanted: &Wanted) -> Value {
    let mut spec = json!({});
    if dice.one_in(2) {
        let mut rules = vec![json!({ "tool": "execute_command", "action": dice.of(&["ask", "deny", "allow"]) })];
        if let Some(pack) = packs.first().filter(|_| dice.one_in(2)) {
            let pack = if dice.one_in(2) { pack.name.clone() } else { format!("{}/{}", pack.namespace, pack.name) };
            rules.push(json!({ "tool": format!("{pack}/*"), "action": dice.of(&["ask", "allow"]) }));
        }
        spec["toolGating"] = json!({ "defaultAction": dice.of(&["allow", "ask"]), "rules": rules });
    }
    if dice.one_in(3) {
        spec["featureGates"] = json!({ dice.of(&["file-access", "sub-agents"]): false });
    }
    if wanted.address || dice.one_in(2) {
        let (host, port) = OWN_MODEL;
        spec["networkPolicy"] = json!({ "denyAll": dice.one_in(2), "allowedEgress": [
            { "host": "api.github.com" }, { "host": "*.example.com" }, { "host": "example.org", "port": 5432 },
            { "host": "db.team.svc", "port": 5432 }, { "host": host, "port": port },
            { "host": OTHER_SERVICE.0, "port": OTHER_SERVICE.1 },
        ] });
    }
    if dice.one_in(3) {
        spec["approvalPolicy"] =
            json!({ "approvers": [{ "kind": "Group", "name": "sre" }], "expiresAfterSeconds": 60 });
    }
    if dice.one_in(3) {
        spec["sandboxPolicy"]["seccompProfile"] = dice.value(&[
            json!({ "type": "RuntimeDefault" }),
            json!({ "type": "Localhost", "localhostProfile": "profiles/run.json" }),
        ]);
    }
    if wanted.attested {
        spec["sandboxPolicy"]["minimumIsolation"] = json!(["network", "syscalls"]);
    } else if wanted.kernel && dice.one_in(2) {
        spec["sandboxPolicy"]["minimumIsolation"] = json!(["kernel"]);
    }
    if dice.one_in(3) {
        spec["sandboxPolicy"]["maxCPU"] = json!("4");
        spec["sandboxPolicy"]["maxMemory"] = json!("4Gi");
    }
    if dice.one_in(4) {
        spec["subagentPolicy"] = json!({ "maxDepth": 2, "maxConcurrent": 3 });
    }
    if wanted.model && !dice.one_in(8) {
        spec["modelPolicy"] = json!({ "allowedNamespaces": [NAMESPACE] });
    }
    if dice.one_in(4) {
        spec["modelPolicy"]["allowedModels"] = json!(["m", "turns", "served"]);
    }
    if dice.one_in(3) {
        spec["imagePolicy"] = json!({ "allowedRegistries": ["ghcr.io/example", "docker.io/library"] });
    }
    if dice.one_in(4) {
        let names: Vec<String> = packs.iter().map(|it| it.reference(dice)).collect();
        spec["packPolicy"] = json!({ "allowedPacks": names });
    }
    // Now and then it is not opened, or not all of it.
    if wanted.node && !dice.one_in(12) {
        spec["sandboxPolicy"]["allowHostMounts"] = json!(true);
        spec["hostAccessPolicy"] = node_powers();
        spec["hostAccessPolicy"]["hostNetwork"] = json!(!dice.one_in(12));
        if dice.one_in(2) {
            let names: Vec<String> = packs.iter().map(|it| it.reference(dice)).collect();
            spec["hostAccessPolicy"]["packs"] = json!(names);
        }
    }
    spec
}

pub fn floor(dice: &mut Dice, wanted: &Wanted) -> Value {
    let mut floor = object("SympoziumPolicy", "floor", json!({}));
    floor["metadata"]["namespace"] = json!(SYSTEM_NAMESPACE);
    let spec = &mut floor["spec"];
    // Now and then it does not trust the namespace.
    if !dice.one_in(16) {
        spec["rbacPolicy"] = json!({ "clusterRBACNamespaces": [NAMESPACE] });
    }
    if wanted.attested && dice.one_in(2) {
        spec["sandboxPolicy"] = json!({ "minimumIsolation": ["filesystem", "network"], "allowHostMounts": true });
    }
    if wanted.node && !dice.one_in(12) {
        spec["hostAccessPolicy"] = node_powers();
        spec["hostAccessPolicy"]["namespaces"] = json!([NAMESPACE]);
    }
    floor
}

/// Everything of the node that packs ask for here.
fn node_powers() -> Value {
    json!({
        "hostNetwork": true, "hostPID": true, "privileged": true, "runAsRoot": true,
        "allowedHostPaths": [
            { "pathPrefix": "/srv", "readOnly": false }, { "pathPrefix": "/var/log" },
        ],
    })
}
