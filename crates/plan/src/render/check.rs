//! Checks of a plan before it is rendered. Plans that `plan` made pass; a stored plan may come from elsewhere.

use std::collections::BTreeSet;

use sympozium_api::RunPlan;
use sympozium_api::names::LabelName;
use sympozium_api::run_plan::{Part, PlanVolume, Role, VolumeSource, paths};

use super::RenderError;
use super::container::RESERVED_NAMES;
use super::volumes::EXECUTOR;

/// Checks that names are valid and unique, and that the agent holds no credential.
pub fn check(plan: &RunPlan) -> Result<(), RenderError> {
    let mut parts = BTreeSet::new();
    for part in &plan.parts {
        check_name("a part", &part.name.0)?;
        let own = RESERVED_NAMES.contains(&part.name.0.as_str());
        if own || !parts.insert(part.name.0.as_str()) {
            return Err(duplicate_error("container", &part.name.0));
        }
    }
    let mut volumes = BTreeSet::new();
    for volume in &plan.volumes {
        check_name("a volume", &volume.name.0)?;
        if volume.name.0 == EXECUTOR || !volumes.insert(volume.name.0.as_str()) {
            return Err(duplicate_error("volume", &volume.name.0));
        }
    }
    check_agent(plan, find_part(plan, &Role::Agent, "agent")?)?;
    find_part(plan, &Role::Bridge, "bridge").map(drop)
}

/// The part of a role that every run has exactly once.
pub fn find_part<'a>(plan: &'a RunPlan, role: &Role, name: &'static str) -> Result<&'a Part, RenderError> {
    let mut parts = plan.parts.iter().filter(|part| part.role == *role);
    match (parts.next(), parts.next()) {
        (Some(part), None) => Ok(part),
        (Some(_), Some(second)) => Err(duplicate_error("container", &second.name.0)),
        (None, _) => Err(RenderError::NoPart { role: name }),
    }
}

fn duplicate_error(kind: &'static str, name: &str) -> RenderError {
    RenderError::Duplicate { kind, name: name.to_owned() }
}

fn check_name(what: &'static str, name: &str) -> Result<(), RenderError> {
    LabelName::new(name).check().map_err(|_| RenderError::InvalidName { what, name: name.to_owned() })
}

/// The volume that a mount names.
pub fn find_volume<'a>(plan: &'a RunPlan, name: &str) -> Result<&'a PlanVolume, RenderError> {
    let mut volumes = plan.volumes.iter();
    volumes
        .find(|volume| volume.name.0 == name)
        .ok_or_else(|| RenderError::Missing { what: "volume", name: name.to_owned() })
}

/// Invariant 1 of the design, checked again where it takes effect: no credential, and no way around the door.
fn check_agent(plan: &RunPlan, agent: &Part) -> Result<(), RenderError> {
    let denied = |what| Err(RenderError::AgentCredential { what });
    if agent.identity.is_some() {
        return denied("an identity");
    }
    if agent.host_access.is_some() {
        return denied("access to the node");
    }
    let from_secret = agent.env.iter().any(|variable| {
        let from = variable.value_from.as_ref();
        from.is_some_and(|from| from.secret_key_ref.is_some())
    });
    if from_secret {
        return denied("a variable from a Secret");
    }
    if plan.credentials.iter().any(|credential| credential.part == agent.name) {
        return denied("a credential of the gateway");
    }
    for mount in &agent.mounts {
        match &find_volume(plan, &mount.volume.0)?.source {
            VolumeSource::Secret { .. } => return denied("a Secret"),
            VolumeSource::Token { .. } => return denied("a token"),
            VolumeSource::Input { part } if *part != agent.name => {
                return denied("the input of another part");
            }
            VolumeSource::Declared { volume } if volume.holds_credential() => {
                return denied("a Secret");
            }
            VolumeSource::Scratch { .. } if is_ipc(plan, &mount.volume.0) => {
                return denied("a skill's /ipc");
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether a part mounts the volume at the path through which a skill gets its commands.
fn is_ipc(plan: &RunPlan, volume: &str) -> bool {
    let mounts = plan.parts.iter().flat_map(|part| &part.mounts);
    mounts.filter(|mount| mount.volume.0 == volume).any(|mount| {
        let rest = mount.path.as_str().strip_prefix(paths::IPC);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}
