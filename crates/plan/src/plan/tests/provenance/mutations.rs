//! Errors of plans, and fields that may be missing from manifests.

use serde_json::{Value, json};

use super::node::secret_volume;
use super::walk::{Field, list};

/// A change of a plan that gives it more. Returns whether there was something to change.
type Mutation = fn(&mut Value) -> bool;

/// Changes, by name.
pub const MUTATIONS: &[(&str, Mutation)] = &[
    ("a destination for the model's credential", |plan| {
        let found = credential(plan, |credential| credential["name"] == "model");
        push(found.map(|credential| &mut credential["reach"]["destinations"]), evil())
    }),
    ("another address of the model", |plan| {
        let endpoint = &mut plan["model"]["endpoint"];
        if endpoint.is_null() {
            return false;
        }
        endpoint["host"] = json!("evil.example.net");
        let found = credential(plan, |credential| credential["name"] == "model");
        let found = found.map(|credential| &mut credential["reach"]["destinations"][0]["host"]);
        set(found, json!("evil.example.net"))
    }),
    ("another port of the model", |plan| {
        let endpoint = &mut plan["model"]["endpoint"];
        if endpoint.is_null() {
            return false;
        }
        endpoint["port"] = json!(8081);
        let found = credential(plan, |credential| credential["name"] == "model");
        set(found.map(|credential| &mut credential["reach"]["destinations"][0]["port"]), json!(8081))
    }),
    ("a key in plain", |plan| {
        let has_key = !list(&plan["model"]["keys"]).is_empty();
        let endpoint = &mut plan["model"]["endpoint"];
        let is_encrypted = endpoint["encrypted"] == true;
        if is_encrypted && has_key {
            endpoint["encrypted"] = json!(false);
        }
        is_encrypted && has_key
    }),
    ("another model", |plan| set(plan.pointer_mut("/model/model"), json!("more-expensive"))),
    ("all hosts for a skill", |plan| {
        let found = credential(plan, |credential| credential["name"] != "model" && credential["name"] != "web");
        set(found.map(|credential| &mut credential["reach"]["public"]), json!(true))
    }),
    ("a destination for a skill", |plan| {
        let found = credential(plan, |credential| credential["name"] != "model" && credential["name"] != "web");
        push(found.map(|credential| &mut credential["reach"]["destinations"]), evil())
    }),
    ("a private destination for the web", |plan| {
        let found = credential(plan, |credential| credential["name"] == "web");
        let private = json!({ "host": "vault.other.svc", "port": 8200 });
        let Some(reach) = found.map(|credential| &mut credential["reach"]) else {
            return false;
        };
        if reach["destinations"].is_null() {
            reach["destinations"] = json!([]);
        }
        push(Some(&mut reach["destinations"]), private)
    }),
    ("a credential of the agent's own", |plan| {
        let own = json!({ "name": "agent", "part": "agent", "reach": { "public": true } });
        push(plan.get_mut("credentials"), own)
    }),
    ("a right", |plan| {
        let rule = json!({ "apiGroups": [""], "resources": ["nodes"], "verbs": ["get"] });
        let found = list_mut(plan, "identities").find(|identity| identity["namespaceRules"].is_array());
        push(found.map(|identity| &mut identity["namespaceRules"]), rule)
    }),
    ("a verb", |plan| {
        let found = list_mut(plan, "identities").find(|identity| identity["namespaceRules"].is_array());
        push(found.map(|identity| &mut identity["namespaceRules"][0]["verbs"]), json!("delete"))
    }),
    ("rights in the whole cluster", |plan| {
        let found = list_mut(plan, "identities").find(|identity| identity["clusterRules"].is_null());
        let Some(identity) = found else { return false };
        identity["clusterRules"] = identity["namespaceRules"].clone();
        true
    }),
    ("an identity of another part", |plan| {
        let Some(name) = list(&plan["identities"]).first().map(|identity| identity["name"].clone()) else {
            return false;
        };
        set(plan.pointer_mut("/parts/0").map(|part| &mut part["identity"]), name)
    }),
    ("a Secret as a variable of the agent", |plan| env(plan, "agent", stolen())),
    ("a Secret as a variable of the bridge", |plan| env(plan, "bridge", stolen())),
    ("a Secret as a variable of a skill", |plan| env(plan, "skill", stolen())),
    ("a Secret as a variable of a hook", |plan| env(plan, "preRun", stolen())),
    ("a Secret as files of the agent", |plan| mount(plan, "agent", secret_volume("more"))),
    ("a Secret as files of a skill", |plan| mount(plan, "skill", secret_volume("more"))),
    ("a Secret as files of the sandbox", |plan| mount(plan, "sandbox", secret_volume("more"))),
    ("another Secret of a skill", |plan| {
        let is_secret =
            |volume: &&mut Value| volume["source"]["kind"] == "secret" && volume["name"] != "bridge-headers";
        let found = list_mut(plan, "volumes").find(is_secret);
        set(found.map(|volume| &mut volume["source"]["secret"]), json!("stolen"))
    }),
    ("another key of the model", |plan| set(plan.pointer_mut("/model/keys/0/secret"), json!("stolen"))),
    ("another Secret with headers", |plan| set(plan.pointer_mut("/model/headersSecret"), json!("stolen"))),
    ("a Secret to pull with", |plan| {
        if plan["placement"]["imagePullSecrets"].is_null() {
            plan["placement"]["imagePullSecrets"] = json!([]);
        }
        push(plan["placement"].get_mut("imagePullSecrets"), json!({ "name": "stolen" }))
    }),
    ("a directory of the node", |plan| {
        let node = json!({ "name": "more", "source": { "kind": "host", "path": "/etc" } });
        mount(plan, "skill", node)
    }),
    ("a directory of the node for the agent", |plan| {
        let node = json!({ "name": "more", "source": { "kind": "host", "path": "/var/log" } });
        mount(plan, "agent", node)
    }),
    ("writing where the node may be read", |plan| {
        let is_host = |volume: &Value| volume["source"]["kind"] == "host" && volume["source"]["path"] == "/var/log";
        let volumes = list(&plan["volumes"]).iter();
        let volumes: Vec<Value> =
            volumes.filter(|volume| is_host(volume)).map(|volume| volume["name"].clone()).collect();
        let mounts = list_mut(plan, "parts").flat_map(|part| list_mut(part, "mounts"));
        let found = mounts.into_iter().find(|mount| volumes.contains(&mount["volume"]));
        set(found.map(|mount| &mut mount["readOnly"]), json!(false))
    }),
    ("writing where a volume may be read", |plan| {
        let volumes = list(&plan["volumes"]).iter();
        let volumes = volumes.filter(|volume| volume["source"]["kind"] == "declared");
        let volumes: Vec<Value> = volumes.map(|volume| volume["name"].clone()).collect();
        let mounts = list_mut(plan, "parts").flat_map(|part| list_mut(part, "mounts"));
        let is_it = |mount: &Value| {
            volumes.contains(&mount["volume"]) && mount["readOnly"] == true && mount["path"] == "/cache"
        };
        let found = mounts.into_iter().find(|mount| is_it(mount));
        set(found.map(|mount| &mut mount["readOnly"]), json!(false))
    }),
    ("the files between bridge and skill for the agent", |plan| {
        let ipc = |volume: &&Value| volume["name"].as_str().is_some_and(|name| name.ends_with("-ipc"));
        let name = list(&plan["volumes"]).iter().find(ipc).map(|volume| volume["name"].clone());
        let Some(name) = name else { return false };
        let mount = json!({ "volume": name, "path": "/ipc", "readOnly": false });
        push(plan.pointer_mut("/parts/0/mounts"), mount)
    }),
    ("the workspace for the bridge", |plan| {
        let has = list(&plan["volumes"]).iter().any(|volume| volume["name"] == "workspace");
        let mount = json!({ "volume": "workspace", "path": "/workspace", "readOnly": true });
        has && push(plan.pointer_mut("/parts/1/mounts"), mount)
    }),
    ("another part's scratch space", |plan| {
        let mount = json!({ "volume": "bridge-tmp", "path": "/tmp", "readOnly": false });
        push(plan.pointer_mut("/parts/0/mounts"), mount)
    }),
    ("a token of another part", |plan| {
        let token = |volume: &&Value| volume["source"]["kind"] == "token";
        let name = list(&plan["volumes"]).iter().find(token).map(|volume| volume["name"].clone());
        let Some(name) = name else { return false };
        let mount = json!({ "volume": name, "path": "/var/run/secrets/x", "readOnly": true });
        push(plan.pointer_mut("/parts/0/mounts"), mount)
    }),
    ("the node's network", |plan| power(plan, "hostNetwork")),
    ("the node's processes", |plan| power(plan, "hostPID")),
    ("every power over the node", |plan| power(plan, "privileged")),
    ("root", |plan| power(plan, "runAsRoot")),
    ("the node for the agent", |plan| {
        let access = json!({ "enabled": true, "hostNetwork": true });
        set(plan.pointer_mut("/parts/0").map(|part| &mut part["hostAccess"]), access)
    }),
    ("another image of the agent", |plan| image(plan, "agent")),
    ("another image of a skill", |plan| image(plan, "skill")),
    ("another image of a hook", |plan| image(plan, "preRun")),
    ("another image of the sandbox", |plan| image(plan, "sandbox")),
    ("another executor", |plan| {
        let found = list_mut(plan, "parts").find(|part| part["start"]["executor"].is_string());
        set(found.map(|part| &mut part["start"]["executor"]), json!("evil.example.net/x:1"))
    }),
    ("a variable of the agent", |plan| env(plan, "agent", forged())),
    ("a variable of the bridge", |plan| env(plan, "bridge", forged())),
    ("a variable of a skill", |plan| env(plan, "skill", forged())),
    ("a variable of the sandbox", |plan| env(plan, "sandbox", forged())),
    ("a variable of a hook", |plan| env(plan, "preRun", forged())),
    ("a variable of the run for a hook that does not list it", |plan| {
        let mut parts = list_mut(plan, "parts");
        let found = parts.find(|part| part["role"] == json!({ "kind": "preRun", "hook": "second" }));
        let variables = found.and_then(|part| part.get_mut("env"));
        push(variables, json!({ "name": "MODE", "value": "test" }))
    }),
    ("the model's Secret as files of a skill", |plan| {
        let key = plan["model"]["keys"][0]["secret"].clone();
        let source = json!({ "kind": "secret", "secret": key });
        let volume = json!({ "name": "more", "source": source });
        key.is_string() && mount(plan, "skill", volume)
    }),
    ("the model's Secret as a variable of a skill", |plan| {
        let key = plan["model"]["keys"][0]["secret"].clone();
        let from = json!({ "secretKeyRef": { "name": key, "key": "API_KEY" } });
        key.is_string() && env(plan, "skill", json!({ "name": "KEY", "valueFrom": from }))
    }),
    ("the workspace for an agent without file tools", |plan| {
        deny_tools(plan, &["edit_file", "list_directory", "read_file", "write_file"])
    }),
    ("writing files for an agent that reads them", |plan| deny_tools(plan, &["edit_file", "write_file"])),
    ("a tool that is denied", |plan| {
        let is_denied = |tool: &&mut Value| tool["gate"] == "deny" && tool["name"] == "write_file";
        let found = list_mut(plan, "tools").find(is_denied);
        set(found.map(|tool| &mut tool["gate"]), json!("allow"))
    }),
    ("another value of a header", |plan| set(plan["model"]["headers"].get_mut("x-team"), json!("other"))),
    ("all system calls", |plan| {
        let filter = json!({ "type": "Unconfined" });
        set(plan.pointer_mut("/isolation/seccomp"), filter)
    }),
    ("fewer guarantees", |plan| {
        let has = !list(&plan["isolation"]["floor"]).is_empty();
        plan["isolation"]["floor"] = json!([]);
        has
    }),
    ("no kernel of its own", |plan| {
        let is_demanded = list(&plan["isolation"]["floor"]).contains(&json!("kernel"));
        plan["isolation"]["kernel"] = json!(null);
        is_demanded
    }),
    ("another value of a variable", |plan| {
        let mut parts = list_mut(plan, "parts");
        let found = parts.find(|part| part["role"]["kind"] == "preRun");
        let mut variables = found.into_iter().flat_map(|part| list_mut(part, "env"));
        let found = variables.find(|variable| variable["name"] == "AGENT_RUN_ID");
        set(found.map(|variable| &mut variable["value"]), json!("another"))
    }),
];

