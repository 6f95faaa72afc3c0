//! The directories in which the agent has files, and how a path that a model names is found in one of them.
//!
//! `.` and `..` are resolved in the text of a path, before a root is chosen: `link/../x` is `x` beside the link. The root is the
//! longest that holds the path. Below it the kernel resolves (`Resolve::BENEATH`): links are followed while they stay there,
//! absolute links and magic links never.
//!
//! A root that holds a closed place (`/` holds `/proc` and `/run`) needs more, because a link in it could lead there without
//! leaving it. Such a root is resolved with `Mounts::Stay`: procfs, the inputs of the run, tokens and the door are all mounts of
//! their own, so none can be entered from it, whatever links there are. Mounts that the agent is meant to have are roots of
//! their own.
//!
//! A root can be written to where the plan says so, and where tools may write at all: see [`WRITABLE`](super::WRITABLE).

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use sympozium_api::builtin_tool::{EDIT_FILE, WRITE_FILE};
use sympozium_api::run_plan::{Root, paths};
use sympozium_exec::beneath::{self, Links, Mounts, Resolve};

use super::access::{Commands, Writing, made_plain};
use super::path::{Named, holds, joined, plain};
use crate::tools::ToolError;

/// Most roots that a message names.
const MOST_NAMED: usize = 24;

/// Places that are never opened, whatever the roots say: the kernel's own, and what parts of a run say to each other.
const CLOSED: [&str; 9] =
    ["/proc", "/sys", "/dev", paths::IPC, paths::INPUT, paths::DOOR, paths::HEADERS, paths::SCRIPT, paths::TOKEN];
/// Places that are closed unless a root is at or below them: the image's, where an author may have mounted something.
const CLOSED_IN_IMAGE: [&str; 2] = ["/run", "/var/run"];

/// The directories in which the agent has files, each opened once.
#[derive(Debug)]
pub struct Roots {
    /// The longest path first.
    roots: Vec<Opened>,
    /// Where tools may write, for messages.
    places: Vec<String>,
    /// What a relative path is below.
    workspace: String,
    commands: Commands,
}

#[derive(Debug)]
struct Opened {
    /// Its place, without a slash at the end; the root of all is empty.
    path: String,
    writing: Writing,
    handle: Handle,
    resolve: Resolve,
}

#[derive(Debug)]
enum Handle {
    Directory(OwnedFd),
    /// A file that is mounted by itself: the directory that it is in, and its name there. A descriptor of the file could
    /// not be opened again for reading without `/proc`.
    File {
        parent: OwnedFd,
        name: String,
    },
}

impl Roots {
    /// Opens them. A root that is not there is left out. Tools write in `places` and below them only: the agent's are
    /// [`WRITABLE`](super::WRITABLE).
    pub fn open(roots: &[Root], places: &[&str]) -> Self {
        let places = made_plain(places);
        let mut opened: Vec<Opened> = Vec::new();
        for root in roots {
            let Ok(parts) = plain(&root.path) else {
                continue;
            };
            let path = joined(&parts);
            let known = opened.iter().any(|it| it.path == path);
            if !root.path.starts_with('/') || known || CLOSED.iter().any(|it| holds(it, &path)) {
                continue;
            }
            if let Some(handle) = open_root(&parts, &path) {
                let writing = Writing::of(root, &path, &places);
                opened.push(Opened::new(path, writing, handle));
            }
        }
        opened.sort_by_key(|root| std::cmp::Reverse(root.path.len()));
        Self { roots: opened, places, workspace: paths::WORKSPACE.to_owned(), commands: Commands::NotOffered }
    }

    /// The same, with the workspace at another place than every pod has it.
    #[must_use]
    pub fn with_workspace(self, workspace: &str) -> Self {
        let workspace = workspace.to_owned();
        Self { workspace, ..self }
    }

    /// The same, for a model that can or cannot have commands run.
    #[must_use]
    pub fn with_commands(self, commands: Commands) -> Self {
        Self { commands, ..self }
    }

    /// Whether the model can have commands run.
    pub(crate) fn commands(&self) -> Commands {
        self.commands
    }

