//! Sandboxes without user namespaces, for machines that block them: held by Landlock, seccomp and supervision alone.
//!
//! Without a mount namespace nothing can be mounted at the paths of a pod: each part is told where its files are, and
//! sees those and the system's directories, nothing else of the machine. Without a network namespace commands get no
//! sockets at all. What is impossible this way is refused before anything starts.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use sympozium_api::RunPlan;
use sympozium_api::digest::canonical;
use sympozium_api::guarantee::Guarantee as Planned;
use sympozium_api::run_plan::{AgentView, Mount, Part, Places, Role, Start, place};
use sympozium_exec::environment::{DEFAULT_PATH, Environment};
use sympozium_exec::guarantee::{Cell, cell};
use sympozium_exec::landlock::View;
use sympozium_exec::seccomp::Sockets;
use sympozium_exec::world::system_paths;
use sympozium_exec::{Config, Guarantee, Processes, Profile, Request};
use sympozium_plan::plan::agent_view;
use sympozium_plan::render::{floor_words, limit_arguments, platform_words};

use super::prepared::{PackRoot, Prepared};
use super::volumes::make_directory;
use super::worlds::{GATEWAY_SOCKET, Ground, Sandbox, guarantee};
use crate::parts;

const PROFILE: Profile = Profile::Container;
/// The run's `live` directory, which is the working directory of every part of ours: keeps paths of sockets short,
/// however long the path of `live` is.
const HERE: &str = "/proc/self/cwd";
/// Our parts read about themselves and their children here.
const PROC: &str = "/proc";
/// In `live`: links to this program under the names of the parts.
const PROGRAMS: &str = "bin";
/// In `live`: the `/ipc` directories of all skills, by pack.
const EXCHANGE: &str = "ipc";
/// In `live`: the agent's view, with the real paths.
const VIEW: &str = "view";

/// Whether these sandboxes hold a guarantee.
pub fn holds(guarantee: Guarantee) -> bool {
    // Without sockets there is no network.
    guarantee == Guarantee::Network || matches!(cell(PROFILE, guarantee), Cell::Enforced { .. })
}

/// The guarantees that these sandboxes hold, as plans name them.
fn platform() -> Vec<Planned> {
    let all = Planned::ALL.into_iter();
    all.filter(|it| holds(guarantee(*it))).collect()
}

/// Everything that the run requires and these sandboxes cannot provide.
pub fn obstacles(prepared: &Prepared, live: &Path, workspace: Option<&Path>) -> Vec<String> {
    let plan = &prepared.plan;
    let mut found = Vec::new();
    let floor = plan.isolation.floor.iter().copied().map(guarantee);
    let lacking: Vec<&str> = floor.filter(|it| !holds(*it)).map(Guarantee::as_str).collect();
    if !lacking.is_empty() {
        found.push(format!("its isolation floor asks for {}", lacking.join(", ")));
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
            found.push(format!("{who} has egress, and there is no network of its own for it"));
        }
        if matches!(prepared.root_of(part), Some(PackRoot::Directory(_))) {
            found.push(format!("{who} is run from the directory of an image"));
        }
        let fixed: Vec<&str> = (part.mounts.iter())
            .map(|mount| mount.path.as_str())
            .filter(|path| !can_be_elsewhere(&part.role, path))
            // The gateway's credential would be there: covered by the message about egress.
            .filter(|path| *path != place::INPUT)
            .collect();
        if !fixed.is_empty() {
            found.push(format!("{who} has files at {}", fixed.join(", ")));
        }
    }
    if let Some(workspace) = workspace.filter(|it| is_above(it, live)) {
        let workspace = workspace.display();
        found.push(format!("the workspace {workspace} holds the state of runs"));
    }
    found
}

/// Whether a mount of the pod can have another path here, because its user is told the path. A hook is not: its command
/// contains the paths of the pod.
fn can_be_elsewhere(role: &Role, path: &str) -> bool {
    let anybody = [place::TMP, place::SHM];
    let skill = [place::IPC, place::WORKSPACE];
    anybody.contains(&path) || !role.is_hook() && skill.contains(&path)
}

fn is_above(directory: &Path, path: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    real(path).starts_with(real(directory))
}

/// A mount of the pod, and the directory that it is here.
struct Placed<'p> {
    mount: &'p Mount,
    real: PathBuf,
}

