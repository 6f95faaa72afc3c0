//! What commands get to see: the executor of a skill container, from the command line and the container itself.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use sympozium_exec::config::PRIVATE_PATHS;
use sympozium_exec::environment::Environment;
use sympozium_exec::{Config, Executor, ProcessVisibility};
use sympozium_program::Failure;

use crate::arguments::{Kernel, Minimum, SandboxArguments};

/// Makes the executor of the whole program.
pub fn executor(config: Config) -> Result<Executor, Failure> {
    Executor::new(config).map_err(|error| {
        let hint = error.hint();
        let error = anyhow::Error::new(error).context("the sandbox for commands cannot be made");
        Failure::from(error).or_hint(hint)
    })
}

/// Where no command needs to write, even if the container could: the kernel's own, and what the runtime puts in.
const NOT_VOLUMES: [&str; 5] = ["/dev", "/etc", "/proc", "/sys", "/run"];

/// Where every client of the Kubernetes API looks for a token.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// How the volumes are known that commands may write to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumesFrom {
    /// As they are mounted, where none is named.
    Mounts,
    /// Those that are named, and no other: an image can have volumes of its own.
    CommandLine,
}

/// What both front ends have in common: the view, the floor, the environment that the container declares.
///
/// `private` are further paths of the front end itself; commands do not see them.
///
/// # Errors
/// When such a path lies where commands may write: whoever can write to a directory can move what is in it. When the profile is
/// made for another kernel.
pub fn config(
    arguments: &SandboxArguments,
    volumes_from: VolumesFrom,
    private: impl IntoIterator<Item = PathBuf>,
) -> Result<Config, Failure> {
    let profile = arguments.profile.resolve(Kernel::detect());
    let profile = profile.map_err(|error| {
        Failure::new(error, "leave --profile out, or look which handler the pod's RuntimeClass really has")
    })?;
    let mut config = Config::new(profile);
    if let Some(words) = &arguments.minimum_isolation {
        config.floor = Minimum::guarantees(words).collect();
    }
    config.sockets = arguments.sockets.sockets();
    let confined = !arguments.readable.is_empty();
    if confined {
        // The files are the machine's: nothing of them is a command's by being there.
        config.view.readable = arguments.readable.iter().map(|it| absolute(it)).collect();
        config.view.writable = Vec::new();
        config.view.terminals = false;
        config.processes = ProcessVisibility::Hidden;
    }
    config.view.hidden.extend(private);
    for path in &arguments.hidden {
        let path = absolute(path);
        if path == Path::new("/") || path.starts_with("/proc") {
            return Err(Failure::new(
                anyhow!("{} cannot be hidden", path.display()),
                "our own helpers need it; commands see no process but their own through it",
            ));
        }
        config.view.hidden.push(path);
    }
    let named = arguments.writable.iter().map(|path| absolute(path));
    let writable: Vec<PathBuf> = match volumes_from {
        // A file that is mounted there is not what a rule for a directory is for.
        VolumesFrom::CommandLine => named.filter(|path| path.is_dir()).collect(),
        VolumesFrom::Mounts if arguments.writable.is_empty() && !confined => {
            let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            volumes(&mounts, &config.view.hidden)
        }
        VolumesFrom::Mounts => named.collect(),
    };
    let workspace = &absolute(&arguments.workspace);
    let scratch = &absolute(&arguments.scratch);
    let own = [workspace.clone(), scratch.clone()];
    for directory in writable.into_iter().chain(own) {
        if !config.view.writable.contains(&directory) {
            config.view.writable.push(directory);
        }
    }
    if workspace.is_dir() {
        config = config.with_working_directory(workspace);
    }
    config.environment = Environment::from_declared(declared()).with_scratch(scratch);
    config.search_path = search_path(config.environment.get("PATH"));
    match exposed(&config) {
        Some((hidden, writable)) => Err(Failure::new(
            anyhow!("{} is not for commands, but they may write to {}", hidden.display(), writable.display()),
            "put it where commands cannot write; /tmp, /var/tmp and /dev/shm are theirs",
        )),
        None => Ok(config),
    }
}

