//! What starts in the sandbox of a part, with the programs that it needs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context as _, bail};
use sympozium_api::run_plan::{Part, Role, Start};
use sympozium_exec::environment::DEFAULT_PATH;
use sympozium_exec::layout::{BindAccess, RootView, system_paths};
use sympozium_exec::{Config, Request};
use sympozium_plan::render::{ExecutorProfile, ExecutorSettings, executor_arguments, platform_argument};

use super::{GATEWAY_DIRECTORY, GATEWAY_SOCKET, SandboxInputs, bind};
use crate::binaries::Binary;
use crate::forward;
use crate::parts;
use crate::prepared_run::PartRoot;
use crate::volumes::make_directory;

/// The programs that a skill declares, in its sandbox: the only directory of its `PATH`.
const TOOLS_DIRECTORY: &str = "/opt/sympozium/tools";
/// Those of them that are not in the system's directories.
const PROGRAMS_DIRECTORY: &str = "/opt/sympozium/programs";
/// The user's additional certificates, in the sandbox of the bridge.
const CERTIFICATES_PATH: &str = "/run/certificates.pem";

/// A command, and the `PATH` that it gets.
pub struct Command {
    pub path: &'static str,
    pub argv: Vec<String>,
}

impl Command {
    const fn new(argv: Vec<String>) -> Self {
        Self { path: DEFAULT_PATH, argv }
    }
}

