//! Landlock: the paths and TCP ports that a command may use, and scopes for its signals.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath, PathFd, PathFdError,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, Scope, make_bitflags,
};
use serde::{Deserialize, Serialize};

/// The newest access rights that we have tested. An older kernel applies those that it knows.
const TESTED_ABI: ABI = ABI::V7;
/// Path rules count from this ABI on: before, `truncate` was not covered, and a file that may only be read could be
/// emptied.
pub(crate) const ABI_FILESYSTEM: i32 = 3;
/// TCP rules exist from this ABI on.
pub(crate) const ABI_TCP: i32 = 4;
/// Scopes exist from this ABI on.
pub(crate) const ABI_SCOPES: i32 = 6;
/// Limit for the siblings of hidden paths: beyond it, a view is refused.
const MAX_RULES: usize = 4096;

/// Writable devices below `/dev`. Not the whole directory: it contains a pod's termination message too.
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
/// Devices that are added where terminals are not shared with people, as in a container.
const TERMINALS: [&str; 3] = ["/dev/tty", "/dev/ptmx", "/dev/pts"];

/// The files that a command may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    /// Readable and executable, with everything below.
    pub readable: Vec<PathBuf>,
    /// Paths below `readable` that the command must not open.
    pub hidden: Vec<PathBuf>,
    /// Readable and writable, with everything below.
    pub writable: Vec<PathBuf>,
    /// Whether terminals may be used. Outside of containers they belong to people: a process that may write to one can
    /// put text there, and one that may read gets what is typed.
    pub terminals: bool,
}

/// The TCP ports that a command may use; all others are refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TcpPorts {
    /// Ports it may listen on.
    pub bind: Vec<u16>,
    /// Ports it may connect to.
    pub connect: Vec<u16>,
}

/// Restricts this process, and its descendants, to `view` and `tcp`.
pub(crate) fn restrict(view: Option<&View>, tcp: Option<&TcpPorts>) -> io::Result<()> {
    let mut ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    if view.is_some() {
        ruleset = ruleset.handle_access(AccessFs::from_all(TESTED_ABI)).map_err(io::Error::other)?;
    }
    if tcp.is_some() {
        ruleset = ruleset
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessNet::from_all(TESTED_ABI))
            .map_err(io::Error::other)?;
    }
    let mut ruleset = ruleset.create().map_err(io::Error::other)?;
    if let Some(view) = view {
        ruleset = add_paths(ruleset, view)?;
    }
    for port in tcp.iter().flat_map(|tcp| &tcp.bind) {
        ruleset = ruleset.add_rule(NetPort::new(*port, AccessNet::BindTcp)).map_err(io::Error::other)?;
    }
    for port in tcp.iter().flat_map(|tcp| &tcp.connect) {
        ruleset = ruleset.add_rule(NetPort::new(*port, AccessNet::ConnectTcp)).map_err(io::Error::other)?;
    }
    let status = ruleset.restrict_self().map_err(io::Error::other)?;
    if status.ruleset == landlock::RulesetStatus::NotEnforced {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(())
}

/// A ruleset that only restricts signals and abstract sockets to other processes. Each command enters its own, so that
/// commands can signal neither their worker nor each other.
pub(crate) fn scopes() -> io::Result<OwnedFd> {
    scopes_with_view(None)
}

/// The same, and all files except those of a view: what commands see where their keeper must see more.
pub(crate) fn scopes_with_view(view: Option<&View>) -> io::Result<OwnedFd> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .scope(make_bitflags!(Scope::{Signal | AbstractUnixSocket}))
        .map_err(io::Error::other)?
        .set_compatibility(CompatLevel::BestEffort);
    if view.is_some() {
        ruleset = ruleset.handle_access(AccessFs::from_all(TESTED_ABI)).map_err(io::Error::other)?;
    }
    let mut ruleset = ruleset.create().map_err(io::Error::other)?;
    if let Some(view) = view {
        ruleset = add_paths(ruleset, view)?;
    }
    Option::<OwnedFd>::from(ruleset).ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// Enters a ruleset from [`scopes`].
pub(crate) fn enter(ruleset: &OwnedFd) -> io::Result<()> {
    crate::sys::landlock_restrict_self(ruleset.as_fd())
}

/// The Landlock ABI of this kernel; 0 if there is none.
pub(crate) fn abi() -> i32 {
    crate::sys::landlock_abi().unwrap_or(0)
}

fn add_paths(mut ruleset: RulesetCreated, view: &View) -> io::Result<RulesetCreated> {
    let readable = readable_paths(view)?;
    let terminals = if view.terminals { TERMINALS.as_slice() } else { &[] };
    // Devices can be used, but not created.
    let device = make_bitflags!(AccessFs::{ReadFile | WriteFile | ReadDir | IoctlDev | Truncate});
    let rules = readable
        .iter()
        .map(|path| (path.as_path(), AccessFs::from_read(TESTED_ABI)))
        .chain(DEVICES.iter().chain(terminals).map(|path| (Path::new(*path), device)))
        .chain(view.writable.iter().map(|path| (path.as_path(), AccessFs::from_all(TESTED_ABI))));
    for (path, access) in rules {
        ruleset = add_path(ruleset, path, access)?;
    }
    Ok(ruleset)
}

