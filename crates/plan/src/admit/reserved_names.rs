//! Names of objects that we create for runs. They are predictable once a run exists, so no manifest may refer to them:
//! a pack that could would read the token of another skill.

use serde_json::Value;
use sympozium_api::SkillPackSpec;
use sympozium_api::environment::EnvVar;
use sympozium_api::open::Volume;
use sympozium_api::text::{MAX_NAME, printable, quote, truncate};

use super::violation::{Findings, violation};
use super::{RuleContext, Subject, hooks};
use crate::render::names::is_run_object_name;

/// Checks every Secret, ConfigMap and claim that the run itself names.
pub fn check(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    let spec = &case.run.spec;
    let mut look = NameChecker { subject: &case.subject, findings };
    for (index, skill) in spec.skills.iter().enumerate() {
        let name = skill.config_map_ref.as_ref().map(|config_map_ref| config_map_ref.as_str());
        look.check_name(format!("spec.skills[{index}].configMapRef"), name);
    }
    if let Some(model) = &spec.model {
        let key = model.auth_secret_ref.as_ref().map(|auth_secret_ref| auth_secret_ref.as_str());
        look.check_name("spec.model.authSecretRef".to_owned(), key);
        let headers = model.provider_headers_secret_ref.as_ref();
        let headers = headers.map(|secret| secret.as_str());
        look.check_name("spec.model.providerHeadersSecretRef".to_owned(), headers);
        // A scripted model is a ConfigMap.
        look.check_name("spec.model.model".to_owned(), Some(&model.model));
    }
    for (index, secret) in spec.image_pull_secrets.iter().enumerate() {
        let field = format!("spec.imagePullSecrets[{index}].name");
        look.check_name(field, Some(secret.name.as_str()));
    }
    look.check_volumes("spec", &spec.volumes);
    for (place, hook) in spec.lifecycle.iter().flat_map(hooks::all_hooks) {
        look.check_variables(&format!("spec.lifecycle.{place}.env"), &hook.env);
    }
}

/// Checks those that a pack names.
pub fn check_pack(subject: &Subject, spec: &SkillPackSpec, findings: &mut Findings) {
    let Some(sidecar) = &spec.sidecar else {
        return;
    };
    let mut look = NameChecker { subject, findings };
    let secret = sidecar.secret_ref.as_ref().map(|secret_ref| secret_ref.as_str());
    look.check_name("spec.sidecar.secretRef".to_owned(), secret);
    look.check_variables("spec.sidecar.env", &sidecar.env);
    look.check_volumes("spec.sidecar", &sidecar.volumes);
}

struct NameChecker<'l> {
    subject: &'l Subject,
    findings: &'l mut Findings,
}

impl NameChecker<'_> {
    fn check_name(&mut self, field: String, name: Option<&str>) {
        let Some(name) = name.filter(|name| is_run_object_name(name)) else {
            return;
        };
        let message = format!("{} has the form of names of what is made for runs", quote(name));
        let remedy = "give the object another name: one that does not end in 32 digits of a UID";
        self.findings.deny(self.subject, violation(field, "name-of-a-run", message, remedy));
    }

    fn check_variables(&mut self, field: &str, env: &[EnvVar]) {
        for (index, variable) in env.iter().enumerate() {
            let from = variable.value_from.as_ref();
            let secret = from.and_then(|from| from.secret_key_ref.as_ref());
            let config_map = from.and_then(|from| from.config_map_key_ref.as_ref());
            for (kind, reference) in [("secretKeyRef", secret), ("configMapKeyRef", config_map)] {
                let field = format!("{field}[{index}].valueFrom.{kind}.name");
                self.check_name(field, reference.map(|reference| reference.name.as_str()));
            }
        }
    }

    /// Volumes are copied to the pod as they are, so every text in them is checked, wherever it is.
    fn check_volumes(&mut self, field: &str, volumes: &[Volume]) {
        for (index, volume) in volumes.iter().enumerate() {
            for (kind, source) in &volume.source {
                let field = format!("{field}.volumes[{index}].{}", printable(truncate(kind, MAX_NAME)));
                self.check_texts(&field, source);
            }
        }
    }

    fn check_texts(&mut self, field: &str, value: &Value) {
        match value {
            Value::String(text) => self.check_name(field.to_owned(), Some(text)),
            Value::Array(values) => values.iter().for_each(|value| self.check_texts(field, value)),
            Value::Object(fields) => fields.values().for_each(|value| self.check_texts(field, value)),
            _ => {}
        }
    }
}
