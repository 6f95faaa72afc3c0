//! The mounted cgroup hierarchies, and the cgroups of this process in them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::CgroupError;
use crate::guarantee::Layer;

/// The version of cgroups that a machine uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Version {
    /// One hierarchy for all controllers.
    V2,
    /// One hierarchy per controller.
    V1,
    /// Controllers on v1, with a v2 hierarchy beside them (it has `cgroup.kill`, but no limits).
    Hybrid,
    /// No hierarchy is mounted.
    None,
}

impl Version {
    /// The name in messages and in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2 => "v2",
            Self::V1 => "v1",
            Self::Hybrid => "hybrid",
            Self::None => "none",
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A controller of one of our limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Controller {
    Memory,
    Pids,
    Cpu,
}

impl Controller {
    pub(crate) const ALL: [Self; 3] = [Self::Memory, Self::Pids, Self::Cpu];

    /// The kernel's name, in `cgroup.controllers` and in v1 mount options.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
        }
    }

    pub(crate) const fn layer(self) -> Layer {
        match self {
            Self::Memory => Layer::CgroupMemory,
            Self::Pids => Layer::CgroupPids,
            Self::Cpu => Layer::CgroupCpu,
        }
    }
}

/// The cgroup hierarchies that this process can see.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hierarchies {
    pub(crate) v1: BTreeMap<Controller, Hierarchy>,
    pub(crate) v2: Option<Hierarchy>,
}

/// One mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    pub mount: PathBuf,
    /// The directory of this process's cgroup; absent when the mount does not show it (a bind mount of another subtree,
    /// or a mount from an outer cgroup namespace).
    pub own: Option<PathBuf>,
}

impl Hierarchy {
    /// Our own cgroup and its ancestors within the mount, nearest first.
    pub fn own_and_ancestors(&self) -> impl Iterator<Item = &Path> {
        self.own.iter().flat_map(|own| own.ancestors()).take_while(|path| path.starts_with(&self.mount))
    }
}

impl Hierarchies {
    /// Reads `/proc/self/mountinfo` and `/proc/self/cgroup`.
    pub fn read() -> Result<Self, CgroupError> {
        Ok(Self::parse(
            &read_text("/proc/self/mountinfo".as_ref())?,
            &read_text("/proc/self/cgroup".as_ref())?,
            Path::new("/"),
        ))
    }

    /// The version in use.
    pub fn version(&self) -> Version {
        match (self.v1.is_empty(), self.v2.is_some()) {
            (true, true) => Version::V2,
            (false, false) => Version::V1,
            (false, true) => Version::Hybrid,
            (true, false) => Version::None,
        }
    }

    /// Parses the two files. Mount points are taken as below `root`, so that a tree in a temporary directory can
    /// replace the machine's.
    pub(crate) fn parse(mountinfo: &str, own_cgroups: &str, root: &Path) -> Self {
        let mut layout = Self::default();
        for mount in mountinfo.lines().filter_map(Mount::parse) {
            if mount.filesystem == "cgroup2" {
                let own = own_path(own_cgroups, |controllers| controllers.is_empty());
                let hierarchy = mount.hierarchy(own, root);
                if supersedes(&hierarchy, layout.v2.as_ref()) {
                    layout.v2 = Some(hierarchy);
                }
            } else if mount.filesystem == "cgroup" {
                for controller in Controller::ALL {
                    let name = controller.as_str();
                    if !mount.options.split(',').any(|option| option == name) {
                        continue;
                    }
                    let own = own_path(own_cgroups, |controllers| controllers.split(',').any(|entry| entry == name));
                    let hierarchy = mount.hierarchy(own, root);
                    if supersedes(&hierarchy, layout.v1.get(&controller)) {
                        layout.v1.insert(controller, hierarchy);
                    }
                }
            }
        }
        layout
    }
}

/// Any user may mount something at a path that is not UTF-8, and that must not hide the other lines.
fn read_text(path: &Path) -> Result<String, CgroupError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(source) => Err(CgroupError::Read { path: path.into(), source }),
    }
}

/// The same hierarchy may be mounted several times: a mount that shows our own cgroup is better than one that does not,
/// and a later mount hides an earlier one at the same path.
fn supersedes(new: &Hierarchy, old: Option<&Hierarchy>) -> bool {
    old.is_none_or(|old| old.mount == new.mount || (old.own.is_none() && new.own.is_some()))
}

/// The path column of the line of `/proc/self/cgroup` whose controllers column matches; see cgroups(7).
fn own_path(own_cgroups: &str, matches: impl Fn(&str) -> bool) -> Option<&str> {
    // Not `lines`, which strips a carriage return: the kernel allows it in a cgroup's name.
    own_cgroups.split('\n').find_map(|line| {
        let mut columns = line.splitn(3, ':').skip(1);
        let controllers = columns.next()?;
        let path = columns.next()?;
        matches(controllers).then_some(path)
    })
}

