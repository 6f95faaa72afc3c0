//! Builds the sandbox spec of each part: what it sees of this machine, at which paths, and the command in it.
//!
//! Nothing is decided here. Mounts, variables and limits come from the plan; what a pod has and a process has not (an
//! image, an address of the gateway) is substituted.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use sympozium_api::Guarantee;
use sympozium_api::environment::{EnvVar, EnvVarSource};
use sympozium_api::quantity::Quantity;
use sympozium_api::run_plan::{Part, Role, Start, paths};
use sympozium_exec::cgroup::Limits;
use sympozium_exec::environment::{DEFAULT_PATH, Environment};
use sympozium_exec::layout::{Bind, BindAccess, RootView, system_paths};
use sympozium_exec::request::{MAX_GRACE, MAX_TIMEOUT};
use sympozium_exec::{Config, Floor, Invocation, Profile, Request};
use sympozium_plan::quantity::ExactQuantity;
use sympozium_plan::render::{ExecutorProfile, ExecutorSettings, executor_arguments, platform_argument};

use crate::binaries::Binary;
use crate::forward;
use crate::parts;
use crate::prepared_run::{PartRoot, PreparedRun};
use crate::volumes::{Volumes, make_directory};

/// The directory with the gateway's socket, in sandboxes.
pub const GATEWAY_DIRECTORY: &str = "/run/gateway";
pub const GATEWAY_SOCKET: &str = "gateway.sock";
/// The programs that a skill declares, in its sandbox: the only directory of its `PATH`.
const TOOLS_DIRECTORY: &str = "/opt/sympozium/tools";
/// Those of them that are not in the system's directories.
const PROGRAMS_DIRECTORY: &str = "/opt/sympozium/programs";
/// Processes of our own in the sandbox of a part, not counting those of a skill's commands.
const MAX_PIDS: u32 = 512;
/// Open files of our own parts: more than commands have, because descriptors in flight over sockets count for all
/// processes of a user together, and commands can send many.
pub const MAX_OPEN_FILES: u64 = 16_384;
/// The output of parts is only logged, not captured.
const CAPTURED_OUTPUT_BYTES: usize = 0;

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
    pub proxies: &'g BTreeMap<String, zeroize::Zeroizing<String>>,
}