/// What the container declares for commands. The kubelet adds where the API server is, to every container of a pod: that is
/// for those that have a token for it.
fn declared() -> impl Iterator<Item = (OsString, OsString)> {
    let has_token = Path::new(TOKEN).exists();
    std::env::vars_os().filter(move |(name, _)| has_token || !is_of_api_server(name))
}

fn is_of_api_server(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"KUBERNETES_")
}

/// What is meant by a path that may be relative, now and later.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// A hidden path below a writable one.
fn exposed(config: &Config) -> Option<(&Path, &Path)> {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    config.view.hidden.iter().find_map(|hidden| {
        let place = real(hidden);
        let writable = &config.view.writable;
        let over = (writable.iter()).find(|writable| place.starts_with(real(writable)))?;
        Some((hidden.as_path(), over.as_path()))
    })
}

/// The absolute directories of `PATH`.
fn search_path(path: Option<&std::ffi::OsStr>) -> Vec<PathBuf> {
    std::env::split_paths(path.unwrap_or_default()).filter(|directory| directory.is_absolute()).collect()
}

/// The writable volumes that `mountinfo` tells of: whoever wrote the pod mounted them to be written to.
///
/// The root itself is not one, nor is anything that holds a hidden path.
fn volumes(mountinfo: &str, hidden: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = BTreeSet::new();
    for line in mountinfo.lines() {
        // proc_pid_mountinfo(5): the fifth field is the mount point, the sixth its options.
        let mut fields = line.split(' ').skip(4);
        let (Some(point), Some(options)) = (fields.next(), fields.next()) else {
            continue;
        };
        let point = unescape(point);
        let writable = options.split(',').any(|option| option == "rw");
        if writable && is_volume(&point, hidden) {
            found.insert(point);
        } else {
            // A later mount over an earlier one is what counts.
            found.remove(&point);
        }
    }
    found.into_iter().collect()
}

fn is_volume(point: &Path, hidden: &[PathBuf]) -> bool {
    let private = PRIVATE_PATHS.iter().map(Path::new);
    point != Path::new("/")
        && point.is_dir()
        && !NOT_VOLUMES.iter().any(|place| point.starts_with(place))
        && !private
            .chain(hidden.iter().map(PathBuf::as_path))
            .any(|hidden| hidden.starts_with(point) || point.starts_with(hidden))
}

/// Mount points have space, tab, newline and backslash written as three octal digits.
fn unescape(field: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt as _;
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if first == b'\\' => {
                bytes.push(byte);
                rest = &after[3..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writable_volumes_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| {
            let path = directory.path().join(name);
            std::fs::create_dir_all(&path).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (data, read_only, covered, ipc) = (path("my data"), path("ro"), path("over"), path("ipc"));
        let line = |point: &str, options: &str| {
            format!("36 35 98:0 / {} {options} - tmpfs none rw\n", point.replace(' ', "\\040"))
        };
        let text = [
            line("/", "rw,relatime"),
            line("/proc", "rw"),
            line("/etc/hosts", "rw"),
            line(&data, "rw,nosuid"),
            line(&read_only, "ro"),
            line(&covered, "rw"),
            line(&covered, "ro"),
            line(&ipc, "rw"),
            line("/no/such/place", "rw"),
            "nonsense\n".to_owned(),
        ];
        let found = volumes(&text.concat(), &[PathBuf::from(ipc)]);
        assert_eq!(found, [PathBuf::from(data)]);
    }

    #[test]
    fn escapes_of_mount_points_are_undone() {
        for (field, path) in
            [("/a", "/a"), ("/a\\040b", "/a b"), ("/a\\134040", "/a\\040"), ("/a\\04", "/a\\04"), ("/a\\", "/a\\")]
        {
            assert_eq!(unescape(field), PathBuf::from(path), "{field}");
        }
    }
}
