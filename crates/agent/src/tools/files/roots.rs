//! The directories that the file tools can access, and how a path from a tool call is resolved in them.
//!
//! `.` and `..` are resolved in the text of a path, before a root is chosen: `link/../x` is `x` beside the link. The
//! root is the longest that contains the path. Below it the kernel resolves (`Resolve::BENEATH`): links are followed
//! while they stay there, absolute links and magic links never.
//!
//! A root that contains a closed path (`/` contains `/proc` and `/run`) needs more, because a link in it could lead
//! there without leaving it. Such a root is resolved with `Mounts::Stay`: procfs, the inputs of the run, tokens and the
//! door are all mounts of their own, so none can be entered from it. Mounts that the agent is meant to have are roots
//! of their own.
//!
//! A root is writable if the plan says so and it is below a directory that tools may write to: see
//! [`WRITABLE`](super::WRITABLE).

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use sympozium_api::builtin_tool::{EDIT_FILE, WRITE_FILE};
use sympozium_api::run_plan::{Root, paths};
use sympozium_exec::beneath::{self, Links, Mounts, Resolve};

use super::access::{Commands, WriteAccess, normalize_all};
use super::path::{RequestedPath, contains, join, normalize};
use crate::tools::ToolError;

const MAX_NAMED: usize = 24;

/// Never opened, whatever the roots say: the kernel's file systems, and what parts of a run exchange.
const CLOSED: [&str; 9] =
    ["/proc", "/sys", "/dev", paths::IPC, paths::INPUT, paths::DOOR, paths::HEADERS, paths::SCRIPT, paths::TOKEN];
/// Closed unless a root is at or below them: an author may have mounted something there.
const CLOSED_IN_IMAGE: [&str; 2] = ["/run", "/var/run"];

#[derive(Debug)]
pub struct Roots {
    /// Longest path first.
    roots: Vec<OpenRoot>,
    /// For messages.
    writable_dirs: Vec<String>,
    /// Base of relative paths.
    workspace: String,
    commands: Commands,
}

#[derive(Debug)]
struct OpenRoot {
    /// Without a trailing slash; empty for `/`.
    path: String,
    access: WriteAccess,
    handle: RootHandle,
    resolve: Resolve,
}

#[derive(Debug)]
enum RootHandle {
    Directory(OwnedFd),
    /// A file that is mounted by itself, as its directory and its name: a descriptor of the file could not be reopened
    /// for reading without `/proc`.
    File {
        parent: OwnedFd,
        name: String,
    },
}

impl Roots {
    /// Opens each root once; missing ones are left out. Tools write below `writable_dirs` only: for the agent
    /// [`WRITABLE`](super::WRITABLE).
    pub fn open(roots: &[Root], writable_dirs: &[&str]) -> Self {
        let writable_dirs = normalize_all(writable_dirs);
        let mut opened: Vec<OpenRoot> = Vec::new();
        for root in roots {
            let Ok(parts) = normalize(&root.path) else {
                continue;
            };
            let path = join(&parts);
            let known = opened.iter().any(|other| other.path == path);
            if !root.path.starts_with('/') || known || CLOSED.iter().any(|closed| contains(closed, &path)) {
                continue;
            }
            if let Some(handle) = open_root(&parts, &path) {
                let access = WriteAccess::for_root(root, &path, &writable_dirs);
                opened.push(OpenRoot::new(path, access, handle));
            }
        }
        opened.sort_by_key(|root| std::cmp::Reverse(root.path.len()));
        Self { roots: opened, writable_dirs, workspace: paths::WORKSPACE.to_owned(), commands: Commands::NotOffered }
    }

    /// Sets a workspace at another path than in pods.
    #[must_use]
    pub fn with_workspace(self, workspace: &str) -> Self {
        let workspace = workspace.to_owned();
        Self { workspace, ..self }
    }

    #[must_use]
    pub fn with_commands(self, commands: Commands) -> Self {
        Self { commands, ..self }
    }

    pub(crate) fn commands(&self) -> Commands {
        self.commands
    }

