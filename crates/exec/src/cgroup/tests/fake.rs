//! A directory that looks like a cgroup2 mount: test machines have no v2 controllers.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::cgroup::{Cgroup, CgroupError, Hierarchies, Limits};
use crate::guarantee::Layer;

const LIMITS: Limits = Limits { memory_bytes: Some(64 << 20), pids: Some(32), cpu_millis: Some(1500) };

struct FakeTree {
    directory: TempDir,
    own: &'static str,
}

impl FakeTree {
    /// A cgroup2 mount whose root offers all controllers; this process is in `own`.
    fn new(own: &'static str) -> Self {
        let tree = Self { directory: TempDir::new().unwrap(), own };
        tree.cgroup("", "cpu memory pids", "");
        fs::remove_file(tree.path("").join("cgroup.type")).unwrap();
        tree
    }

    fn path(&self, cgroup: &str) -> PathBuf {
        let mount = self.directory.path().join("sys/fs/cgroup");
        mount.join(cgroup).components().collect()
    }

    fn cgroup(&self, name: &str, controllers: &str, passed_on: &str) {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("cgroup.type"), "domain\n").unwrap();
        fs::write(path.join("cgroup.procs"), "").unwrap();
        fs::write(path.join("cgroup.controllers"), controllers).unwrap();
        fs::write(path.join("cgroup.subtree_control"), passed_on).unwrap();
    }

    fn layout(&self) -> Hierarchies {
        Hierarchies::parse(
            "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
            &format!("0::/{}\n", self.own),
            self.directory.path(),
        )
    }

    /// Creates a group, with the files that the kernel would create.
    fn create(&self) -> (Cgroup, Vec<String>) {
        let fill = |path: &Path| {
            for file in ["cgroup.procs", "cgroup.kill"] {
                fs::write(path.join(file), "").unwrap();
            }
            for file in ["memory.max", "memory.swap.max", "pids.max", "cpu.max"] {
                fs::write(path.join(file), "").unwrap();
            }
        };
        let (cgroup, applied) = Cgroup::create_in(&self.layout(), &LIMITS, "test", &fill).unwrap();
        let applied = applied.into_iter().map(|(layer, detail)| format!("{layer}: {detail}")).collect();
        (cgroup, applied)
    }

    /// The reasons, with this tree's own path removed.
    fn reasons(&self, cgroup: &Cgroup) -> Vec<String> {
        let root = self.directory.path().to_str().unwrap();
        cgroup.not_applied().iter().map(|(layer, why)| format!("{layer}: {}", why.replace(root, ""))).collect()
    }
}

fn read(directory: &Path, file: &str) -> String {
    fs::read_to_string(directory.join(file)).unwrap()
}

#[test]
fn the_nearest_cgroup_that_passes_the_controllers_on_is_used() {
    let tree = FakeTree::new("user/app/scope");
    tree.cgroup("user", "cpu memory pids", "cpu memory pids");
    tree.cgroup("user/app", "cpu memory pids", "cpu memory pids");
    tree.cgroup("user/app/scope", "cpu memory pids", "");
    let (cgroup, applied) = tree.create();
    assert_eq!(
        applied,
        [
            "cgroup-memory: v2: 67108864 bytes, no swap",
            "cgroup-pids: v2: 32 processes",
            "cgroup-cpu: v2: 1500 millicores",
        ]
    );
    assert_eq!(tree.reasons(&cgroup), [""; 0]);
    let directory = cgroup.v2_directory().unwrap();
    assert_eq!(directory.parent().unwrap(), tree.path("user/app"));
    let written = ["memory.max", "memory.swap.max", "pids.max", "cpu.max"].map(|file| read(directory, file));
    assert_eq!(written, ["67108864", "0", "32", "150000 100000"]);
}

#[test]
fn a_cgroup_we_cannot_write_is_passed_over() {
    let tree = FakeTree::new("user/app");
    tree.cgroup("user", "cpu memory pids", "cpu memory pids");
    tree.cgroup("user/app", "cpu memory pids", "cpu memory pids");
    // Simulates a refusal: as root, permission bits of a temporary directory have no effect.
    fs::remove_file(tree.path("user/app/cgroup.procs")).unwrap();
    let (cgroup, applied) = tree.create();
    assert_eq!(applied.len(), 3);
    let parent = cgroup.v2_directory().unwrap().parent().unwrap();
    assert_eq!(parent, tree.path("user"));
}

