//! Secrets: the Secrets of the model are for the bridge only.

use sympozium_api::environment::EnvVar;
use sympozium_api::open::Volume;
use sympozium_api::text::quote;

use super::violation::{Findings, violation};
use super::{RuleContext, Subject};

/// Checks that no pack and no hook has the model key, or the Secret of provider headers.
pub fn check(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    let Some(model) = &case.run.spec.model else {
        return;
    };
    let key = model.auth_secret_ref.as_ref().map(|auth_secret_ref| auth_secret_ref.as_str());
    let headers = model.provider_headers_secret_ref.as_ref();
    let headers = headers.map(|secret| secret.as_str()).filter(|secret| key != Some(secret));
    for key in [key, headers].into_iter().flatten() {
        if !key.is_empty() {
            check_key(case, key, findings);
        }
    }
}

fn check_key(case: &RuleContext<'_, '_>, key: &str, findings: &mut Findings) {
    for pack in &case.packs {
        let Some(sidecar) = pack.sidecar() else {
            continue;
        };
        let subject = pack.subject();
        if sidecar.secret_ref.as_ref().is_some_and(|secret_ref| secret_ref == key) {
            deny(&subject, "spec.sidecar.secretRef".to_owned(), key, findings);
        }
        check_variables(&subject, "spec.sidecar.env", &sidecar.env, key, findings);
        check_volumes(&subject, &sidecar.volumes, key, findings);
    }
    for (place, hook) in case.run.spec.lifecycle.iter().flat_map(super::hooks::all_hooks) {
        let field = format!("spec.lifecycle.{place}.env");
        check_variables(&case.subject, &field, &hook.env, key, findings);
    }
}

fn check_variables(subject: &Subject, field: &str, env: &[EnvVar], key: &str, findings: &mut Findings) {
    for (index, variable) in env.iter().enumerate() {
        let reference = variable.value_from.as_ref().and_then(|value_from| value_from.secret_key_ref.as_ref());
        if reference.is_some_and(|reference| reference.name == key) {
            deny(subject, format!("{field}[{index}].valueFrom.secretKeyRef.name"), key, findings);
        }
    }
}

fn check_volumes(subject: &Subject, volumes: &[Volume], key: &str, findings: &mut Findings) {
    for (index, volume) in volumes.iter().enumerate() {
        let secrets = volume.secrets();
        for secret in secrets.iter().filter(|secret| secret.name == Some(key)) {
            let field = format!("spec.sidecar.volumes[{index}].{}", secret.field);
            deny(subject, field, key, findings);
        }
    }
}

fn deny(subject: &Subject, field: String, key: &str, findings: &mut Findings) {
    findings.deny(
        subject,
        violation(
            field,
            "secret-of-model",
            format!("{} holds the key of the run's model, which only the bridge has", quote(key)),
            "give the skill a Secret of its own",
        ),
    );
}
