//! Access to the node: only what the policy lists, pack by pack.

use sympozium_api::skill_pack::HostAccess;
use sympozium_api::text::{MAX_NAME, printable, quote, truncate};

use super::violation::{Findings, violation};
use super::{ResolvedPack, RuleContext, Subject};
use crate::path;
use crate::policy::allowed::HostDirectory;

/// Checks every pack that requests access to the node.
pub fn check(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    for pack in &case.packs {
        let Some(access) = pack.sidecar().and_then(|sidecar| sidecar.host_access.as_ref()) else {
            continue;
        };
        if !access.enabled {
            warn_if_disabled(&pack.subject(), access, findings);
            continue;
        }
        check_pack(case, pack, access, findings);
    }
    check_shared_namespaces(case, findings);
}

fn check_pack(case: &RuleContext<'_, '_>, pack: &ResolvedPack<'_>, access: &HostAccess, findings: &mut Findings) {
    let host = &case.policy.host_access;
    let subject = pack.subject();
    check_pack_allowed(case, pack, "spec.sidecar.hostAccess.enabled", findings);
    for (field, asked, given) in [
        ("hostNetwork", access.host_network, host.host_network),
        ("hostPID", access.host_pid, host.host_pid),
        ("privileged", access.privileged, host.privileged),
        ("runAsRoot", access.run_as_root, host.run_as_root),
    ] {
        if asked && !given {
            findings.deny(
                &subject,
                violation(
                    format!("spec.sidecar.hostAccess.{field}"),
                    "host-power",
                    format!("the policy does not give `{field}`"),
                    format!("remove it, or set `hostAccessPolicy.{field}`"),
                ),
            );
        }
    }
    for (index, mount) in access.mounts.iter().enumerate() {
        let field = format!("spec.sidecar.hostAccess.mounts[{index}]");
        let writable = !mount.read_only;
        check_directory(case, &subject, &format!("{field}.hostPath"), mount.host_path.as_str(), writable, findings);
    }
}

/// Checks that the policies allow a pack access to the node, by its name and its namespace: any user can choose any
/// name.
pub fn check_pack_allowed(case: &RuleContext<'_, '_>, pack: &ResolvedPack<'_>, field: &str, findings: &mut Findings) {
    let host = &case.policy.host_access;
    let id = pack.id(case);
    let qualified = id.to_string();
    let shown = quote(&qualified);
    if !host.packs.covers(&qualified) {
        findings.deny(
            &pack.subject(),
            violation(
                field,
                "host-access",
                format!("no policy gives pack {shown} access to the node"),
                format!("add {shown} to `hostAccessPolicy.packs` of the policy and, if it has one, of the floor"),
            ),
        );
    } else if !host.allows_namespace(id) {
        let namespace = printable(truncate(&pack.namespace, MAX_NAME));
        findings.deny(
            &pack.subject(),
            violation(
                field,
                "host-access-namespace",
                format!("the floor gives packs of namespace `{namespace}` no access to the node"),
                "use a pack of the system namespace, or list the namespace in `hostAccessPolicy.namespaces` of the floor",
            ),
        );
    }
}

/// A pod has one network and one PID namespace: what one pack has of the node, all containers of the run have. So the
/// policies must allow it to every pack, and the pod must not have other containers that no policy names.
fn check_shared_namespaces(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    let uses = |pack: &&ResolvedPack<'_>| {
        let access = pack.sidecar().and_then(|sidecar| sidecar.host_access.as_ref());
        access.is_some_and(|access| access.enabled && (access.host_network || access.host_pid))
    };
    let Some(first) = case.packs.iter().find(uses) else {
        return;
    };
    let name = printable(truncate(first.name.as_str(), MAX_NAME));
    let mut deny = |field: String, what: String| {
        findings.deny(
            &case.subject,
            violation(
                field,
                "host-namespace-shared",
                format!("pack `{name}` has the node's network or processes, which all containers of a pod share, and no policy gives them to {what}"),
                "use the pack in a run of its own, or name all packs of the run in `hostAccessPolicy.packs`",
            ),
        );
    };
    // Packs that request access to the node themselves were checked by name above.
    let asks = |pack: &ResolvedPack<'_>| {
        let access = pack.sidecar().and_then(|sidecar| sidecar.host_access.as_ref());
        access.is_some_and(|access| access.enabled)
    };
    let others = case.packs.iter().filter(|pack| pack.sidecar().is_some() && !asks(pack));
    for pack in others.filter(|pack| !case.policy.host_access.includes_pack(pack.id(case))) {
        let field = format!("spec.skills[{}].skillPackRef", pack.index);
        deny(field, format!("pack {}", quote(pack.name.as_str())));
    }
    if super::sandbox::has_sandbox_container(case) {
        deny("spec.sandbox.enabled".to_owned(), "the container `sandbox`".to_owned());
    }
    let hooks = case.run.spec.lifecycle.as_ref();
    if hooks.is_some_and(|hooks| !hooks.pre_run.is_empty()) {
        deny("spec.lifecycle.preRun".to_owned(), "hooks".to_owned());
    }
}

/// Checks that the policy allows a directory of the node.
pub fn check_directory(
    case: &RuleContext<'_, '_>,
    subject: &Subject,
    field: &str,
    directory: &str,
    writable: bool,
    findings: &mut Findings,
) {
    let shown = quote(directory);
    let host = &case.policy.host_access;
    if directory != "/" && !path::is_plain(directory) {
        let message = format!("{shown} is not a plain path from the root");
        return findings
            .deny(subject, violation(field, "host-path-form", message, "write it without `.`, `..` or `//`"));
    }
    let asked = HostDirectory { path: directory.trim_end_matches('/').to_owned(), writable };
    if !host.allow_mounts || !host.directories.covers(&asked) {
        let how = if writable { "write to" } else { "read" };
        findings.deny(
            subject,
            violation(
                field,
                "host-path",
                format!("the policy does not let skills {how} {shown} of the node"),
                "remove the mount, or set `sandboxPolicy.allowHostMounts` and list it in `hostAccessPolicy.allowedHostPaths`",
            ),
        );
    }
}

fn warn_if_disabled(subject: &Subject, access: &HostAccess, findings: &mut Findings) {
    let asked = *access != HostAccess::default();
    if asked {
        findings.warn(
            subject,
            violation(
                "spec.sidecar.hostAccess.enabled",
                "host-access-off",
                "`hostAccess` says what, but is not enabled",
                "remove it, or set `hostAccess.enabled`",
            ),
        );
    }
}
