//! Credentials that parts hold.

use sympozium_api::run_plan::{Part, Role, RunPlan, VolumeSource};

use super::files::{self, CredentialKind};

/// Whether any part of the run has a token for the Kubernetes API.
pub fn has_token(plan: &RunPlan) -> bool {
    let volumes = plan.volumes.iter().map(|volume| &volume.source);
    let mut contents = volumes.flat_map(credential_kinds);
    !plan.identities.is_empty() || contents.any(|content| matches!(content, CredentialKind::Token))
}

/// Whether a part mounts a volume whose contents are not known here.
pub fn has_unknown(plan: &RunPlan) -> bool {
    let volumes = plan.volumes.iter().map(|volume| &volume.source);
    let mut contents = volumes.flat_map(credential_kinds);
    contents.any(|content| matches!(content, CredentialKind::Unknown))
}

/// Whether the agent holds any credential: a Secret, a token, or a credential of the gateway.
pub fn agent_has_credential(plan: &RunPlan) -> bool {
    let mut agents = plan.parts.iter().filter(|part| part.role == Role::Agent);
    agents.any(|agent| has_credential(plan, agent))
}

fn has_credential(plan: &RunPlan, part: &Part) -> bool {
    let mut sources = part.env.iter().filter_map(|env| env.value_from.as_ref());
    let in_variables = sources.any(|source| source.secret_key_ref.is_some());
    let of_gateway = plan.credentials.iter().any(|credential| credential.part == part.name);
    let volumes = part.mounts.iter().map(|mount| plan.volume(&mount.volume));
    let mut contents = volumes.flatten().flat_map(|volume| credential_kinds(&volume.source));
    let in_volumes = contents.any(|content| !matches!(content, CredentialKind::NoCredential));
    // The inputs of bridge and skills contain their credentials.
    let mut volumes_read = part.mounts.iter().filter_map(|mount| plan.volume(&mount.volume));
    let of_others = volumes_read.any(|volume| match &volume.source {
        VolumeSource::Input { part: whose } => *whose != part.name,
        _ => false,
    });
    part.identity.is_some() || in_variables || of_gateway || in_volumes || of_others
}

fn credential_kinds(source: &VolumeSource) -> Vec<CredentialKind> {
    match source {
        VolumeSource::Scratch { .. }
        | VolumeSource::Kept { .. }
        | VolumeSource::Texts { .. }
        | VolumeSource::Input { .. }
        | VolumeSource::ConfigMap { .. } => vec![CredentialKind::NoCredential],
        VolumeSource::Token { .. } => vec![CredentialKind::Token],
        VolumeSource::Secret { .. } => vec![CredentialKind::Secret],
        VolumeSource::Host { .. } => vec![CredentialKind::Unknown],
        VolumeSource::Declared { volume } => files::credential_kinds(volume),
    }
}
