//! Texts of the kernel about control groups.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::scratch::Scratch;
use crate::cgroup::hierarchies::{Hierarchies, Hierarchy};
use crate::cgroup::owner::Owner;
use crate::cgroup::{parse_oom_kills, teardown};

/// Whatever the two files contain, all paths are below the mounts that they name; and whatever names a mount point and
/// a cgroup have, they are parsed.
///
/// The text is mountinfo, a line `---`, and `/proc/self/cgroup`.
pub fn cgroup_layout(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (mounts, cgroups) = text.split_once("---\n").unwrap_or((&text, ""));
    for root in ["/", "/elsewhere"] {
        let layout = Hierarchies::parse(mounts, cgroups, Path::new(root));
        for hierarchy in layout.v1.values().chain(&layout.v2) {
            assert!(hierarchy.mount.starts_with(root), "{hierarchy:?}");
            check_hierarchy(hierarchy);
        }
    }

    let point = plain_path(mounts);
    let own = plain_path(cgroups);
    let line = format!("9 8 0:1 / {} rw - cgroup2 x rw\n", escape(&point));
    let layout = Hierarchies::parse(&line, &format!("0::{own}\n"), Path::new("/"));
    let hierarchy = layout.v2.as_ref().expect("it is mounted");
    assert_eq!(hierarchy.mount, Path::new(&point));
    let below: PathBuf = format!("{point}{own}").into();
    assert_eq!(hierarchy.own.as_deref(), Some(below.as_path()));
}

fn check_hierarchy(hierarchy: &Hierarchy) {
    let chain: Vec<&Path> = hierarchy.own_and_ancestors().collect();
    let Some(own) = &hierarchy.own else {
        assert!(chain.is_empty());
        return;
    };
    let below = own.strip_prefix(&hierarchy.mount);
    let below = below.expect("our own cgroup is below the mount");
    assert!(below.components().all(|component| matches!(component, Component::Normal(_))), "{below:?}");
    assert_eq!(chain.first(), Some(&own.as_path()));
    assert_eq!(chain.last(), Some(&hierarchy.mount.as_path()));
    assert_eq!(chain.len(), below.components().count() + 1);
}

/// A path in the kernel's form: absolute, without `.` and `..`. No cgroup has a line break in its name; the kernel
/// refuses it.
fn plain_path(text: &str) -> String {
    let parts = text.split(['/', '\0', '\n']).filter(|part| !matches!(*part, "" | "." | "..")).take(8);
    match parts.map(|part| format!("/{part}")).collect::<String>() {
        empty if empty.is_empty() => "/x".to_owned(),
        path => path,
    }
}

/// Like `mangle` in the kernel's fs/proc_namespace.c.
fn escape(path: &str) -> String {
    let mut out = String::new();
    for letter in path.chars() {
        match letter {
            ' ' | '\t' | '\n' | '\\' | '#' => out.push_str(&format!("\\{:03o}", letter as u32)),
            _ => out.push(letter),
        }
    }
    out
}

/// The count of kills is the number after its own name, whatever other counters there are.
pub fn cgroup_events(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let others: String =
        text.lines().filter(|line| !line.starts_with("oom_kill ")).map(|line| format!("{line}\n")).collect();
    assert_eq!(parse_oom_kills(&others), 0);
    for count in [0, 7, u64::MAX] {
        let events = format!("{others}oom_kill {count}\noom_group_kill 1\n{others}");
        assert_eq!(parse_oom_kills(&events), count);
    }
    let written = |count: u64| text.lines().any(|line| line.contains(&count.to_string()));
    let count = parse_oom_kills(&text);
    assert!(count == 0 || written(count), "{count}");
}

/// Only numbers that are alone on their line and refer to a single process are members: 0, which is a process that we
/// cannot see, and negative numbers would be whole groups to `kill`.
pub fn cgroup_procs(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let directory = Scratch::new();
    fs::write(directory.path().join("cgroup.procs"), &*text).expect("there is room");
    let members = teardown::members(directory.path()).expect("it was written a moment ago");
    let members: BTreeSet<i32> = members.iter().map(|pid| pid.as_raw_pid()).collect();
    let expected: BTreeSet<i32> = text
        .lines()
        .filter_map(|line| line.parse::<i64>().ok())
        .filter_map(|pid| i32::try_from(pid).ok())
        .filter(|&pid| pid > 0)
        .collect();
    assert_eq!(members, expected);
}

/// Only names that we generate are taken for ours, since directories with such a name are removed.
pub fn cgroup_name(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let owner = Owner::current().expect("there is a /proc");
    let name = owner.new_name(&text);
    assert_eq!(Owner::from_name(&name), Some(owner));
    assert!(name.len() <= 128 && name.is_ascii() && !name.contains('/'), "{name:?}");

    if let Some(owner) = Owner::from_name(&text) {
        // Besides the hint, two names of an owner differ only in the counter.
        let same = owner.new_name("");
        let of_owner = |name: &str| name.split('-').take(4).collect::<Vec<_>>().join("-");
        assert_eq!(of_owner(&text), of_owner(&same));
        let count = text.split('-').nth(4).unwrap_or_default();
        assert_eq!(count.parse::<u64>().map(|number| number.to_string()).as_deref(), Ok(count));
    }
}
