//! Security contexts: the `restricted` level of Pod Security, and a read-only root file system.

use k8s_openapi::api::core::v1::{Capabilities, PodSecurityContext, SeccompProfile, SecurityContext};
use sympozium_api::sandbox::{self, SeccompProfileType};
use sympozium_api::skill_pack::HostAccess;

/// The user of every container. Parts differ by their volumes, never by their user.
const USER: i64 = 1000;
const ROOT: i64 = 0;

/// For the pod.
pub fn pod_context(seccomp: &sandbox::SeccompProfile) -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(USER),
        run_as_group: Some(USER),
        fs_group: Some(USER),
        seccomp_profile: Some(render_profile(seccomp)),
        ..PodSecurityContext::default()
    }
}

/// For a container. Only access to the node, which a policy must have allowed, loosens anything.
pub fn container_context(seccomp: &sandbox::SeccompProfile, host_access: Option<&HostAccess>) -> SecurityContext {
    let access = host_access.filter(|access| access.enabled);
    let privileged = access.is_some_and(|access| access.privileged);
    let user = if access.is_some_and(|access| access.run_as_root) { ROOT } else { USER };
    SecurityContext {
        run_as_non_root: Some(user != ROOT),
        run_as_user: Some(user),
        run_as_group: Some(user),
        // The API server rejects `privileged` without it.
        allow_privilege_escalation: Some(privileged),
        privileged: privileged.then_some(true),
        read_only_root_filesystem: Some(true),
        capabilities: (!privileged).then(|| Capabilities { add: None, drop: Some(vec!["ALL".to_owned()]) }),
        seccomp_profile: Some(render_profile(seccomp)),
        ..SecurityContext::default()
    }
}

fn render_profile(profile: &sandbox::SeccompProfile) -> SeccompProfile {
    let type_ = match profile.type_ {
        SeccompProfileType::RuntimeDefault => "RuntimeDefault",
        SeccompProfileType::Localhost => "Localhost",
        SeccompProfileType::Unconfined => "Unconfined",
    };
    SeccompProfile { type_: type_.to_owned(), localhost_profile: profile.localhost_profile.clone() }
}
