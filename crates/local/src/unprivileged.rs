//! Sandboxes without user namespaces, for machines that block them: held by Landlock, seccomp and supervision alone.
//!
//! Without a mount namespace nothing can be mounted at the paths of a pod: each part gets the paths of its files as arguments, and
//! sees those and the system's directories, nothing else of the machine. Without a network namespace commands get no
//! sockets at all. What is impossible this way is refused before anything starts.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use sympozium_api::digest::to_canonical_json;
use sympozium_api::run_plan::{AgentPaths, AgentView, Mount, Part, Role, Start, paths};
use sympozium_api::{Guarantee, RunPlan};
use sympozium_exec::environment::{DEFAULT_PATH, Environment};
use sympozium_exec::guarantee::{Cell, cell};
use sympozium_exec::landlock::View;
use sympozium_exec::layout::system_paths;
use sympozium_exec::seccomp::Sockets;
use sympozium_exec::{Config, ProcessVisibility, Profile, Request};
use sympozium_plan::plan::agent_view;
use sympozium_plan::render::{floor_argument, limit_arguments, platform_argument};

use crate::parts;
use crate::prepared_run::{PartRoot, PreparedRun};
use crate::sandbox_spec::{GATEWAY_SOCKET, PartSpec, SandboxInputs};
use crate::volumes::make_directory;

const PROFILE: Profile = Profile::Container;
/// The run's `live` directory, which is the working directory of every part of ours: keeps paths of sockets short,
/// however long the path of `live` is.
const LIVE_DIRECTORY: &str = "/proc/self/cwd";
/// Our parts read about themselves and their children here.
const PROC: &str = "/proc";
/// In `live`: links to this program under the names of the parts.
const PROGRAMS_NAME: &str = "bin";
/// In `live`: the `/ipc` directories of all skills, by pack.
const IPC_NAME: &str = "ipc";
/// In `live`: the agent's view, with the real paths.
const VIEW_NAME: &str = "view";

/// Whether these sandboxes hold a guarantee.
pub fn holds(guarantee: Guarantee) -> bool {
    // Without sockets there is no network.
    guarantee == Guarantee::Network || matches!(cell(PROFILE, guarantee), Cell::Enforced { .. })
}

/// The guarantees that these sandboxes hold.
fn platform_guarantees() -> Vec<Guarantee> {
    Guarantee::ALL.into_iter().filter(|guarantee| holds(*guarantee)).collect()
}

/// Everything that the run requires and these sandboxes cannot provide.
pub fn find_obstacles(prepared: &PreparedRun, live: &Path, workspace: Option<&Path>) -> Vec<String> {
    let plan = &prepared.plan;
    let mut found = Vec::new();
    let floor = plan.isolation.floor.iter().copied();
    let lacking: Vec<&str> = floor.filter(|it| !holds(*it)).map(Guarantee::as_str).collect();
    if !lacking.is_empty() {
        found.push(format!("its isolation floor requires {}", lacking.join(", ")));
    }
    for part in &plan.parts {
        let is_ours = matches!(part.role, Role::Agent | Role::Bridge);
        if is_ours {
            continue;
        }
        let who = match part.role.pack() {
            Some(pack) => format!("pack {pack}"),
            None => format!("part {}", part.name),
        };
        if plan.credentials.iter().any(|it| it.part == part.name) {
            found.push(format!("{who} has egress, which needs a network namespace"));
        }
        if matches!(prepared.part_root(part), Some(PartRoot::Directory(_))) {
            found.push(format!("{who} runs from the root file system of an image"));
        }
        let fixed: Vec<&str> = (part.mounts.iter())
            .map(|mount| mount.path.as_str())
            .filter(|path| !can_be_remapped(&part.role, path))
            // The gateway's credential would be there: covered by the message about egress.
            .filter(|path| *path != paths::INPUT)
            .collect();
        if !fixed.is_empty() {
            found.push(format!("{who} needs files at the fixed paths {}", fixed.join(", ")));
        }
    }
    if let Some(workspace) = workspace.filter(|it| is_ancestor(it, live)) {
        let workspace = workspace.display();
        found.push(format!("the workspace {workspace} contains the state directory of runs"));
    }
    found
}

