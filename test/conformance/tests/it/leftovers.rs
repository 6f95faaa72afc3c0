//! What of a run is still there: found by listing, not by trust.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::Context as _;
use sympozium_testkit::command;
use tempfile::TempDir;

use crate::harness::Test;

/// Levels of control groups that are looked through.
const CGROUP_LEVELS: usize = 8;

/// A run that is over.
pub struct Ended<'e> {
    /// Everything of it was below this directory, whose name nothing else has.
    pub directory: &'e Path,
    /// The process that ran it.
    pub pid: u32,
    /// The user that it alone had.
    pub user: Option<u32>,
    /// What was in `/tmp` before it began.
    pub temporary_before: BTreeSet<PathBuf>,
}

/// Everything of it that is still there.
pub fn leftovers(ended: &Ended<'_>) -> Vec<String> {
    let mut found = processes(ended);
    found.extend(mounts(ended));
    found.extend(control_groups(ended));
    found.extend(sockets(ended));
    found.extend(files(ended));
    found.extend(temporary(ended));
    found
}

/// Processes that name its directory in anything that the kernel says about them, or that are its user's.
fn processes(ended: &Ended<'_>) -> Vec<String> {
    let own_mounts = fs::read_link("/proc/self/ns/mnt").ok();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let process = entry.path();
        let is_process = entry.file_name().to_str().is_some_and(|it| it.parse::<u32>().is_ok());
        if !is_process || is_gone(&process) {
            continue;
        }
        let mut texts = vec!["cmdline", "environ", "cgroup"];
        // Those of our own namespace are looked at once, elsewhere.
        if fs::read_link(process.join("ns/mnt")).ok() != own_mounts {
            texts.push("mountinfo");
        }
        let names = |name: &&str| fs::read(process.join(name)).is_ok_and(|text| mentions(&text, ended.directory));
        let leads = |name: &&str| {
            let target = fs::read_link(process.join(name));
            target.is_ok_and(|target| target.starts_with(ended.directory))
        };
        let by = texts.iter().find(|it| names(it)).or(["cwd", "root", "exe"].iter().find(|it| leads(it)));
        let owner = fs::metadata(&process).map(|it| it.uid()).ok();
        let is_users = ended.user.is_some() && owner == ended.user;
        if (by.is_some() || is_users) && !is_gone(&process) {
            let line = fs::read(process.join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let by = by.copied().unwrap_or("its user");
            found.push(format!("process {} ({line}), by {by}", process.display()));
        }
    }
    found
}

/// Whether a process has ended, and only its parent has not looked yet.
fn is_gone(process: &Path) -> bool {
    let Ok(stat) = fs::read_to_string(process.join("stat")) else {
        return true;
    };
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, None | Some('Z' | 'X'))
}

fn mounts(ended: &Ended<'_>) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let ours = mounts.lines().filter(|line| mentions(line.as_bytes(), ended.directory));
    ours.map(|line| format!("mount {line}")).collect()
}

/// Control groups of the process that ran it, by the name that it gives them: `sympozium-NAMESPACE-PID-…`.
fn control_groups(ended: &Ended<'_>) -> Vec<String> {
    let mut found = Vec::new();
    let mut level = vec![PathBuf::from("/sys/fs/cgroup")];
    for _ in 0..CGROUP_LEVELS {
        let mut next = Vec::new();
        for directory in level {
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                if !entry.file_type().is_ok_and(|it| it.is_dir()) {
                    continue;
                }
                let name = entry.file_name().to_string_lossy().into_owned();
                let of = name.strip_prefix("sympozium-").and_then(|rest| rest.split('-').nth(1));
                if of.is_some_and(|pid| pid == ended.pid.to_string()) {
                    found.push(format!("control group {}", entry.path().display()));
                }
                next.push(entry.path());
            }
        }
        level = next;
    }
    found
}

/// Sockets that are bound below its directory, whether their files are there or not.
fn sockets(ended: &Ended<'_>) -> Vec<String> {
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let ours = sockets.lines().filter(|line| mentions(line.as_bytes(), ended.directory));
    ours.map(|line| format!("socket {line}")).collect()
}

