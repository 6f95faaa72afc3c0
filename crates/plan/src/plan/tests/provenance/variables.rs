//! Environment variables.

use serde_json::{Value, json};

use super::walk::{Untraced, Walk, demand, list, text};

/// Some of the names that no manifest may set: programs start, load or trust their values.
const DENIED: &[&str] =
    &["BASH_ENV", "HTTPS_PROXY", "KUBECONFIG", "LD_PRELOAD", "NODE_OPTIONS", "PATH", "PYTHONPATH", "SKILL_TOKEN"];

/// Fields of a pod that a variable may have as its value.
const SHOWN: &[&str] = &["metadata.name", "metadata.namespace", "metadata.uid"];

impl Walk<'_> {
    /// Every variable of a part.
    pub fn variables(&mut self, part: &Value) -> Result<(), Untraced> {
        for variable in list(&part["env"]) {
            let name = text(&variable["name"]);
            let found = self.variable(part, variable, name)?;
            let (object, field) = found.ok_or_else(|| format!("the variable {variable} of {}", part["name"]))?;
            let Some(object) = object else { continue };
            self.form(part, variable)?;
            let role = text(&part["role"]["kind"]);
            if matches!(role, "preRun" | "postRun") && !field.starts_with(self.hooks().1) {
                let (author, hook) = self.hook(part)?;
                self.by(author, format!("{hook}/envFromRun"));
            }
            self.by(object, field);
        }
        Ok(())
    }

    /// The field that sets a variable; no object for those that we set.
    fn variable(
        &self,
        part: &Value,
        variable: &Value,
        name: &str,
    ) -> Result<Option<(Option<usize>, String)>, Untraced> {
        let ours = |value: &Value| (variable["value"] == *value).then(|| (None, String::new()));
        let of_run = || {
            let fields = [(self.run, "/spec/env"), (self.agent, "/spec/agents/default/env")];
            let says = |(object, field): &(usize, &str)| {
                self.get(*object, field).get(name).is_some_and(|value| *value == variable["value"])
            };
            let found = fields.into_iter().find(says);
            found.map(|(object, field)| (Some(object), field.to_owned()))
        };
        Ok(match text(&part["role"]["kind"]) {
            "agent" => of_run(),
            "bridge" => {
                let field = "/spec/model/authSecretRef";
                let from = &variable["valueFrom"]["secretKeyRef"];
                let is = from["name"] == *self.get(self.run, field) && from["key"] == name;
                is.then(|| (Some(self.run), field.to_owned()))
            }
            "sandbox" if name == "SYMPOZIUM_SKILL_PACK" => ours(&json!("sandbox")),
            "skill" => {
                let pack = self.pack(text(&part["role"]["pack"]))?;
                let written = list(self.get(pack, "/spec/sidecar/env")).contains(variable);
                let skills = list(self.get(self.run, "/spec/skills")).iter();
                let mut own = skills.filter(|skill| skill["skillPackRef"] == part["role"]["pack"]);
                let params = own.next().map_or(&Value::Null, |skill| &skill["params"]);
                let mut params = params.as_object().into_iter().flatten();
                let is_param = params
                    .any(|(key, value)| name == format!("SKILL_{}", key.to_uppercase()) && variable["value"] == *value);
                match name {
                    "SYMPOZIUM_SKILL_PACK" => ours(&part["role"]["pack"]),
                    _ if is_param => Some((Some(self.run), "/spec/skills".to_owned())),
                    _ if written => Some((Some(pack), "/spec/sidecar/env".to_owned())),
                    _ => None,
                }
            }
            "preRun" | "postRun" => {
                let (object, hook) = self.hook(part)?;
                let written = list(self.get(object, &format!("{hook}/env"))).contains(variable);
                let passed = format!("{hook}/envFromRun");
                let is_passed = list(self.get(object, &passed)).contains(&json!(name));
                match name {
                    "AGENT_RUN_ID" => ours(&self.objects[self.run]["metadata"]["name"]),
                    "AGENT_NAMESPACE" => ours(&json!(self.namespace())),
                    "INSTANCE_NAME" => ours(&self.objects[self.agent]["metadata"]["name"]),
                    _ if written => Some((Some(object), format!("{hook}/env"))),
                    _ if is_passed => of_run(),
                    _ => None,
                }
            }
            _ => None,
        })
    }

    /// A variable of a manifest has a name that is not denied, one value, and a source that does not belong to another
    /// part.
    fn form(&self, part: &Value, variable: &Value) -> Result<(), Untraced> {
        let what = || format!("the variable {variable} of {}", part["name"]);
        let name = text(&variable["name"]);
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let is_name = !name.is_empty() && name.bytes().all(is_word);
        let is_denied = DENIED.contains(&name.to_uppercase().as_str());
        demand(is_name && !is_denied, what)?;
        let variables = list(&part["env"]).iter();
        let times = variables.filter(|variable| variable["name"] == name).count();
        demand(times == 1, what)?;
        let Some(sources) = variable["valueFrom"].as_object() else {
            return Ok(());
        };
        let from = sources.iter().next().filter(|_| sources.len() == 1);
        let (kind, from) = from.ok_or_else(what)?;
        demand(variable["value"].is_null(), what)?;
        let is_key = |text: &str| !text.is_empty() && !text.contains('/');
        match kind.as_str() {
            "fieldRef" => demand(SHOWN.contains(&text(&from["fieldPath"])), what),
            "resourceFieldRef" => Ok(()),
            "secretKeyRef" | "configMapKeyRef" => {
                demand(is_key(text(&from["key"])), what)?;
                self.foreign(&from["name"])?;
                let is_of_bridge = part["role"]["kind"] == "bridge";
                if kind == "secretKeyRef" && !is_of_bridge { self.not_of_model(&from["name"]) } else { Ok(()) }
            }
            _ => demand(false, what),
        }
    }
}