impl Ground<'_> {
    /// Builds the sandbox of a part without namespaces. Fails if the part needs something that this machine does not
    /// have.
    pub fn bare(&self, part: &Part) -> anyhow::Result<Sandbox> {
        let scratch = self.directory(&format!("tmp-{}", part.name))?;
        let placed = self.placed(part, &scratch)?;
        let mut config = Config::new(PROFILE).working_in(self.live);
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
                true => config.view.readable.push(it.real.clone()),
                false => config.view.writable.push(it.real.clone()),
            }
        }
        let mut path = DEFAULT_PATH.into();
        let argv = match &part.role {
            Role::Agent => self.bare_agent(&placed, &mut config)?,
            Role::Bridge => self.bare_bridge(&placed, &mut config)?,
            Role::Skill { .. } | Role::Sandbox => {
                let tools = self.bare_tools(part, &mut config)?;
                let argv = self.bare_skill(part, &placed, &scratch, &mut config)?;
                path = tools.into_os_string();
                argv
            }
            Role::PreRun { .. } | Role::PostRun { .. } => {
                config.sockets = Sockets::None;
                config.processes = Processes::Hidden;
                config.working_directory.clone_from(&scratch);
                hook(part)?
            }
        };
        let mut environment = self.environment(part)?;
        environment.push(("PATH".into(), path));
        config.environment = Environment::of_part(environment).with_scratch(&scratch);
        Ok(Sandbox { config, start: self.bounded(part, Request::argv(argv)), forward: None })
    }

    fn directory(&self, name: &str) -> anyhow::Result<PathBuf> {
        let directory = self.live.join(name);
        make_directory(&directory)?;
        Ok(directory)
    }

    fn placed<'p>(&self, part: &'p Part, scratch: &Path) -> anyhow::Result<Vec<Placed<'p>>> {
        let mut placed = Vec::new();
        for mount in &part.mounts {
            let is_exchange = Path::new(mount.path.as_str()).starts_with(place::IPC);
            let source = self.volumes.source(&mount.volume, mount.sub_path.as_deref())?;
            let real = match (source, mount.path.as_str()) {
                (Some(_), _) if is_exchange => self.exchange(mount)?,
                (Some(source), _) => source,
                (None, place::TMP) => scratch.to_owned(),
                // Shared memory is the machine's own.
                (None, _) => continue,
            };
            placed.push(Placed { mount, real });
        }
        Ok(placed)
    }

    /// The `/ipc` directory of a skill, below the bridge's directory of all skills.
    fn exchange(&self, mount: &Mount) -> anyhow::Result<PathBuf> {
        let parts = self.prepared.plan.parts.iter();
        let bridge = parts.filter(|part| part.role == Role::Bridge);
        let mut mounts = bridge.flat_map(|part| &part.mounts);
        let of_bridge = mounts.find(|it| it.volume == mount.volume);
        let pack = of_bridge.and_then(|it| it.path.as_str().strip_prefix(place::IPC));
        let pack = pack.map(|it| it.trim_start_matches('/'));
        let pack = pack.filter(|it| !it.is_empty() && !it.contains('/'));
        let pack = pack.with_context(|| format!("the bridge has no volume {}", mount.volume))?;
        self.directory(EXCHANGE)?;
        self.directory(&format!("{EXCHANGE}/{pack}"))
    }

    /// Links this program under the name of a part, and lets the sandbox read it and `/proc`.
    fn bare_ours(&self, config: &mut Config, part: &str) -> anyhow::Result<String> {
        let link = self.directory(PROGRAMS)?.join(part);
        match symlink(self.program, &link) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("cannot make {}", link.display()));
            }
            _ => {}
        }
        let own = [self.program, Path::new(PROC)].map(Path::to_owned);
        config.view.readable.extend(own);
        text(&link)
    }

    /// A path in `live`, relative to the working directory of the parts.
    fn here(&self, path: &Path) -> anyhow::Result<String> {
        let below = path.strip_prefix(self.live);
        let below = below.with_context(|| format!("{} is elsewhere", path.display()))?;
        text(&Path::new(HERE).join(below))
    }

    fn bare_agent(&self, placed: &[Placed<'_>], config: &mut Config) -> anyhow::Result<Vec<String>> {
        let mut view = agent_view(&self.prepared.plan);
        for root in &mut view.roots {
            root.path = moved(placed, &root.path)?;
        }
        for skill in &mut view.skills {
            skill.directory = moved(placed, &skill.directory)?;
        }
        view.places = Some(Places { workspace: moved(placed, place::WORKSPACE)?, scratch: moved(placed, place::TMP)? });
        let input = self.directory(VIEW)?;
        let bytes = canonical(&view).context("the agent's view has no JSON")?;
        std::fs::write(input.join(AgentView::FILE), bytes).context("cannot write its view")?;
        config.view.readable.push(input.clone());
        let mut argv = vec![self.bare_ours(config, parts::AGENT)?];
        argv.push(format!("--input={}", self.here(&input)?));
        if let Some(door) = find(placed, place::DOOR) {
            argv.push(format!("--door={}", self.here(door)?));
        }
        Ok(argv)
    }

    fn bare_bridge(&self, placed: &[Placed<'_>], config: &mut Config) -> anyhow::Result<Vec<String>> {
        let mut argv = vec![self.bare_ours(config, parts::BRIDGE)?];
        argv.push(format!("--plan-digest={}", self.prepared.digest));
        let socket = self.here(&self.gateway.join(GATEWAY_SOCKET))?;
        argv.push(format!("--gateway=unix:{socket}"));
        argv.push(platform_words(&platform()));
        argv.extend(self.verifying());
        // Created even if no skill uses it: the bridge expects it.
        let exchange = self.directory(EXCHANGE)?;
        argv.push(format!("--ipc={}", self.here(&exchange)?));
        for (flag, path) in
            [("input", place::INPUT), ("door", place::DOOR), ("headers", place::HEADERS), ("script", place::SCRIPT)]
        {
            if let Some(real) = find(placed, path) {
                argv.push(format!("--{flag}={}", self.here(real)?));
            }
        }
        config.view.writable.push(exchange);
        if let Some(certificates) = self.certificates() {
            argv.push(format!("--certificates={}", text(&certificates)?));
            config.view.readable.push(certificates);
        }
        Ok(argv)
    }

    /// Links the programs that a pack declares into one directory. Directory and programs become readable.
    fn bare_tools(&self, part: &Part, config: &mut Config) -> anyhow::Result<PathBuf> {
        // The first attempt, with namespaces, has left a directory of the other name.
        let tools = self.directory(&format!("programs-{}", part.name))?;
        if let Some(PackRoot::Host(programs)) = self.prepared.root_of(part) {
            for program in programs {
                let link = tools.join(&program.name);
                symlink(&program.path, &link).with_context(|| format!("cannot make {}", link.display()))?;
                if !system_paths().any(|system| program.path.starts_with(system)) {
                    config.view.readable.push(program.path.clone());
                }
            }
        }
        config.view.readable.push(tools.clone());
        Ok(tools)
    }

    fn bare_skill(
        &self,
        part: &Part,
        placed: &[Placed<'_>],
        scratch: &Path,
        config: &mut Config,
    ) -> anyhow::Result<Vec<String>> {
        let Some(exchange) = find(placed, place::IPC) else {
            bail!("it has no directory for its commands");
        };
        let directories = ExecutorDirectories {
            exchange,
            workspace: find(placed, place::WORKSPACE).unwrap_or(scratch),
            scratch,
            // Commands may read what the executor reads, without what the executor needs for itself.
            readable: &config.view.readable,
        };
        let arguments = executor_arguments(&self.prepared.plan, part, &directories)?;
        let mut argv = vec![self.bare_ours(config, parts::SIDECAR)?];
        argv.extend(arguments);
        Ok(argv)
    }
}

/// The directories that an executor finds at fixed paths in a pod.
pub struct ExecutorDirectories<'d> {
    /// `/ipc` in a pod.
    pub exchange: &'d Path,
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
    let ExecutorDirectories { exchange, workspace, scratch, readable } = directories;
    let mut arguments = vec![
        "ipc".to_owned(),
        "--injected".to_owned(),
        "--authenticated".to_owned(),
        format!("--pack={}", part.role.pack().unwrap_or_default()),
        format!("--profile={PROFILE}"),
        floor_words(&plan.isolation.floor),
        platform_words(&platform()),
        "--sockets=none".to_owned(),
        format!("--ipc-dir={}", text(exchange)?),
        format!("--workspace={}", text(workspace)?),
        format!("--scratch={}", text(scratch)?),
    ];
    arguments.extend(limit_arguments(plan, part));
    for path in *readable {
        arguments.push(format!("--readable={}", text(path)?));
    }
    Ok(arguments)
}

fn hook(part: &Part) -> anyhow::Result<Vec<String>> {
    match &part.start {
        Start::Image { command, args } if !command.is_empty() => Ok(command.iter().chain(args).cloned().collect()),
        _ => bail!("it says nothing about what to run: give it a `command`"),
    }
}

fn find<'p>(placed: &'p [Placed<'_>], path: &str) -> Option<&'p Path> {
    let found = placed.iter().find(|it| it.mount.path.as_str() == path);
    found.map(|it| it.real.as_path())
}

/// Maps a path of the pod to the real one: below the closest mount above it; unchanged if there is none.
fn moved(placed: &[Placed<'_>], path: &str) -> anyhow::Result<String> {
    let above = placed.iter().filter_map(|it| {
        let below = Path::new(path).strip_prefix(it.mount.path.as_str()).ok()?;
        Some((it, below))
    });
    let closest = above.min_by_key(|(_, below)| below.components().count());
    match closest {
        // Joining an empty path would add a slash.
        Some((it, below)) => text(&it.real.join(below).components().collect::<PathBuf>()),
        None => Ok(path.to_owned()),
    }
}

fn text(path: &Path) -> anyhow::Result<String> {
    let text = path.to_str().map(str::to_owned);
    text.with_context(|| format!("{} is no text", path.display()))
}
