//! What only some runs have: rights beyond reading, with and without consent; ceilings; and a floor that bounds more than rights
//! and the node.

use serde_json::{Value, json};

use super::objects::{Objects, any_right, push};
use super::{Dice, NAMESPACE, OTHER_SERVICE, OWN_MODEL, SYSTEM_NAMESPACE};

/// Rights that are more than reading ordinary objects. Of them only the last needs no consent.
const BEYOND_READING: &[(&str, &str, &str)] = &[
    ("", "secrets", "get"),
    ("", "pods/exec", "create"),
    ("", "services", "create"),
    ("node.k8s.io", "runtimeclasses", "get"),
    ("apps", "deployments/scale", "patch"),
];

/// Changes some of the objects of a run. Most runs that were admitted still are.
pub fn vary(objects: &mut Vec<Value>, dice: &mut Dice) {
    let mut objects = Objects(objects);
    grant(&mut objects, dice);
    bound_rights(&mut objects, dice);
    bound_by_floor(&mut objects, dice);
    shadow(&mut objects, dice);
    if dice.one_in(6) {
        let image = json!("ghcr.io/example/sandbox:1");
        objects.policy()["sandboxPolicy"]["defaultImage"] = image;
    }
}

/// Gives packs and hooks rights beyond reading, most of which the policies except.
fn grant(objects: &mut Objects<'_>, dice: &mut Dice) {
    let mut granted = Vec::new();
    for sidecar in objects.sidecars() {
        if dice.one_in(6) {
            let right = any_right(dice, BEYOND_READING);
            let field = if dice.one_in(4) { "clusterRBAC" } else { "rbac" };
            push(sidecar, field, right.clone());
            granted.push(right);
        }
    }
    if let Some(hooks) = objects.hooks().filter(|_| dice.one_in(12)) {
        let right = any_right(dice, BEYOND_READING);
        push(hooks, "rbac", right.clone());
        granted.push(right);
    }
    // Consent of one of the two is enough for some of the rights and not for others.
    let (by_policy, by_floor) = match dice.below(6) {
        0 => (false, true),
        1 => (true, false),
        _ => (true, true),
    };
    for right in granted {
        if by_policy {
            push(&mut objects.policy()["rbacPolicy"], "exceptions", right.clone());
        }
        if by_floor {
            push(&mut objects.floor()["rbacPolicy"], "exceptions", right);
        }
    }
}

/// Bounds rights: with a ceiling that has most of what runs ask for here, and with resources that hooks may not touch.
fn bound_rights(objects: &mut Objects<'_>, dice: &mut Dice) {
    if dice.one_in(6) {
        let mut ceiling = vec![
            json!({ "apiGroups": [""], "resources": ["pods", "services", "events", "configmaps", "pods/log", "nodes"], "verbs": ["get", "list"] }),
        ];
        let beyond = BEYOND_READING.iter().filter(|_| !dice.one_in(6));
        ceiling.extend(beyond.map(|(group, resource, verb)| super::objects::right(group, resource, verb)));
        bounding(objects, dice)["rbacPolicy"]["ceiling"] = json!(ceiling);
    }
    if dice.one_in(6) {
        let denied = if dice.one_in(4) { json!(["secrets", "configmaps"]) } else { json!(["secrets", "nodes"]) };
        bounding(objects, dice)["lifecyclePolicy"] = json!({ "deniedResources": denied });
    }
}

/// The policy, or the floor.
fn bounding<'o>(objects: &'o mut Objects<'_>, dice: &mut Dice) -> &'o mut Value {
    if dice.one_in(2) { objects.floor() } else { objects.policy() }
}

/// Lets the floor bound what is the policy's to open: hosts, models, images, packs, tools.
fn bound_by_floor(objects: &mut Objects<'_>, dice: &mut Dice) {
    let names: Vec<String> = objects.0.iter().filter(|it| it["kind"] == "SkillPack").map(qualified).collect();
    let floor = objects.floor();
    if dice.one_in(6) {
        let (host, port) = OWN_MODEL;
        floor["networkPolicy"] = json!({ "denyAll": dice.one_in(2), "allowedEgress": [
            { "host": "api.github.com" }, { "host": "*.example.com" }, { "host": "example.org", "port": 5432 },
            { "host": host, "port": port }, { "host": OTHER_SERVICE.0, "port": OTHER_SERVICE.1 },
        ] });
    }
    if dice.one_in(6) {
        floor["modelPolicy"]["allowedModels"] = json!(["m", "turns", "served"]);
    }
    if dice.one_in(4) {
        floor["modelPolicy"]["allowedNamespaces"] = json!([NAMESPACE]);
    }
    if dice.one_in(6) {
        floor["imagePolicy"] = json!({ "allowedRegistries": ["ghcr.io/example", "docker.io/library"] });
    }
    if dice.one_in(6) {
        floor["packPolicy"] = json!({ "allowedPacks": names });
    }
    if dice.one_in(8) {
        floor["featureGates"] = json!({ "file-access": false });
    }
    if dice.one_in(8) {
        let rule = json!({ "tool": dice.of(&["write_file", "fetch_url"]), "action": dice.of(&["ask", "deny"]) });
        floor["toolGating"] = json!({ "defaultAction": "allow", "rules": [rule] });
    }
}

fn qualified(pack: &Value) -> String {
    let text = |field: &str| pack["metadata"][field].as_str().unwrap_or_default();
    format!("{}/{}", text("namespace"), text("name"))
}

/// Puts a pack of the system namespace behind one of the run's, where the policies let the run's take its place.
fn shadow(objects: &mut Objects<'_>, dice: &mut Dice) {
    if !dice.one_in(12) || objects.floor().get("packPolicy").is_some() {
        return;
    }
    let Some(pack) = objects.packs().find(|it| it["metadata"]["namespace"] == NAMESPACE) else {
        return;
    };
    let mut shadowed = pack.clone();
    shadowed["metadata"]["namespace"] = json!(SYSTEM_NAMESPACE);
    shadowed["spec"]["sidecar"]["image"] = json!("ghcr.io/example/shadowed:1");
    objects.policy()["packPolicy"]["allowShadowing"] = json!(true);
    objects.0.insert(2, shadowed);
}
