//! Access to the node: only what the policy names, pack by pack.

use sympozium_api::skill_pack::HostAccess;

use super::finding::{Findings, told};
use super::{Case, ResolvedPack, Subject};
use crate::path;
use crate::policy::allowed::HostDirectory;

/// Every pack that asks for the node.
pub fn check(case: &Case<'_, '_>, findings: &mut Findings) {
    for pack in &case.packs {
        let Some(access) = pack.sidecar().and_then(|it| it.host_access.as_ref()) else {
            continue;
        };
        if !access.enabled {
            warn_if_off(&pack.subject(), access, findings);
            continue;
        }
        check_pack(case, pack, access, findings);
    }
}

fn check_pack(case: &Case<'_, '_>, pack: &ResolvedPack<'_>, access: &HostAccess, findings: &mut Findings) {
    let host = &case.policy.host;
    let subject = pack.subject();
    let name = pack.name.as_str().to_owned();
    if !host.packs.covers(&name) {
        findings.deny(
            &subject,
            told(
                "spec.sidecar.hostAccess.enabled",
                "host-access",
                format!("no policy gives pack `{}` access to the node", crate::text::shown(&name)),
                "name the pack in `hostAccessPolicy.packs` of the policy and, if it has one, of the floor",
            ),
        );
    }
    for (field, asked, given) in [
        ("hostNetwork", access.host_network, host.network),
        ("hostPID", access.host_pid, host.processes),
        ("privileged", access.privileged, host.privileged),
        ("runAsRoot", access.run_as_root, host.root),
    ] {
        if asked && !given {
            findings.deny(
                &subject,
                told(
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

/// That the policy gives a directory of the node.
pub fn check_directory(
    case: &Case<'_, '_>,
    subject: &Subject,
    field: &str,
    directory: &str,
    writable: bool,
    findings: &mut Findings,
) {
    let shown = crate::text::shown(directory);
    let host = &case.policy.host;
    if directory != "/" && !path::is_plain(directory) {
        let message = format!("`{shown}` is not a plain path from the root");
        return findings.deny(subject, told(field, "host-path-form", message, "write it without `.`, `..` or `//`"));
    }
    let asked = HostDirectory { path: directory.trim_end_matches('/').to_owned(), writable };
    if !host.mounts || !host.directories.covers(&asked) {
        let how = if writable { "write to" } else { "read" };
        findings.deny(
            subject,
            told(
                field,
                "host-path",
                format!("the policy does not let skills {how} `{shown}` of the node"),
                "remove the mount, or set `sandboxPolicy.allowHostMounts` and list it in `hostAccessPolicy.allowedHostPaths`",
            ),
        );
    }
}

fn warn_if_off(subject: &Subject, access: &HostAccess, findings: &mut Findings) {
    let asked = *access != HostAccess::default();
    if asked {
        findings.warn(
            subject,
            told(
                "spec.sidecar.hostAccess.enabled",
                "host-access-off",
                "`hostAccess` says what, but is not enabled",
                "remove it, or set `hostAccess.enabled`",
            ),
        );
    }
}