/// What must not stay in its directory: what is needed only while a run lasts, sockets, pipes, and anything temporary.
fn files(ended: &Ended<'_>) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![ended.directory.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else {
                continue;
            };
            let is_run = directory.parent().is_some_and(|it| it.ends_with("state/runs"));
            let is_live = is_run && entry.file_name() == "live";
            let is_temporary = directory == ended.directory.join("tmp");
            if is_live || is_temporary || kind.is_socket() || kind.is_fifo() {
                found.push(format!("{}", path.display()));
            }
            if kind.is_dir() {
                waiting.push(path);
            }
        }
    }
    found
}

/// What is new in `/tmp` and its user's, or has the number of the process that ran it in its name.
fn temporary(ended: &Ended<'_>) -> Vec<String> {
    let number = ended.pid.to_string();
    // As a whole: among the digits of others any number may be.
    let has_number = |name: &str| name.split(|c: char| !c.is_ascii_digit()).any(|it| it == number);
    let entries = fs::read_dir("/tmp").into_iter().flatten().flatten();
    let new = entries.filter(|entry| !ended.temporary_before.contains(&entry.path()));
    new.filter(|entry| {
        let owner = entry.metadata().map(|it| it.uid()).ok();
        let is_users = ended.user.is_some() && owner == ended.user;
        let name = entry.file_name().to_string_lossy().into_owned();
        is_users || name.contains("sympozium") && has_number(&name)
    })
    .map(|entry| format!("{}", entry.path().display()))
    .collect()
}

fn mentions(text: &[u8], directory: &Path) -> bool {
    let wanted = directory.as_os_str().as_encoded_bytes();
    text.windows(wanted.len()).any(|part| part == wanted)
}

/// That each kind of leftover is found, and that nothing is found where nothing is.
pub fn tests() -> Vec<Test> {
    type Make = fn(&Path) -> anyhow::Result<Box<dyn std::any::Any>>;
    let kinds: [(&str, Make); 6] = [
        ("nothing", |_| Ok(Box::new(()))),
        ("a-process-in-the-directory", |directory| Ok(Box::new(Sleeper::start(directory, None)?))),
        ("a-process-with-the-directory-in-its-environment", |directory| {
            Ok(Box::new(Sleeper::start(Path::new("/"), Some(directory))?))
        }),
        ("a-socket", |directory| Ok(Box::new(UnixListener::bind(directory.join("socket"))?))),
        ("a-temporary-file", |directory| {
            fs::write(directory.join("tmp/left"), "")?;
            Ok(Box::new(()))
        }),
        ("the-directory-of-a-live-run", |directory| {
            fs::create_dir_all(directory.join("state/runs/uid/live"))?;
            Ok(Box::new(()))
        }),
    ];
    let test = |(name, make): (&'static str, Make)| {
        Test::new(format!("leftovers::{name}"), move || {
            let directory = TempDir::new()?;
            fs::create_dir(directory.path().join("tmp"))?;
            let left = make(directory.path())?;
            let ended = Ended {
                directory: directory.path(),
                pid: std::process::id(),
                user: None,
                temporary_before: BTreeSet::new(),
            };
            let found = leftovers(&ended);
            drop(left);
            Ok(match (found.is_empty(), name == "nothing") {
                (true, true) | (false, false) => Vec::new(),
                (true, false) => vec!["nothing was found".to_owned()],
                (false, true) => found,
            })
        })
    };
    kinds.into_iter().map(test).collect()
}

/// A process that does nothing until it is dropped.
struct Sleeper(std::process::Child);

impl Sleeper {
    fn start(directory: &Path, named: Option<&Path>) -> anyhow::Result<Self> {
        let mut sleeper = command("sleep");
        sleeper.arg("3600").current_dir(directory).stdin(Stdio::null());
        if let Some(named) = named {
            sleeper.env("DIRECTORY", named);
        }
        Ok(Self(sleeper.spawn().context("`sleep` cannot be started")?))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