/// Removes a field: every member of a list, turns a switch off, removes anything else.
pub fn take_away(objects: &mut [Value], (object, pointer): &Field) {
    let Some(value) = objects[*object].pointer_mut(pointer) else {
        return;
    };
    match value {
        Value::Array(_) => *value = json!([]),
        // The one that opens by being off.
        Value::Bool(_) if pointer.ends_with("/denyAll") => *value = json!(true),
        Value::Bool(_) => *value = json!(false),
        _ => {
            let Some((above, key)) = pointer.rsplit_once('/') else {
                return;
            };
            let above = objects[*object].pointer_mut(above);
            if let Some(fields) = above.and_then(Value::as_object_mut) {
                fields.remove(key);
            }
        }
    }
}

fn list_mut<'v>(value: &'v mut Value, field: &str) -> impl Iterator<Item = &'v mut Value> {
    let found = value.get_mut(field).and_then(Value::as_array_mut);
    found.into_iter().flatten()
}

fn credential(plan: &mut Value, is: impl Fn(&Value) -> bool) -> Option<&mut Value> {
    list_mut(plan, "credentials").find(|credential| is(credential))
}

fn set(place: Option<&mut Value>, value: Value) -> bool {
    match place {
        Some(place) if !place.is_null() || value.is_object() || value.is_string() => {
            let is_new = *place != value;
            *place = value;
            is_new
        }
        _ => false,
    }
}