/// The relevant columns of one line of mountinfo; see proc_pid_mountinfo(5).
struct Mount<'a> {
    root: String,
    point: String,
    filesystem: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let mut after = after.split(' ');
        let mount = Self {
            root: unescape(before.next()?),
            point: unescape(before.next()?),
            filesystem: after.next()?,
            options: after.nth(1)?,
        };
        // Below a root of "" every cgroup's path would stay absolute, and lead out of the mount.
        (mount.root.starts_with('/') && mount.point.starts_with('/')).then_some(mount)
    }

    fn hierarchy(&self, own: Option<&str>, root: &Path) -> Hierarchy {
        let mount = root.join(self.point.trim_start_matches('/'));
        let own = own
            .map(Path::new)
            // The kernel shows a cgroup outside of our cgroup namespace as "/../x".
            .filter(|own| !own.components().any(|part| part == Component::ParentDir))
            .and_then(|own| own.strip_prefix(&self.root).ok())
            // Joining an empty path would add a trailing slash.
            .map(|below| mount.join(below).components().collect());
        Hierarchy { mount, own }
    }
}

/// Decodes the octal escapes (`\040` and so on) of mountinfo.
fn unescape(field: &str) -> String {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|digits| digits.iter().all(|digit| matches!(digit, b'0'..=b'7')))
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let (b'\\', Some(byte)) = (first, octal) {
            bytes.push(byte);
            rest = &tail[3..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn own(hierarchy: Option<&Hierarchy>) -> Option<&str> {
        hierarchy?.own.as_deref()?.to_str()
    }

    #[test]
    fn finds_v1_controllers_beside_a_v2_hierarchy() {
        let layout = Hierarchies::parse(
            "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
             32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
             35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:4 - cgroup cgroup rw,memory\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n",
            "4:memory:/a/b\n1:cpu,cpuacct:/\n0::/user\n",
            Path::new("/"),
        );
        assert_eq!(layout.version(), Version::Hybrid);
        assert_eq!(own(layout.v2.as_ref()), Some("/sys/fs/cgroup/unified/user"));
        assert_eq!(own(layout.v1.get(&Controller::Memory)), Some("/sys/fs/cgroup/memory/a/b"));
        assert_eq!(own(layout.v1.get(&Controller::Cpu)), Some("/sys/fs/cgroup/cpu,cpuacct"));
        assert_eq!(layout.v1.get(&Controller::Pids), None);
    }

    #[test]
    fn a_mount_of_a_subtree_is_followed_from_its_root() {
        let mounts = "9 8 0:1 /pods/x /sys/fs/cgroup ro - cgroup2 cgroup rw,nsdelegate\n";
        let shown = Hierarchies::parse(mounts, "0::/pods/x/y\n", Path::new("/"));
        assert_eq!(own(shown.v2.as_ref()), Some("/sys/fs/cgroup/y"));
        let chain: Vec<_> = shown.v2.as_ref().unwrap().own_and_ancestors().collect();
        assert_eq!(chain, [Path::new("/sys/fs/cgroup/y"), Path::new("/sys/fs/cgroup")]);
        for outside in ["0::/other\n", "0::/pods/xy\n", "0::/../pods/x\n", ""] {
            let hidden = Hierarchies::parse(mounts, outside, Path::new("/"));
            assert_eq!(own(hidden.v2.as_ref()), None, "{outside:?}");
        }
    }

    #[test]
    fn escaped_mount_points_are_decoded() {
        let mounts = r"9 8 0:1 / /odd\040place\134x rw - cgroup2 none rw";
        let layout = Hierarchies::parse(mounts, "0::/\n", Path::new("/"));
        assert_eq!(own(layout.v2.as_ref()), Some(r"/odd place\x"));
    }

    #[test]
    fn odd_names_are_taken_as_they_are() {
        let mounts = r"9 8 0:1 / /a\+12 rw - cgroup2 none rw";
        let layout = Hierarchies::parse(mounts, "0::/b\r\n", Path::new("/"));
        assert_eq!(own(layout.v2.as_ref()), Some("/a\\+12/b\r"));
    }

    #[test]
    fn a_mount_without_a_root_is_none() {
        let mounts = "9 8 0:1  /sys/fs/cgroup rw - cgroup2 x rw\n";
        let layout = Hierarchies::parse(mounts, "0::/etc\n", Path::new("/"));
        assert_eq!(layout, Hierarchies::default());
    }

    #[test]
    fn a_line_that_is_no_text_hides_no_other() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mounts = b"8 7 0:9 / /mnt/\xff rw - fuse x rw\n9 8 0:1 / /a rw - cgroup2 x rw\n";
        std::fs::write(file.path(), mounts).unwrap();
        let layout = Hierarchies::parse(&read_text(file.path()).unwrap(), "0::/b\n", Path::new("/"));
        assert_eq!(own(layout.v2.as_ref()), Some("/a/b"));
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_a_panic(
            mounts in r"[0-9a-z/\\ :,\n-]{0,200}",
            cgroups in r"[0-9a-z/.:,\n]{0,100}",
        ) {
            let layout = Hierarchies::parse(&mounts, &cgroups, Path::new("/"));
            if let Some(own) = layout.v2.as_ref().and_then(|hierarchy| hierarchy.own.as_ref()) {
                prop_assert!(!own.components().any(|part| part == Component::ParentDir));
            }
        }
    }
}