impl SandboxInputs<'_> {
    /// Builds the sandbox spec of a part. Fails if the part needs something that this machine does not have.
    pub fn part_spec(&self, part: &Part) -> anyhow::Result<PartSpec> {
        let mut config = Config::new(host_profile());
        config.floor = self.floor(config.profile);
        config.limits = cgroup_limits(part)?;
        config.layout.pids = MAX_PIDS;
        config.layout.hostname = part.name.0.chars().take(63).collect();
        for mount in self.sorted_mounts(part) {
            let target = PathBuf::from(mount.path.as_str());
            match self.volumes.source(&mount.volume, mount.sub_path.as_deref())? {
                Some(source) => {
                    let access = match mount.read_only {
                        true => BindAccess::OwnedReadOnly,
                        false => BindAccess::ReadWrite,
                    };
                    config = config.with_bind(Bind { source, target, access });
                }
                None => set_tmpfs_size(&mut config, self.prepared, &mount.volume, &target)?,
            }
        }
        let mut environment = self.part_environment(part)?;
        let (path, argv) = match &part.role {
            Role::Agent => (DEFAULT_PATH.to_owned(), vec![self.bind_program(&mut config, parts::AGENT)]),
            Role::Bridge => {
                config = config.with_bind(make_bind(self.gateway, GATEWAY_DIRECTORY, BindAccess::OwnedReadOnly));
                let mut argv = vec![self.bind_program(&mut config, parts::BRIDGE)];
                argv.push(format!("--plan-digest={}", self.prepared.plan_digest));
                argv.push(format!("--gateway=unix:{GATEWAY_DIRECTORY}/{GATEWAY_SOCKET}"));
                argv.push(platform_argument(&self.platform_guarantees(config.profile)));
                argv.extend(self.verifying_arguments());
                if let Some(certificates) = self.extra_certificates() {
                    config = config.with_bind(make_bind(&certificates, CERTIFICATES_PATH, BindAccess::ReadOnly));
                    argv.push(format!("--certificates={CERTIFICATES_PATH}"));
                }
                (DEFAULT_PATH.to_owned(), argv)
            }
            Role::Skill { .. } | Role::Sandbox => self.skill_command(part, &mut config)?,
            Role::PreRun { .. } | Role::PostRun { .. } => self.hook_command(part, &mut config)?,
        };
        environment.push(("PATH".into(), path.into()));
        let mut forward = None;
        if let Some(proxy) = self.proxies.get(&part.name.0) {
            forward = Some(self.forwarder_request(part, &mut config)?);
            for name in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"] {
                environment.push((name.into(), proxy.as_str().into()));
            }
            for name in ["NO_PROXY", "no_proxy"] {
                environment.push((name.into(), "127.0.0.1,localhost".into()));
            }
        }
        config.environment = Environment::for_part(environment);
        Ok(PartSpec {
            config,
            start: self.apply_limits(part, Request::argv(argv)),
            forward: forward.map(|it| self.apply_limits(part, it)),
        })
    }

    /// Sets timeout, grace period and limits from the plan.
    pub(super) fn apply_limits(&self, part: &Part, mut request: Request) -> Request {
        let deadlines = &self.prepared.plan.deadlines;
        let seconds = part.timeout_seconds.unwrap_or(deadlines.ceiling_seconds);
        request.timeout = Duration::from_secs(seconds.max(1)).min(MAX_TIMEOUT);
        request.grace = Duration::from_secs(deadlines.grace_seconds).min(MAX_GRACE);
        request.output_bytes = CAPTURED_OUTPUT_BYTES;
        let ours = match &request.invocation {
            Invocation::Argv(argv) => (argv.first()).is_some_and(|it| Path::new(it).starts_with(parts::DIRECTORY)),
            _ => false,
        };
        if ours {
            request.open_files = MAX_OPEN_FILES;
        }
        request
    }

    /// The default floor of the profile, and what the plan requires.
    pub(super) fn floor(&self, profile: Profile) -> Floor {
        let planned = self.prepared.plan.isolation.floor.iter().copied();
        let ours: BTreeSet<Guarantee> = Floor::of_profile(profile).guarantees().chain(planned).collect();
        ours.into_iter().collect()
    }

    /// The guarantees of the sandbox around a part. It does not start if it falls below its floor.
    fn platform_guarantees(&self, profile: Profile) -> Vec<Guarantee> {
        let floor: BTreeSet<Guarantee> = self.floor(profile).guarantees().collect();
        let all = Guarantee::ALL.into_iter();
        all.filter(|it| floor.contains(it)).collect()
    }

    /// Sorted so that a mount comes before those below it.
    fn sorted_mounts<'p>(&self, part: &'p Part) -> Vec<&'p sympozium_api::run_plan::Mount> {
        let mut mounts: Vec<_> = part.mounts.iter().collect();
        mounts.sort_by_key(|mount| mount.path.as_str().matches('/').count());
        mounts
    }

    /// Binds this program under the name of a part. Returns its path in the sandbox.
    fn bind_program(&self, config: &mut Config, part: &'static str) -> String {
        let path = parts::program_path(part);
        let bind = make_bind(self.program, &path, BindAccess::ReadOnly);
        config.layout.binds.push(bind);
        path
    }

    fn skill_command(&self, part: &Part, config: &mut Config) -> anyhow::Result<(String, Vec<String>)> {
        let executor = |ground: &Self, config: &mut Config| {
            let at = ExecutorSettings {
                profile: ExecutorProfile::Container,
                platform: ground.platform_guarantees(config.profile),
            };
            let mut argv = vec![ground.bind_program(config, parts::SIDECAR)];
            argv.extend(executor_arguments(&ground.prepared.plan, part, &at));
            argv
        };
        match self.prepared.part_root(part) {
            Some(PartRoot::Directory(root)) => {
                config.layout.root = RootView::Directory(root.clone());
                let argv = match &part.start {
                    Start::Image { command, args } if !command.is_empty() => {
                        command.iter().chain(args).cloned().collect()
                    }
                    // Without a command the image runs our executor, as if it were injected.
                    _ => {
                        self.require_static(root)?;
                        executor(self, config)
                    }
                };
                Ok((DEFAULT_PATH.to_owned(), argv))
            }
            root => {
                let programs = match root {
                    Some(PartRoot::Host(programs)) => programs.as_slice(),
                    _ => &[],
                };
                self.link_tools(part, programs, config)?;
                Ok((TOOLS_DIRECTORY.to_owned(), executor(self, config)))
            }
        }
    }

    /// The arguments that tell the bridge which packs run our executor although the plan leaves that to the image.
    pub(super) fn verifying_arguments(&self) -> impl Iterator<Item = String> {
        let parts = self.prepared.plan.parts.iter();
        let ours = parts.filter(move |part| !part.is_attested() && !self.has_image_executor(part));
        ours.filter_map(|part| part.role.pack()).map(|pack| format!("--verifying={pack}"))
    }

    /// Whether a part runs the executor of its image: there is an image, and a command for it.
    fn has_image_executor(&self, part: &Part) -> bool {
        let is_directory = matches!(self.prepared.part_root(part), Some(PartRoot::Directory(_)));
        let is_said = matches!(&part.start, Start::Image { command, .. } if !command.is_empty());
        is_directory && is_said
    }

    fn hook_command(&self, part: &Part, config: &mut Config) -> anyhow::Result<(String, Vec<String>)> {
        if let Some(PartRoot::Directory(root)) = self.prepared.part_root(part) {
            config.layout.root = RootView::Directory(root.clone());
        }
        let Start::Image { command, args } = &part.start else {
            bail!("a hook has no executor");
        };
        if command.is_empty() {
            bail!("hook {} says nothing about what to run: give it a `command`", part.name);
        }
        Ok((DEFAULT_PATH.to_owned(), command.iter().chain(args).cloned().collect()))
    }

    /// Links the programs that a pack declares into one directory.
    fn link_tools(&self, part: &Part, programs: &[Binary], config: &mut Config) -> anyhow::Result<()> {
        let tools = self.live.join(format!("tools-{}", part.name));
        make_directory(&tools)?;
        for program in programs {
            let in_system = system_paths().any(|system| program.path.starts_with(system));
            let target = match in_system {
                true => program.path.clone(),
                false => {
                    let inside = Path::new(PROGRAMS_DIRECTORY).join(&program.name);
                    let bind =
                        Bind { source: program.path.clone(), target: inside.clone(), access: BindAccess::ReadOnly };
                    config.layout.binds.push(bind);
                    inside
                }
            };
            let link = tools.join(&program.name);
            symlink(&target, &link).with_context(|| format!("cannot make {}", link.display()))?;
        }
        config.layout.binds.push(make_bind(&tools, TOOLS_DIRECTORY, BindAccess::OwnedReadOnly));
        Ok(())
    }

    /// The command that listens in the sandbox for the gateway, and for each host and port that the plan lists by name.
    fn forwarder_request(&self, part: &Part, config: &mut Config) -> anyhow::Result<Request> {
        if let RootView::Directory(root) = &config.layout.root {
            self.require_static(root)?;
        }
        config.layout.binds.push(make_bind(self.gateway, GATEWAY_DIRECTORY, BindAccess::OwnedReadOnly));
        let reach = self.prepared.plan.credentials.iter().filter(|it| it.part == part.name);
        let mut argv = vec![self.bind_program(config, parts::FORWARD)];
        argv.push(format!("--proxy={}", forward::PROXY_PORT));
        let mut addresses: BTreeMap<&str, Ipv4Addr> = BTreeMap::new();
        for destination in reach.flat_map(|it| &it.reach.destinations) {
            let (Some(port), false) = (destination.port, destination.host.contains('*')) else {
                continue;
            };
            if destination.host.parse::<std::net::IpAddr>().is_ok() || destination.host == "localhost" {
                continue;
            }
            let next = forward::host_address(addresses.len());
            let Some(address) = addresses.get(destination.host.as_str()).copied().or(next) else {
                break;
            };
            if addresses.insert(&destination.host, address).is_none() {
                config.layout.hosts.push((address, destination.host.clone()));
            }
            argv.push(format!("--forward={address}:{port}={}:{port}", destination.host));
        }
        Ok(Request::argv(argv))
    }

    /// In the root of another system our program cannot use shared libraries.
    fn require_static(&self, root: &Path) -> anyhow::Result<()> {
        if !is_static(self.program)? {
            bail!(
                "this build of sympozium needs the machine's libraries, which {} does not have: install the static release, or give the pack a `command`",
                root.display()
            );
        }
        Ok(())
    }

    /// Certificates that the user trusts in addition (`SSL_CERT_FILE`). The name is the user's own, so links in it are
    /// followed: Debian's `/usr/lib/ssl/cert.pem`, which `cargo run` sets for the programs that it starts, is one.
    pub(super) fn extra_certificates(&self) -> Option<PathBuf> {
        let path = std::fs::canonicalize(std::env::var_os("SSL_CERT_FILE")?).ok()?;
        path.is_file().then_some(path)
    }

    pub(super) fn part_environment(&self, part: &Part) -> anyhow::Result<Vec<(OsString, OsString)>> {
        let mut environment: Vec<(OsString, OsString)> = Vec::new();
        if part.role == Role::Bridge {
            // Its only variable is the model key, which was found before.
            let key = self.prepared.model_key.iter();
            return Ok(key.map(|(name, value)| (name.into(), value.as_str().into())).collect());
        }
        for variable in &part.env {
            if let Some(value) = self.variable_value(part, variable)? {
                environment.push((variable.name.as_str().into(), value));
            }
        }
        Ok(environment)
    }

    fn variable_value(&self, part: &Part, variable: &EnvVar) -> anyhow::Result<Option<OsString>> {
        use std::os::unix::ffi::OsStringExt as _;
        let Some(source) = &variable.value_from else {
            return Ok(Some(variable.value.clone().unwrap_or_default().into()));
        };
        let name = variable.name.as_str();
        let run = &self.prepared.plan.run;
        let found = match source {
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
        match found {
            (Some(value), _, _) => Ok(Some(OsString::from_vec(value))),
            (None, Some(true), _) => Ok(None),
            (None, _, what) => {
                bail!("variable {name} of {} needs {what}, which there is not on this machine", part.name)
            }
        }
    }
}