fn push(place: Option<&mut Value>, value: Value) -> bool {
    let list = place.and_then(Value::as_array_mut);
    list.map(|list| list.push(value)).is_some()
}

/// Denies tools to an agent that has the workspace because of them, and writes to it unless a tool that reads is left.
fn deny_tools(plan: &mut Value, names: &[&str]) -> bool {
    let mut mounts = list(&plan["parts"][0]["mounts"]).iter();
    let has = mounts.any(|mount| mount["volume"] == "workspace" && mount["readOnly"] != true);
    for tool in list_mut(plan, "tools") {
        let is_named = tool["name"].as_str().is_some_and(|tool| names.contains(&tool));
        if is_named && tool["pack"].is_null() {
            tool["gate"] = json!("deny");
        }
    }
    has
}

fn part<'v>(plan: &'v mut Value, role: &str) -> Option<&'v mut Value> {
    list_mut(plan, "parts").find(|part| part["role"]["kind"] == role)
}

fn env(plan: &mut Value, role: &str, variable: Value) -> bool {
    let Some(part) = part(plan, role) else {
        return false;
    };
    if part["env"].is_null() {
        part["env"] = json!([]);
    }
    push(part.get_mut("env"), variable)
}

fn mount(plan: &mut Value, role: &str, volume: Value) -> bool {
    let mount = json!({ "volume": volume["name"], "path": "/more", "readOnly": true });
    let is_there = push(part(plan, role).map(|part| &mut part["mounts"]), mount);
    is_there && push(plan.get_mut("volumes"), volume)
}

fn image(plan: &mut Value, role: &str) -> bool {
    let found = part(plan, role);
    set(found.map(|part| &mut part["image"]), json!("evil.example.net/x:1"))
}

/// Access to the node for a skill that has not requested it.
fn power(plan: &mut Value, power: &str) -> bool {
    let has = |part: &Value| part["role"]["kind"] == "skill" && part["hostAccess"][power] != true;
    let Some(part) = list_mut(plan, "parts").find(|part| has(part)) else {
        return false;
    };
    if part["hostAccess"].is_null() {
        part["hostAccess"] = json!({ "enabled": true, power: true });
    } else {
        part["hostAccess"][power] = json!(true);
    }
    true
}

fn evil() -> Value {
    json!({ "host": "evil.example.net", "port": 443 })
}

fn stolen() -> Value {
    json!({ "name": "STOLEN", "valueFrom": { "secretKeyRef": { "name": "stolen", "key": "STOLEN" } } })
}

fn forged() -> Value {
    json!({ "name": "FORGED", "value": "1" })
}