/// Whether a mount of the pod can have another path here, because the part gets the path as an argument. A hook does not: its command
/// contains the paths of the pod.
fn can_be_remapped(role: &Role, path: &str) -> bool {
    let anybody = [paths::TMP, paths::SHM];
    let skill = [paths::IPC, paths::WORKSPACE];
    anybody.contains(&path) || !role.is_hook() && skill.contains(&path)
}

fn is_ancestor(directory: &Path, path: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    real(path).starts_with(real(directory))
}

/// A mount of the pod, and the directory that it is here.
struct MappedMount<'p> {
    mount: &'p Mount,
    host_path: PathBuf,
}

impl SandboxInputs<'_> {
    /// Builds the sandbox of a part without namespaces. Fails if the part needs something that this machine does not
    /// have.
    pub fn unprivileged_spec(&self, part: &Part) -> anyhow::Result<PartSpec> {
        let scratch = self.make_live_directory(&format!("tmp-{}", part.name))?;
        let placed = self.map_mounts(part, &scratch)?;
        let mut config = Config::new(PROFILE).with_working_directory(self.live);
        config.floor = self.floor(PROFILE);
        config.sockets = Sockets::UnixOnly;
        config.view = View {
            readable: system_paths().map(Path::to_owned).collect(),
            hidden: Vec::new(),
            writable: vec![scratch.clone()],
            terminals: false,
        };
        for it in &placed {
            match it.mount.read_only {
                true => config.view.readable.push(it.host_path.clone()),
                false => config.view.writable.push(it.host_path.clone()),
            }
        }
        let mut path = DEFAULT_PATH.into();
        let argv = match &part.role {
            Role::Agent => self.unprivileged_agent(&placed, &mut config)?,
            Role::Bridge => self.unprivileged_bridge(&placed, &mut config)?,
            Role::Skill { .. } | Role::Sandbox => {
                let tools = self.unprivileged_tools(part, &mut config)?;
                let argv = self.unprivileged_skill(part, &placed, &scratch, &mut config)?;
                path = tools.into_os_string();
                argv
            }
            Role::PreRun { .. } | Role::PostRun { .. } => {
                config.sockets = Sockets::None;
                config.processes = ProcessVisibility::Hidden;
                config.working_directory.clone_from(&scratch);
                hook_argv(part)?
            }
        };
        let mut environment = self.part_environment(part)?;
        environment.push(("PATH".into(), path));
        config.environment = Environment::for_part(environment).with_scratch(&scratch);
        Ok(PartSpec { config, start: self.apply_limits(part, Request::argv(argv)), forward: None })
    }

    fn make_live_directory(&self, name: &str) -> anyhow::Result<PathBuf> {
        let directory = self.live.join(name);
        make_directory(&directory)?;
        Ok(directory)
    }

    fn map_mounts<'p>(&self, part: &'p Part, scratch: &Path) -> anyhow::Result<Vec<MappedMount<'p>>> {
        let mut placed = Vec::new();
        for mount in &part.mounts {
            let is_exchange = Path::new(mount.path.as_str()).starts_with(paths::IPC);
            let source = self.volumes.source(&mount.volume, mount.sub_path.as_deref())?;
            let real = match (source, mount.path.as_str()) {
                (Some(_), _) if is_exchange => self.make_ipc_directory(mount)?,
                (Some(source), _) => source,
                (None, paths::TMP) => scratch.to_owned(),
                // Shared memory is the machine's own.
                (None, _) => continue,
            };
            placed.push(MappedMount { mount, host_path: real });
        }
        Ok(placed)
    }

    /// The `/ipc` directory of a skill, below the bridge's directory of all skills.
    fn make_ipc_directory(&self, mount: &Mount) -> anyhow::Result<PathBuf> {
        let parts = self.prepared.plan.parts.iter();
        let bridge = parts.filter(|part| part.role == Role::Bridge);
        let mut mounts = bridge.flat_map(|part| &part.mounts);
        let of_bridge = mounts.find(|it| it.volume == mount.volume);
        let pack = of_bridge.and_then(|it| it.path.as_str().strip_prefix(paths::IPC));
        let pack = pack.map(|it| it.trim_start_matches('/'));
        let pack = pack.filter(|it| !it.is_empty() && !it.contains('/'));
        let pack = pack.with_context(|| format!("the bridge does not mount volume {}", mount.volume))?;
        self.make_live_directory(IPC_NAME)?;
        self.make_live_directory(&format!("{IPC_NAME}/{pack}"))
    }

    /// Links this program under the name of a part, and lets the sandbox read it and `/proc`.
    fn link_program(&self, config: &mut Config, part: &str) -> anyhow::Result<String> {
        let link = self.make_live_directory(PROGRAMS_NAME)?.join(part);
        match symlink(self.program, &link) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("cannot create {}", link.display()));
            }
            _ => {}
        }
        let own = [self.program, Path::new(PROC)].map(Path::to_owned);
        config.view.readable.extend(own);
        path_to_string(&link)
    }

    /// A path in `live`, relative to the working directory of the parts.
    fn path_from_live(&self, path: &Path) -> anyhow::Result<String> {
        let below = path.strip_prefix(self.live);
        let below = below.with_context(|| format!("{} is outside of the run's live directory", path.display()))?;
        path_to_string(&Path::new(LIVE_DIRECTORY).join(below))
    }

    fn unprivileged_agent(&self, placed: &[MappedMount<'_>], config: &mut Config) -> anyhow::Result<Vec<String>> {
        let mut view = agent_view(&self.prepared.plan);
        for root in &mut view.roots {
            root.path = remap_path(placed, &root.path)?;
        }
        for skill in &mut view.skills {
            skill.directory = remap_path(placed, &skill.directory)?;
        }
        view.places = Some(AgentPaths {
            workspace: remap_path(placed, paths::WORKSPACE)?,
            scratch: remap_path(placed, paths::TMP)?,
        });
        let input = self.make_live_directory(VIEW_NAME)?;
        let bytes = to_canonical_json(&view).context("cannot serialize the agent's view as JSON")?;
        std::fs::write(input.join(AgentView::FILE), bytes).context("cannot write the agent's view")?;
        config.view.readable.push(input.clone());
        let mut argv = vec![self.link_program(config, parts::AGENT)?];
        argv.push(format!("--input={}", self.path_from_live(&input)?));
        if let Some(door) = find_host_path(placed, paths::DOOR) {
            argv.push(format!("--door={}", self.path_from_live(door)?));
        }
        Ok(argv)
    }

    fn unprivileged_bridge(&self, placed: &[MappedMount<'_>], config: &mut Config) -> anyhow::Result<Vec<String>> {
        let mut argv = vec![self.link_program(config, parts::BRIDGE)?];
        argv.push(format!("--plan-digest={}", self.prepared.plan_digest));
        let socket = self.path_from_live(&self.gateway.join(GATEWAY_SOCKET))?;
        argv.push(format!("--gateway=unix:{socket}"));
        argv.push(platform_argument(&platform_guarantees()));
        argv.extend(self.verifying_arguments());
        // Created even if no skill uses it: the bridge expects it.
        let exchange = self.make_live_directory(IPC_NAME)?;
        argv.push(format!("--ipc={}", self.path_from_live(&exchange)?));
        for (flag, path) in
            [("input", paths::INPUT), ("door", paths::DOOR), ("headers", paths::HEADERS), ("script", paths::SCRIPT)]
        {
            if let Some(real) = find_host_path(placed, path) {
                argv.push(format!("--{flag}={}", self.path_from_live(real)?));
            }
        }
        config.view.writable.push(exchange);
        if let Some(certificates) = self.extra_certificates() {
            argv.push(format!("--certificates={}", path_to_string(&certificates)?));
            config.view.readable.push(certificates);
        }
        Ok(argv)
    }

    /// Links the programs that a pack declares into one directory. Directory and programs become readable.
    fn unprivileged_tools(&self, part: &Part, config: &mut Config) -> anyhow::Result<PathBuf> {
        // The first attempt, with namespaces, has left a directory of the other name.
        let tools = self.make_live_directory(&format!("programs-{}", part.name))?;
        if let Some(PartRoot::Host(programs)) = self.prepared.part_root(part) {
            for program in programs {
                let link = tools.join(&program.name);
                symlink(&program.path, &link).with_context(|| format!("cannot create {}", link.display()))?;
                if !system_paths().any(|system| program.path.starts_with(system)) {
                    config.view.readable.push(program.path.clone());
                }
            }
        }
        config.view.readable.push(tools.clone());
        Ok(tools)
    }

    fn unprivileged_skill(
        &self,
        part: &Part,
        placed: &[MappedMount<'_>],
        scratch: &Path,
        config: &mut Config,
    ) -> anyhow::Result<Vec<String>> {
        let Some(exchange) = find_host_path(placed, paths::IPC) else {
            bail!("the skill has no /ipc directory");
        };
        let directories = ExecutorDirectories {
            ipc: exchange,
            workspace: find_host_path(placed, paths::WORKSPACE).unwrap_or(scratch),
            scratch,
            // Commands may read what the executor reads, without what the executor needs for itself.
            readable: &config.view.readable,
        };
        let arguments = executor_arguments(&self.prepared.plan, part, &directories)?;
        let mut argv = vec![self.link_program(config, parts::SIDECAR)?];
        argv.extend(arguments);
        Ok(argv)
    }
}

/// The directories that an executor finds at fixed paths in a pod.
pub struct ExecutorDirectories<'d> {
    /// `/ipc` in a pod.
    pub ipc: &'d Path,
    /// `/workspace` in a pod.
    pub workspace: &'d Path,
    /// `/tmp` in a pod.
    pub scratch: &'d Path,
    /// Whatever else commands may read.
    pub readable: &'d [PathBuf],
}

/// The arguments of the executor that runs the commands of a part, without the program's name. Fails if a path is not
/// UTF-8.
pub fn executor_arguments(
    plan: &RunPlan,
    part: &Part,
    directories: &ExecutorDirectories<'_>,
) -> anyhow::Result<Vec<String>> {
    let ExecutorDirectories { ipc: exchange, workspace, scratch, readable } = directories;
    let mut arguments = vec![
        "ipc".to_owned(),
        "--injected".to_owned(),
        "--authenticated".to_owned(),
        format!("--pack={}", part.role.pack().unwrap_or_default()),
        format!("--profile={PROFILE}"),
        floor_argument(&plan.isolation.floor),
        platform_argument(&platform_guarantees()),
        "--sockets=none".to_owned(),
        format!("--ipc-dir={}", path_to_string(exchange)?),
        format!("--workspace={}", path_to_string(workspace)?),
        format!("--scratch={}", path_to_string(scratch)?),
    ];
    arguments.extend(limit_arguments(plan, part));
    for path in *readable {
        arguments.push(format!("--readable={}", path_to_string(path)?));
    }
    Ok(arguments)
}

fn hook_argv(part: &Part) -> anyhow::Result<Vec<String>> {
    match &part.start {
        Start::Image { command, args } if !command.is_empty() => Ok(command.iter().chain(args).cloned().collect()),
        _ => bail!("the hook has no `command`"),
    }
}

fn find_host_path<'p>(placed: &'p [MappedMount<'_>], path: &str) -> Option<&'p Path> {
    let found = placed.iter().find(|it| it.mount.path.as_str() == path);
    found.map(|it| it.host_path.as_path())
}

/// Maps a path of the pod to the real one: below the closest mount above it; unchanged if there is none.
fn remap_path(placed: &[MappedMount<'_>], path: &str) -> anyhow::Result<String> {
    let above = placed.iter().filter_map(|it| {
        let below = Path::new(path).strip_prefix(it.mount.path.as_str()).ok()?;
        Some((it, below))
    });
    let closest = above.min_by_key(|(_, below)| below.components().count());
    match closest {
        // Joining an empty path would add a slash.
        Some((it, below)) => path_to_string(&it.host_path.join(below).components().collect::<PathBuf>()),
        None => Ok(path.to_owned()),
    }
}

fn path_to_string(path: &Path) -> anyhow::Result<String> {
    let text = path.to_str().map(str::to_owned);
    text.with_context(|| format!("the path {} is not UTF-8", path.display()))
}