/// The user's additional certificates, in the sandbox of the bridge.
const CERTIFICATES_PATH: &str = "/run/certificates.pem";

/// The profile of this user's sandboxes.
pub fn host_profile() -> Profile {
    match rustix::process::geteuid().is_root() {
        true => Profile::HostRoot,
        false => Profile::HostUser,
    }
}

fn make_bind(source: &Path, target: &str, access: BindAccess) -> Bind {
    Bind { source: source.to_owned(), target: PathBuf::from(target), access }
}

/// Sets the size of scratch space that the sandbox mounts itself.
fn set_tmpfs_size(
    config: &mut Config,
    prepared: &PreparedRun,
    volume: &sympozium_api::run_plan::VolumeName,
    target: &Path,
) -> anyhow::Result<()> {
    use sympozium_api::run_plan::VolumeSource;
    let Some(VolumeSource::Scratch { size, .. }) = prepared.plan.volume(volume).map(|it| &it.source) else {
        return Ok(());
    };
    let bytes = to_bytes(size)?;
    match target.to_str() {
        Some(paths::TMP) => config.layout.tmp_bytes = bytes,
        Some(paths::SHM) => config.layout.shm_bytes = bytes,
        _ => {}
    }
    Ok(())
}

fn cgroup_limits(part: &Part) -> anyhow::Result<Limits> {
    let billionths = ExactQuantity::parse(&part.amounts.cpu_limit.text())?.as_nanos();
    Ok(Limits {
        memory_bytes: Some(to_bytes(&part.amounts.memory_limit)?),
        pids: Some(MAX_PIDS),
        cpu_millis: u32::try_from(billionths / 1_000_000).ok(),
    })
}

fn to_bytes(quantity: &Quantity) -> anyhow::Result<u64> {
    let billionths = ExactQuantity::parse(&quantity.text())?.as_nanos();
    Ok(u64::try_from(billionths / 1_000_000_000).unwrap_or(u64::MAX))
}

/// Whether a program is statically linked: it has no interpreter (`PT_INTERP`).
fn is_static(program: &Path) -> anyhow::Result<bool> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    const HEADER: usize = 64;
    const INTERPRETER: u32 = 3;
    let mut file = std::fs::File::open(program)?;
    let mut header = [0; HEADER];
    file.read_exact(&mut header)?;
    let number = |at: usize, bytes: usize| {
        let end = header.get(at..at + bytes).unwrap_or_default();
        end.iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let (table, entry, count) = (number(32, 8), number(54, 2), number(56, 2));
    for index in 0..count {
        file.seek(SeekFrom::Start(table + index * entry))?;
        let mut kind = [0; 4];
        file.read_exact(&mut kind)?;
        if u32::from_le_bytes(kind) == INTERPRETER {
            return Ok(false);
        }
    }
    Ok(true)
}