impl SandboxInputs<'_> {
    /// The command of a part. Binds the programs and files that it needs in addition to the part's mounts.
    pub(super) fn part_command(&self, part: &Part, config: &mut Config) -> anyhow::Result<Command> {
        match &part.role {
            Role::Agent => Ok(Command::new(vec![self.bind_program(config, parts::AGENT)])),
            Role::Bridge => Ok(self.bridge_command(config)),
            Role::Skill { .. } | Role::Sandbox => self.skill_command(part, config),
            Role::PreRun { .. } | Role::PostRun { .. } => self.hook_command(part, config),
        }
    }

    /// Binds this program under the name of a part. Returns its path in the sandbox.
    fn bind_program(&self, config: &mut Config, part: &'static str) -> String {
        let path = parts::program_path(part);
        config.layout.binds.push(bind(self.program, &path, BindAccess::ReadOnly));
        path
    }

    fn bind_gateway(&self, config: &mut Config) {
        config.layout.binds.push(bind(self.gateway, GATEWAY_DIRECTORY, BindAccess::OwnedReadOnly));
    }

    fn bridge_command(&self, config: &mut Config) -> Command {
        self.bind_gateway(config);
        let mut argv = vec![self.bind_program(config, parts::BRIDGE)];
        argv.push(format!("--plan-digest={}", self.prepared.plan_digest));
        argv.push(format!("--gateway=unix:{GATEWAY_DIRECTORY}/{GATEWAY_SOCKET}"));
        argv.push(platform_argument(&self.platform_guarantees(config.profile)));
        argv.extend(self.verifying_arguments());
        if let Some(certificates) = self.extra_certificates() {
            config.layout.binds.push(bind(&certificates, CERTIFICATES_PATH, BindAccess::ReadOnly));
            argv.push(format!("--certificates={CERTIFICATES_PATH}"));
        }
        Command::new(argv)
    }

    /// The arguments that tell the bridge which packs run our executor although the plan leaves that to the image.
    pub(crate) fn verifying_arguments(&self) -> impl Iterator<Item = String> {
        let parts = self.prepared.plan.parts.iter();
        let ours = parts.filter(move |part| !part.is_attested() && !self.has_image_executor(part));
        ours.filter_map(|part| part.role.pack()).map(|pack| format!("--verifying={pack}"))
    }

    /// Whether a part runs the executor of its image: there is an image, and a command for it.
    fn has_image_executor(&self, part: &Part) -> bool {
        let has_directory = matches!(self.prepared.part_root(part), Some(PartRoot::Directory(_)));
        let has_command = matches!(&part.start, Start::Image { command, .. } if !command.is_empty());
        has_directory && has_command
    }

    fn skill_command(&self, part: &Part, config: &mut Config) -> anyhow::Result<Command> {
        let programs = match self.prepared.part_root(part) {
            Some(PartRoot::Directory(root)) => {
                config.layout.root = RootView::Directory(root.clone());
                if let Start::Image { command, args } = &part.start
                    && !command.is_empty()
                {
                    return Ok(Command::new(command.iter().chain(args).cloned().collect()));
                }
                // Without a command the image runs our executor, as if it were injected.
                self.require_static(root)?;
                return Ok(Command::new(self.executor_argv(part, config)));
            }
            Some(PartRoot::Host(programs)) => programs.as_slice(),
            None => &[],
        };
        self.link_tools(part, programs, config)?;
        Ok(Command { path: TOOLS_DIRECTORY, argv: self.executor_argv(part, config) })
    }

    fn executor_argv(&self, part: &Part, config: &mut Config) -> Vec<String> {
        let settings = ExecutorSettings {
            profile: ExecutorProfile::Container,
            platform: self.platform_guarantees(config.profile),
        };
        let mut argv = vec![self.bind_program(config, parts::SIDECAR)];
        argv.extend(executor_arguments(&self.prepared.plan, part, &settings));
        argv
    }

    fn hook_command(&self, part: &Part, config: &mut Config) -> anyhow::Result<Command> {
        if let Some(PartRoot::Directory(root)) = self.prepared.part_root(part) {
            config.layout.root = RootView::Directory(root.clone());
        }
        let Start::Image { command, args } = &part.start else {
            bail!("a hook has no executor");
        };
        if command.is_empty() {
            bail!("hook {} has no `command`", part.name);
        }
        Ok(Command::new(command.iter().chain(args).cloned().collect()))
    }

    /// Links the programs that a pack declares into one directory.
    fn link_tools(&self, part: &Part, programs: &[Binary], config: &mut Config) -> anyhow::Result<()> {
        let tools = self.live.join(format!("tools-{}", part.name));
        make_directory(&tools)?;
        for program in programs {
            let mut target = program.path.clone();
            if !system_paths().any(|system| program.path.starts_with(system)) {
                target = Path::new(PROGRAMS_DIRECTORY).join(&program.name);
                config.layout.binds.push(bind(&program.path, &target, BindAccess::ReadOnly));
            }
            let link = tools.join(&program.name);
            symlink(&target, &link).with_context(|| format!("cannot create {}", link.display()))?;
        }
        config.layout.binds.push(bind(&tools, TOOLS_DIRECTORY, BindAccess::OwnedReadOnly));
        Ok(())
    }

    /// The command that listens in the sandbox for the gateway, and for each host and port that the plan lists by name.
    pub(super) fn forwarder_request(&self, part: &Part, config: &mut Config) -> anyhow::Result<Request> {
        if let RootView::Directory(root) = &config.layout.root {
            self.require_static(root)?;
        }
        self.bind_gateway(config);
        let mut argv = vec![self.bind_program(config, parts::FORWARD)];
        argv.push(format!("--proxy={}", forward::PROXY_PORT));
        let credentials = self.prepared.plan.credentials.iter().filter(|it| it.part == part.name);
        let mut addresses: BTreeMap<&str, Ipv4Addr> = BTreeMap::new();
        for destination in credentials.flat_map(|it| &it.reach.destinations) {
            let host = destination.host.as_str();
            let has_name = !host.contains('*') && host != "localhost" && host.parse::<IpAddr>().is_err();
            let Some(port) = destination.port.filter(|_| has_name) else {
                continue;
            };
            let next = forward::host_address(addresses.len());
            let Some(address) = addresses.get(host).copied().or(next) else {
                break;
            };
            if addresses.insert(host, address).is_none() {
                config.layout.hosts.push((address, host.to_owned()));
            }
            argv.push(format!("--forward={address}:{port}={host}:{port}"));
        }
        Ok(Request::argv(argv))
    }

    /// In the root of another system our program cannot use shared libraries.
    fn require_static(&self, root: &Path) -> anyhow::Result<()> {
        if !is_static(self.program)? {
            bail!(
                "this build of sympozium needs the machine's libraries, which {} does not have: \
                 install the static release, or give the pack a `command`",
                root.display()
            );
        }
        Ok(())
    }
}

/// Whether a program is statically linked: it has no interpreter (`PT_INTERP`).
fn is_static(program: &Path) -> anyhow::Result<bool> {
    const HEADER: usize = 64;
    const INTERPRETER: u32 = 3;
    let mut file = File::open(program)?;
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