    /// The place that a model means by `path`: absolute, or below the workspace.
    pub(crate) fn find(&self, path: &str) -> Result<Place<'_>, ToolError> {
        let path = self.named(path)?;
        self.place(&path).ok_or_else(|| self.outside(&path))
    }

    /// What a model means by `path`. Wherever the workspace is, it is known by the name that it has in every pod, too: tools
    /// are described with that.
    pub(super) fn named(&self, path: &str) -> Result<Named, ToolError> {
        let mut named = Named::parse(path)?;
        let moved = (named.path.strip_prefix(paths::WORKSPACE)).filter(|rest| rest.is_empty() || rest.starts_with('/'));
        if let (Some(rest), false) = (moved, holds(&self.workspace, &named.path)) {
            named.path = format!("{}{rest}", self.workspace);
        }
        Ok(named)
    }

    pub(super) fn place(&self, named: &Named) -> Option<Place<'_>> {
        let path = named.path.as_str();
        if CLOSED.iter().any(|it| holds(it, path)) {
            return None;
        }
        let root = self.roots.iter().find(|root| holds(&root.path, path))?;
        let is_shut = |it: &&str| holds(it, path) && !holds(it, &root.path);
        if CLOSED_IN_IMAGE.iter().any(is_shut) {
            return None;
        }
        let below = path[root.path.len()..].trim_start_matches('/').to_owned();
        Some(Place { root, commands: self.commands, below, shown: named.shown() })
    }

    pub(super) fn outside(&self, named: &Named) -> ToolError {
        ToolError(format!("{} is outside of what you can read: {}", named.shown(), self.names(|_| true)))
    }

    /// That a root cannot be written to, and which can.
    pub(super) fn unwritable(&self, place: &Place<'_>) -> ToolError {
        let why = match place.root.writing {
            Writing::Elsewhere => {
                format!("{WRITE_FILE} and {EDIT_FILE} write only below {}", self.places.join(" and "))
            }
            Writing::ReadOnly | Writing::Yes => format!("{} is read-only", place.root_shown()),
        };
        ToolError(format!(
            "{} cannot be written: {why}; what you can write: {}",
            place.shown,
            self.names(|root| root.writing == Writing::Yes)
        ))
    }

    fn names(&self, which: impl Fn(&Opened) -> bool) -> String {
        let mut names: Vec<&str> = self.roots.iter().filter(|root| which(root)).map(Opened::shown).collect();
        // The longest first is how they are kept, not how they are read.
        names.sort_unstable();
        let more = names.len().saturating_sub(MOST_NAMED);
        names.truncate(MOST_NAMED);
        match (names.is_empty(), more) {
            (true, _) => "nothing".to_owned(),
            (false, 0) => names.join(", "),
            (false, more) => format!("{} and {more} more", names.join(", ")),
        }
    }

    /// The roots at or below a path, by name.
    pub(super) fn below(&self, named: &Named) -> Vec<Place<'_>> {
        let mut found: Vec<Place<'_>> = self
            .roots
            .iter()
            .filter(|root| holds(&named.path, &root.path))
            .map(|root| Place { root, commands: self.commands, below: String::new(), shown: root.shown().to_owned() })
            .collect();
        found.sort_by(|one, other| one.shown.cmp(&other.shown));
        found
    }
}

impl Opened {
    fn new(path: String, writing: Writing, handle: Handle) -> Self {
        let closed = CLOSED.iter().chain(&CLOSED_IN_IMAGE);
        let has_closed = closed.into_iter().any(|it| holds(&path, it));
        let mounts = if has_closed { Mounts::Stay } else { Mounts::Cross };
        Self { path, writing, handle, resolve: Resolve { mounts, ..Resolve::BENEATH } }
    }

    fn shown(&self) -> &str {
        if self.path.is_empty() { "/" } else { &self.path }
    }
}

fn open_root(parts: &[&str], path: &str) -> Option<Handle> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let shown = if path.is_empty() { "/" } else { path };
    let whole = rustix::fs::openat(CWD, shown, flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&whole).ok()?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        return Some(Handle::Directory(whole));
    }
    let (name, above) = parts.split_last()?;
    let above = format!("/{}", above.join("/"));
    let parent = rustix::fs::openat(CWD, above, flags | OFlags::DIRECTORY, Mode::empty()).ok()?;
    Some(Handle::File { parent, name: (*name).to_owned() })
}

/// A path in one of the roots. That something is there has not been looked at.
#[derive(Debug)]
pub(crate) struct Place<'r> {
    root: &'r Opened,
    commands: Commands,
    /// The path below the root; empty for the root itself.
    below: String,
    /// The whole path, for messages.
    pub shown: String,
}

impl Place<'_> {
    pub fn is_writable(&self) -> bool {
        self.root.writing == Writing::Yes
    }

    pub fn commands(&self) -> Commands {
        self.commands
    }

    /// What is advised to a model that can have commands run; nothing to others.
    pub fn by_command(&self, advice: &'static str) -> &'static str {
        match self.commands {
            Commands::Offered => advice,
            Commands::NotOffered => "",
        }
    }

    /// Whether the root refuses what is mounted below it.
    pub fn stays(&self) -> bool {
        self.root.resolve.mounts == Mounts::Stay
    }

    pub fn root_shown(&self) -> &str {
        self.root.shown()
    }

    /// Opens it. Links are followed while they stay in the root.
    pub fn open(&self, flags: OFlags) -> io::Result<OwnedFd> {
        self.open_below(&self.below, flags)
    }

    /// The names on the way from the root, the last one apart. `None` for a root itself.
    pub fn split(&self) -> Option<(Vec<&str>, &str)> {
        let mut names: Vec<&str> = self.below.split('/').collect();
        let last = names.pop().filter(|name| !name.is_empty())?;
        Some((names, last))
    }

    /// Opens what is at these names below the root.
    pub fn open_names(&self, names: &[&str], flags: OFlags) -> io::Result<OwnedFd> {
        self.open_below(&names.join("/"), flags)
    }

    fn open_below(&self, below: &str, flags: OFlags) -> io::Result<OwnedFd> {
        match &self.root.handle {
            Handle::Directory(directory) => {
                let path = if below.is_empty() { "." } else { below };
                self.open_at(directory, path, flags, self.root.resolve)
            }
            Handle::File { parent, name } if below.is_empty() => {
                let resolve = Resolve { links: Links::Refuse, ..Resolve::BENEATH };
                self.open_at(parent, name, flags, resolve)
            }
            Handle::File { .. } => Err(Errno::NOTDIR.into()),
        }
    }

    /// Opens a name in a directory that was opened before, and no link.
    pub fn open_in(&self, directory: &OwnedFd, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let resolve = Resolve { links: Links::Refuse, ..self.root.resolve };
        self.open_at(directory, name, flags, resolve)
    }

    fn open_at(&self, directory: &OwnedFd, path: &str, flags: OFlags, resolve: Resolve) -> io::Result<OwnedFd> {
        beneath::open(directory.as_fd(), Path::new(path), flags, Mode::empty(), resolve)
    }
}