    pub(crate) fn resolve_str(&self, path: &str) -> Result<ResolvedPath<'_>, ToolError> {
        let path = self.parse_path(path)?;
        self.resolve(&path).ok_or_else(|| self.outside_error(&path))
    }

    /// The pod's name of the workspace is always understood, wherever the workspace is: tool descriptions use it.
    pub(super) fn parse_path(&self, path: &str) -> Result<RequestedPath, ToolError> {
        let mut named = RequestedPath::parse(path)?;
        let moved = (named.path.strip_prefix(paths::WORKSPACE)).filter(|rest| rest.is_empty() || rest.starts_with('/'));
        if let (Some(rest), false) = (moved, contains(&self.workspace, &named.path)) {
            named.path = format!("{}{rest}", self.workspace);
        }
        Ok(named)
    }

    pub(super) fn resolve(&self, named: &RequestedPath) -> Option<ResolvedPath<'_>> {
        let path = named.path.as_str();
        if CLOSED.iter().any(|closed| contains(closed, path)) {
            return None;
        }
        let root = self.roots.iter().find(|root| contains(&root.path, path))?;
        let is_closed = |closed: &&str| contains(closed, path) && !contains(closed, &root.path);
        if CLOSED_IN_IMAGE.iter().any(is_closed) {
            return None;
        }
        let below = path[root.path.len()..].trim_start_matches('/').to_owned();
        Some(ResolvedPath { root, commands: self.commands, below, shown: named.to_printable() })
    }

    pub(super) fn outside_error(&self, named: &RequestedPath) -> ToolError {
        ToolError(format!("{} is outside of what you can read: {}", named.to_printable(), self.names(|_| true)))
    }

    pub(super) fn not_writable_error(&self, path: &ResolvedPath<'_>) -> ToolError {
        let reason = match path.root.access {
            WriteAccess::OutsideWritableDirs => {
                format!("{WRITE_FILE} and {EDIT_FILE} write only below {}", self.writable_dirs.join(" and "))
            }
            WriteAccess::ReadOnly | WriteAccess::Allowed => format!("{} is read-only", path.root_shown()),
        };
        ToolError(format!(
            "{} cannot be written: {reason}; what you can write: {}",
            path.shown,
            self.names(|root| root.access == WriteAccess::Allowed)
        ))
    }

    fn names(&self, which: impl Fn(&OpenRoot) -> bool) -> String {
        let mut names: Vec<&str> = self.roots.iter().filter(|root| which(root)).map(OpenRoot::display_path).collect();
        // Stored by length, listed by name.
        names.sort_unstable();
        let more = names.len().saturating_sub(MAX_NAMED);
        names.truncate(MAX_NAMED);
        match (names.is_empty(), more) {
            (true, _) => "nothing".to_owned(),
            (false, 0) => names.join(", "),
            (false, more) => format!("{} and {more} more", names.join(", ")),
        }
    }

    /// The roots at or below a path, sorted.
    pub(super) fn roots_below(&self, named: &RequestedPath) -> Vec<ResolvedPath<'_>> {
        let mut found: Vec<ResolvedPath<'_>> = self
            .roots
            .iter()
            .filter(|root| contains(&named.path, &root.path))
            .map(|root| ResolvedPath {
                root,
                commands: self.commands,
                below: String::new(),
                shown: root.display_path().to_owned(),
            })
            .collect();
        found.sort_by(|one, other| one.shown.cmp(&other.shown));
        found
    }
}

impl OpenRoot {
    fn new(path: String, access: WriteAccess, handle: RootHandle) -> Self {
        let closed = CLOSED.iter().chain(&CLOSED_IN_IMAGE);
        let has_closed = closed.into_iter().any(|closed| contains(&path, closed));
        let mounts = if has_closed { Mounts::Stay } else { Mounts::Cross };
        Self { path, access, handle, resolve: Resolve { mounts, ..Resolve::BENEATH } }
    }

    fn display_path(&self) -> &str {
        if self.path.is_empty() { "/" } else { &self.path }
    }
}

fn open_root(parts: &[&str], path: &str) -> Option<RootHandle> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let shown = if path.is_empty() { "/" } else { path };
    let file = rustix::fs::openat(CWD, shown, flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        return Some(RootHandle::Directory(file));
    }
    let (name, above) = parts.split_last()?;
    let above = format!("/{}", above.join("/"));
    let parent = rustix::fs::openat(CWD, above, flags | OFlags::DIRECTORY, Mode::empty()).ok()?;
    Some(RootHandle::File { parent, name: (*name).to_owned() })
}

/// A path in one of the roots. It need not exist.
#[derive(Debug)]
pub(crate) struct ResolvedPath<'r> {
    root: &'r OpenRoot,
    commands: Commands,
    /// Relative to the root; empty for the root itself.
    below: String,
    /// The absolute path, printable.
    pub shown: String,
}

impl ResolvedPath<'_> {
    pub fn is_writable(&self) -> bool {
        self.root.access == WriteAccess::Allowed
    }

    pub fn commands(&self) -> Commands {
        self.commands
    }

    /// `advice` if the model can run commands, otherwise nothing.
    pub fn if_commands(&self, advice: &'static str) -> &'static str {
        match self.commands {
            Commands::Offered => advice,
            Commands::NotOffered => "",
        }
    }

    /// Whether mounts below the root are refused.
    pub fn forbids_mounts(&self) -> bool {
        self.root.resolve.mounts == Mounts::Stay
    }

    pub fn root_shown(&self) -> &str {
        self.root.display_path()
    }

    /// Follows links as long as they stay in the root.
    pub fn open(&self, flags: OFlags) -> io::Result<OwnedFd> {
        self.open_below(&self.below, flags)
    }

    /// The components of the parent, and the last one. `None` for a root itself.
    pub fn split(&self) -> Option<(Vec<&str>, &str)> {
        let mut names: Vec<&str> = self.below.split('/').collect();
        let last = names.pop().filter(|name| !name.is_empty())?;
        Some((names, last))
    }

    pub fn open_names(&self, names: &[&str], flags: OFlags) -> io::Result<OwnedFd> {
        self.open_below(&names.join("/"), flags)
    }

    fn open_below(&self, below: &str, flags: OFlags) -> io::Result<OwnedFd> {
        match &self.root.handle {
            RootHandle::Directory(directory) => {
                let path = if below.is_empty() { "." } else { below };
                self.open_at(directory, path, flags, self.root.resolve)
            }
            RootHandle::File { parent, name } if below.is_empty() => {
                let resolve = Resolve { links: Links::Refuse, ..Resolve::BENEATH };
                self.open_at(parent, name, flags, resolve)
            }
            RootHandle::File { .. } => Err(Errno::NOTDIR.into()),
        }
    }

    /// Opens a name in an open directory; refuses links.
    pub fn open_beneath(&self, directory: &OwnedFd, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let resolve = Resolve { links: Links::Refuse, ..self.root.resolve };
        self.open_at(directory, name, flags, resolve)
    }

    fn open_at(&self, directory: &OwnedFd, path: &str, flags: OFlags, resolve: Resolve) -> io::Result<OwnedFd> {
        beneath::open(directory.as_fd(), Path::new(path), flags, Mode::empty(), resolve)
    }
}
