//! The environment variables of a part.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use anyhow::bail;
use sympozium_api::environment::{EnvVar, EnvVarSource};
use sympozium_api::run_plan::{Part, Role};

use super::SandboxInputs;

impl SandboxInputs<'_> {
    pub(crate) fn part_environment(&self, part: &Part) -> anyhow::Result<Vec<(OsString, OsString)>> {
        if part.role == Role::Bridge {
            // Its only variable is the model key, which was found before.
            let key = self.prepared.model_key.iter();
            return Ok(key.map(|(name, value)| (name.into(), value.as_str().into())).collect());
        }
        let mut environment = Vec::new();
        for variable in &part.env {
            if let Some(value) = self.variable_value(part, variable)? {
                environment.push((variable.name.as_str().into(), value));
            }
        }
        Ok(environment)
    }

    /// The value of a variable; `None` if its source is optional and does not exist.
    fn variable_value(&self, part: &Part, variable: &EnvVar) -> anyhow::Result<Option<OsString>> {
        let Some(source) = &variable.value_from else {
            return Ok(Some(variable.value.clone().unwrap_or_default().into()));
        };
        let run = &self.prepared.plan.run;
        let (value, optional, description) = match source {
            EnvVarSource { secret_key_ref: Some(it), .. } => {
                let secret = self.prepared.secrets.get(it.name.as_str());
                let value = secret.and_then(|secret| secret.0.get(&it.key)).map(|value| value.to_vec());
                (value, it.optional, format!("key {} of Secret {}", it.key, it.name))
            }
            EnvVarSource { config_map_key_ref: Some(it), .. } => {
                let data = self.prepared.config_maps.get(it.name.as_str());
                let value = data.and_then(|data| data.get(&it.key)).cloned();
                (value, it.optional, format!("key {} of ConfigMap {}", it.key, it.name))
            }
            EnvVarSource { field_ref: Some(it), .. } => {
                let value = match it.field_path.as_str() {
                    "metadata.name" => Some(run.name.as_str()),
                    "metadata.namespace" => Some(run.namespace.as_str()),
                    "metadata.uid" => Some(run.uid.as_str()),
                    _ => None,
                };
                (value.map(|it| it.as_bytes().to_vec()), None, format!("field {}", it.field_path))
            }
            _ => (None, None, "a resource of the container".to_owned()),
        };
        if value.is_none() && optional != Some(true) {
            let name = variable.name.as_str();
            bail!("variable {name} of {} needs {description}, which does not exist on this machine", part.name);
        }
        Ok(value.map(OsString::from_vec))
    }
}
