//! Builds the sandbox spec of each part: what it sees of this machine, at which paths, and the command in it.
//!
//! Nothing is decided here. Mounts, variables and limits come from the plan; what only a pod has (an image, an address
//! of the gateway) is substituted.

mod command;
mod environment;
mod limits;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use sympozium_api::Guarantee;
use sympozium_api::run_plan::{Mount, Part};
use sympozium_exec::environment::Environment;
use sympozium_exec::layout::{Bind, BindAccess};
use sympozium_exec::{Config, Floor, Profile, Request};
use zeroize::Zeroizing;

use crate::prepared_run::PreparedRun;
use crate::volumes::Volumes;
use command::Command;

/// The directory with the gateway's socket, in sandboxes.
pub const GATEWAY_DIRECTORY: &str = "/run/gateway";
pub const GATEWAY_SOCKET: &str = "gateway.sock";
/// Open files of our own parts: more than commands have, because descriptors in flight over sockets count for all
/// processes of a user together, and commands can send many.
pub const MAX_OPEN_FILES: u64 = 16_384;

/// The sandbox spec of a part, and what starts in the sandbox.
#[derive(Debug, Clone)]
pub struct PartSpec {
    pub config: Config,
    pub start: Request,
    /// The forwarder to the gateway, for a skill that has egress.
    pub forward: Option<Request>,
}

/// What sandbox specs are built from.
pub struct SandboxInputs<'g> {
    pub prepared: &'g PreparedRun,
    pub volumes: &'g Volumes,
    /// The `live` directory of the run.
    pub live: &'g Path,
    /// The directory with the gateway's socket.
    pub gateway: &'g Path,
    /// The executable of this process.
    pub program: &'g Path,
    /// The proxy URL, with the credential, of each part that has one.
    pub proxies: &'g BTreeMap<String, Zeroizing<String>>,
}

impl SandboxInputs<'_> {
    /// Builds the sandbox spec of a part. Fails if the part needs something that this machine does not have.
    pub fn part_spec(&self, part: &Part) -> anyhow::Result<PartSpec> {
        let profile = host_profile();
        let mut config = Config::new(profile);
        config.floor = self.floor(profile);
        config.limits = limits::cgroup_limits(part)?;
        config.layout.pids = limits::MAX_PIDS;
        config.layout.hostname = part.name.0.chars().take(63).collect();
        for mount in sorted_mounts(part) {
            config = self.with_mount(config, mount)?;
        }
        let mut environment = self.part_environment(part)?;
        let Command { path, argv } = self.part_command(part, &mut config)?;
        environment.push(("PATH".into(), path.into()));
        let mut forward = None;
        if let Some(proxy) = self.proxies.get(&part.name.0) {
            forward = Some(self.forwarder_request(part, &mut config)?);
            environment.extend(proxy_variables(proxy));
        }
        config.environment = Environment::for_part(environment);
        Ok(PartSpec {
            config,
            start: self.apply_limits(part, Request::argv(argv)),
            forward: forward.map(|it| self.apply_limits(part, it)),
        })
    }

    /// Binds the volume of a mount, or sets the size of scratch space that the sandbox mounts itself.
    fn with_mount(&self, mut config: Config, mount: &Mount) -> anyhow::Result<Config> {
        let target = PathBuf::from(mount.path.as_str());
        let Some(source) = self.volumes.source(&mount.volume, mount.sub_path.as_deref())? else {
            limits::set_tmpfs_size(&mut config, self.prepared, mount)?;
            return Ok(config);
        };
        let access = match mount.read_only {
            true => BindAccess::OwnedReadOnly,
            false => BindAccess::ReadWrite,
        };
        Ok(config.with_bind(Bind { source, target, access }))
    }

    /// The default floor of the profile, and what the plan requires.
    pub(crate) fn floor(&self, profile: Profile) -> Floor {
        let planned = self.prepared.plan.isolation.floor.iter().copied();
        let all: BTreeSet<Guarantee> = Floor::of_profile(profile).guarantees().chain(planned).collect();
        all.into_iter().collect()
    }

    /// The guarantees of the sandbox around a part. It does not start if it falls below its floor.
    fn platform_guarantees(&self, profile: Profile) -> Vec<Guarantee> {
        let floor: BTreeSet<Guarantee> = self.floor(profile).guarantees().collect();
        Guarantee::ALL.into_iter().filter(|it| floor.contains(it)).collect()
    }

    /// Certificates that the user trusts in addition (`SSL_CERT_FILE`). The name is the user's own, so links in it are
    /// followed: Debian's `/usr/lib/ssl/cert.pem`, which `cargo run` sets for the programs that it starts, is one.
    pub(crate) fn extra_certificates(&self) -> Option<PathBuf> {
        let path = std::fs::canonicalize(std::env::var_os("SSL_CERT_FILE")?).ok()?;
        path.is_file().then_some(path)
    }
}

/// The profile of this user's sandboxes.
pub fn host_profile() -> Profile {
    match rustix::process::geteuid().is_root() {
        true => Profile::HostRoot,
        false => Profile::HostUser,
    }
}

/// Sorted so that a mount comes before those below it.
fn sorted_mounts(part: &Part) -> Vec<&Mount> {
    let mut mounts: Vec<_> = part.mounts.iter().collect();
    mounts.sort_by_key(|mount| mount.path.as_str().matches('/').count());
    mounts
}

fn proxy_variables(proxy: &str) -> impl Iterator<Item = (OsString, OsString)> {
    let proxied = ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"].map(|name| (name, proxy));
    let direct = ["NO_PROXY", "no_proxy"].map(|name| (name, "127.0.0.1,localhost"));
    proxied.into_iter().chain(direct).map(|(name, value)| (name.into(), value.into()))
}

fn bind(source: &Path, target: impl Into<PathBuf>, access: BindAccess) -> Bind {
    Bind { source: source.to_owned(), target: target.into(), access }
}