/// The readable paths without the hidden ones.
fn readable_paths(view: &View) -> io::Result<Vec<PathBuf>> {
    // By their real paths: Landlock rules apply to files, and any link may lead to them.
    let hidden: BTreeSet<PathBuf> = view.hidden.iter().map(|path| resolve_links(path)).collect();
    for path in &view.writable {
        if let Some(inner) = hidden.iter().find(|inner| inner.starts_with(resolve_links(path))) {
            return Err(io::Error::other(format!(
                "{} cannot be hidden, because {} may be written",
                inner.display(),
                path.display()
            )));
        }
    }
    let mut readable = Vec::new();
    for path in &view.readable {
        expand_around_hidden(&resolve_links(path), &hidden, &mut readable)?;
    }
    Ok(readable)
}

/// The path without links, as far as it exists.
fn resolve_links(path: &Path) -> PathBuf {
    for existing in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (existing.canonicalize(), path.strip_prefix(existing)) {
            // Joining an empty path would add a slash.
            return real.join(rest).components().collect();
        }
    }
    path.to_owned()
}

fn add_path(ruleset: RulesetCreated, path: &Path, access: BitFlags<AccessFs>) -> io::Result<RulesetCreated> {
    let file = match PathFd::new(path) {
        Ok(file) => file,
        // A path that does not exist cannot be used; if it appears later it is still refused.
        Err(PathFdError::OpenCall { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(ruleset);
        }
        Err(error) => return Err(io::Error::other(error)),
    };
    // The kernel accepts access rights to directory entries for directories only.
    let access = if path.is_dir() { access } else { access & AccessFs::from_file(TESTED_ABI) };
    ruleset.add_rule(PathBeneath::new(file, access)).map_err(io::Error::other)
}

/// Landlock can only allow: it cannot exclude a path from an allowed tree. So a tree with hidden paths is expanded to
/// the list of everything beside them.
fn expand_around_hidden(path: &Path, hidden: &BTreeSet<PathBuf>, into: &mut Vec<PathBuf>) -> io::Result<()> {
    if hidden.contains(path) {
        return Ok(());
    }
    let has_hidden_below = hidden.iter().any(|inner| inner.starts_with(path));
    if !has_hidden_below {
        into.push(path.to_owned());
        return Ok(());
    }
    let mut names: Vec<OsString> = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        // Following a link needs no access right, and a rule for a link would apply to its target, hidden or not.
        if entry.file_type()?.is_symlink() {
            continue;
        }
        names.push(entry.file_name());
        if names.len() + into.len() > MAX_RULES {
            return Err(io::Error::other(format!(
                "{} has more than {MAX_RULES} entries beside a hidden path",
                path.display()
            )));
        }
    }
    names.sort();
    for name in names {
        expand_around_hidden(&path.join(name), hidden, into)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rules apply to files, not names: one for a link would apply to its target.
    #[test]
    fn no_link_leads_to_a_hidden_path() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        for path in ["ipc", "var/run/sympozium", "var/run/lock", "usr"] {
            std::fs::create_dir_all(root.join(path)).unwrap();
        }
        for (link, to) in [("run", "var/run"), ("data", "ipc"), ("all", ".")] {
            std::os::unix::fs::symlink(to, root.join(link)).unwrap();
        }
        let view = View {
            readable: vec![root.clone()],
            hidden: vec![root.join("ipc"), root.join("run/sympozium")],
            writable: Vec::new(),
            terminals: true,
        };
        let names: Vec<_> =
            readable_paths(&view).unwrap().iter().map(|path| path.strip_prefix(&root).unwrap().to_owned()).collect();
        assert_eq!(names, [Path::new("usr"), Path::new("var/run/lock")]);

        let writable = View { writable: vec![root.join("data")], ..view };
        assert!(readable_paths(&writable).is_err());
    }

    #[test]
    fn a_hidden_path_leaves_its_siblings() {
        let root = tempfile::tempdir().unwrap();
        for path in ["ipc/tools", "run/sympozium", "run/lock", "usr/bin"] {
            std::fs::create_dir_all(root.path().join(path)).unwrap();
        }
        let hidden = [root.path().join("ipc"), root.path().join("run/sympozium")];
        let hidden = hidden.into_iter().collect();
        let mut found = Vec::new();
        expand_around_hidden(root.path(), &hidden, &mut found).unwrap();
        let names: Vec<_> =
            found.iter().map(|path| path.strip_prefix(root.path()).unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["run/lock", "usr"]);
    }
}