#[test]
fn a_limit_that_no_parent_delegates_is_reported_and_the_others_hold() {
    let tree = FakeTree::new("user/app");
    fs::write(tree.path("").join("cgroup.controllers"), "memory pids").unwrap();
    tree.cgroup("user", "memory pids", "memory pids");
    tree.cgroup("user/app", "memory pids", "");
    let (cgroup, applied) = tree.create();
    assert_eq!(applied, ["cgroup-memory: v2: 67108864 bytes, no swap", "cgroup-pids: v2: 32 processes",]);
    assert_eq!(
        tree.reasons(&cgroup),
        [
            "cgroup-cpu: no writable cgroup between /sys/fs/cgroup/user/app and /sys/fs/cgroup passes the cpu controller on"
        ]
    );
}

#[test]
fn in_the_root_controllers_are_switched_on_and_believed_only_when_listed() {
    let tree = FakeTree::new("");
    fs::write(tree.path("").join("cgroup.controllers"), "memory hugetlb").unwrap();
    let (cgroup, applied) = tree.create();
    // The fake kernel stores what we wrote and enables nothing.
    assert_eq!(read(&tree.path(""), "cgroup.subtree_control"), "+memory");
    assert_eq!(applied, [""; 0]);
    assert_eq!(cgroup.not_applied().len(), 3);
    assert!(cgroup.is_live(), "still good for killing");
}

#[test]
fn below_the_root_nothing_is_switched_on() {
    let tree = FakeTree::new("user");
    tree.cgroup("user", "cpu memory pids", "");
    fs::write(tree.path("").join("cgroup.controllers"), "").unwrap();
    let (_cgroup, applied) = tree.create();
    assert_eq!(applied, [""; 0]);
    assert_eq!(read(&tree.path("user"), "cgroup.subtree_control"), "");
}

#[test]
fn without_a_place_every_limit_says_why() {
    let tree = FakeTree::new("../outside");
    let (cgroup, applied) = tree.create();
    assert_eq!(applied, [""; 0]);
    assert!(!cgroup.is_live());
    assert_eq!(
        tree.reasons(&cgroup),
        ["memory", "pids", "cpu"].map(|controller| format!(
            "cgroup-{controller}: the cgroup of this process is not shown in /sys/fs/cgroup"
        ))
    );

    let (cgroup, applied) = Cgroup::create_in(&Hierarchies::default(), &LIMITS, "test", &|_| ()).unwrap();
    assert!(applied.is_empty());
    assert_eq!(
        cgroup.not_applied()[0],
        (Layer::CgroupMemory, "no mounted cgroup hierarchy has the memory controller".to_owned())
    );
    cgroup.kill().unwrap();
    cgroup.remove().unwrap();
}

#[test]
fn a_limit_of_zero_is_refused() {
    let limits = Limits { pids: Some(0), ..Limits::default() };
    let outcome = Cgroup::create_in(&Hierarchies::default(), &limits, "test", &|_| ());
    assert!(matches!(outcome, Err(CgroupError::ZeroLimit { layer: Layer::CgroupPids })));
}

#[test]
fn kernel_kills_are_counted_from_memory_events() {
    let tree = FakeTree::new("");
    fs::write(tree.path("").join("cgroup.controllers"), "memory").unwrap();
    fs::write(tree.path("").join("cgroup.subtree_control"), "memory").unwrap();
    let (cgroup, _) = tree.create();
    assert_eq!(cgroup.oom_kills(), 0);
    let events = cgroup.v2_directory().unwrap().join("memory.events");
    fs::write(events, "low 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 7\n").unwrap();
    assert_eq!(cgroup.oom_kills(), 2);
}

#[test]
fn kill_writes_cgroup_kill_and_otherwise_spares_processes_it_cannot_name() {
    let tree = FakeTree::new("");
    let (cgroup, _) = tree.create();
    let directory = cgroup.v2_directory().unwrap();
    cgroup.kill().unwrap();
    assert_eq!(read(directory, "cgroup.kill"), "1");

    // A kernel without cgroup.kill, and members that our pid namespace does not show: signalling process 0 would end
    // this very test.
    fs::remove_file(directory.join("cgroup.kill")).unwrap();
    fs::write(directory.join("cgroup.procs"), "0\n-1\n").unwrap();
    cgroup.kill().unwrap();
}
