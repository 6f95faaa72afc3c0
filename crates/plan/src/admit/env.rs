//! Environment variables: of the run, of packs, of hooks, and those of parameters.

use std::collections::{BTreeMap, BTreeSet};

use sympozium_api::environment::{EnvVar, EnvVarSource};
use sympozium_api::names::EnvName;
use sympozium_api::text::{MAX_NAME, printable, quote, truncate};

use super::violation::{Findings, ViolationDetail, violation};
use super::{RuleContext, Subject};
use crate::environment::{SetBy, denial_reason, looks_like_credential};

/// The prefix of the variables of parameters.
const PARAMETER_PREFIX: &str = "SKILL_";
/// Fields of a pod that a variable may have as its value.
pub(super) const POD_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Fields of a pod that a file may contain: the kubelet does not write the others to files.
pub(super) const POD_FIELDS_IN_FILES: &[&str] = &["metadata.name", "metadata.namespace", "metadata.uid"];

/// The variable that a parameter of a pack becomes.
pub fn parameter_variable(key: &str) -> String {
    format!("{PARAMETER_PREFIX}{}", key.to_ascii_uppercase())
}

/// Checks all variables of a run except those of hooks, which are checked with the hooks.
pub fn check(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    check_agent_env(&case.subject, "spec.env", &case.run.spec.env, findings);
    for pack in &case.packs {
        if let Some(sidecar) = pack.sidecar() {
            check_container_env(&pack.subject(), "spec.sidecar.env", &sidecar.env, findings);
        }
        check_parameters(&case.subject, &format!("spec.skills[{}].params", pack.index), &pack.params, findings);
    }
}

/// Checks variables that reach the agent.
pub fn check_agent_env(subject: &Subject, field: &str, env: &BTreeMap<String, String>, findings: &mut Findings) {
    for name in env.keys() {
        let at = || format!("{field}.{}", printable(truncate(name, MAX_NAME)));
        if let Some(detail) = name_violation(name, SetBy::Others, at) {
            findings.deny(subject, detail);
        } else if looks_like_credential(name) {
            findings.warn(
                subject,
                violation(
                    at(),
                    "env-credential",
                    format!("{} looks like a credential, and the agent sees it", quote(name)),
                    "keep it in a Secret that only the pack which needs it names in `secretRef`",
                ),
            );
        }
    }
}

/// Checks the names of the run's variables that the author of a hook accepts, beside the hook's own variables.
pub fn check_env_from_run(subject: &Subject, field: &str, names: &[EnvName], own: &[EnvVar], findings: &mut Findings) {
    for (index, name) in names.iter().enumerate() {
        let at = || format!("{field}[{index}]");
        if let Some(detail) = name_violation(name.as_str(), SetBy::Others, at) {
            findings.deny(subject, detail);
        }
        if names[..index].contains(name) || own.iter().any(|variable| variable.name == *name) {
            let shown = quote(name.as_str());
            let message = format!("the variable {shown} is set twice");
            findings.deny(subject, violation(at(), "env-twice", message, "set it once"));
        }
    }
}

/// Checks the variables of one container that are set by the author who chose what runs in it.
pub fn check_container_env(subject: &Subject, field: &str, env: &[EnvVar], findings: &mut Findings) {
    let mut seen = BTreeSet::new();
    for (index, variable) in env.iter().enumerate() {
        let name = variable.name.as_str();
        let at = || format!("{field}[{index}].name");
        if let Some(detail) = name_violation(name, SetBy::Author, at) {
            findings.deny(subject, detail);
        }
        if !seen.insert(name) {
            let message = format!("the variable {} is set twice", quote(name));
            findings.deny(subject, violation(at(), "env-twice", message, "set it once"));
        }
        if let Some(source) = &variable.value_from {
            check_source(subject, &format!("{field}[{index}]"), variable, source, findings);
        }
    }
}

fn check_source(subject: &Subject, field: &str, variable: &EnvVar, source: &EnvVarSource, findings: &mut Findings) {
    if variable.value.is_some() {
        findings.deny(
            subject,
            violation(field, "env-two-values", "the variable has `value` and `valueFrom`", "keep one of them"),
        );
    }
    let sources = [
        source.secret_key_ref.is_some(),
        source.config_map_key_ref.is_some(),
        source.field_ref.is_some(),
        source.resource_field_ref.is_some(),
    ];
    if sources.iter().filter(|set| **set).count() != 1 {
        let message = "`valueFrom` needs exactly one source";
        findings.deny(subject, violation(format!("{field}.valueFrom"), "env-source", message, "keep one source"));
    }
    for (kind, reference) in [("secretKeyRef", &source.secret_key_ref), ("configMapKeyRef", &source.config_map_key_ref)]
    {
        if let Some(reference) = reference.as_ref().filter(|reference| !crate::text::is_data_key(&reference.key)) {
            let message = format!("{} cannot be a key", quote(&reference.key));
            findings.deny(
                subject,
                violation(
                    format!("{field}.valueFrom.{kind}.key"),
                    "env-key",
                    message,
                    "use letters, digits, `-`, `_` and `.`",
                ),
            );
        }
    }
    if let Some(reference) = &source.field_ref
        && !POD_FIELDS.contains(&reference.field_path.as_str())
    {
        findings.deny(
            subject,
            violation(
                format!("{field}.valueFrom.fieldRef.fieldPath"),
                "env-field",
                format!("{} is not a field that a variable may show", quote(&reference.field_path)),
                format!("use one of {}", crate::text::quote_list(POD_FIELDS)),
            ),
        );
    }
}

/// Parameters reach a sidecar as `SKILL_` and the key in upper case.
fn check_parameters(subject: &Subject, field: &str, params: &BTreeMap<String, String>, findings: &mut Findings) {
    let mut seen = BTreeSet::new();
    for key in params.keys() {
        let name = parameter_variable(key);
        let at = || format!("{field}.{}", printable(truncate(key, MAX_NAME)));
        if let Some(detail) = name_violation(&name, SetBy::Others, at) {
            findings.deny(subject, detail);
        }
        if !seen.insert(name.clone()) {
            let message = format!("two parameters become the variable {}", quote(&name));
            findings.deny(subject, violation(at(), "env-twice", message, "remove one of them"));
        }
    }
}

/// The violation of a variable's name, if there is one.
fn name_violation(name: &str, by: SetBy, field: impl Fn() -> String) -> Option<ViolationDetail> {
    let shown = quote(name);
    if EnvName::new(name).check().is_err() {
        let message = format!("{shown} is not a name of an environment variable");
        return Some(violation(field(), "env-name", message, "use letters, digits and `_`"));
    }
    denial_reason(name, by).map(|why| {
        violation(
            field(),
            "env-denied",
            format!("the variable {shown} must not be set: {why}"),
            "remove it, or choose another name",
        )
    })
}
