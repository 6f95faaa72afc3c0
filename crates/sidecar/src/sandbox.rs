//! What commands see and may write to: the executor's configuration, from the command line and the container itself.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use sympozium_exec::config::PRIVATE_PATHS;
use sympozium_exec::environment::Environment;
use sympozium_exec::{Config, Executor, ProcessVisibility};
use sympozium_program::Failure;

use crate::arguments::{GuaranteeArgument, Kernel, SandboxArguments};

pub fn build_executor(config: Config) -> Result<Executor, Failure> {
    Executor::new(config).map_err(|error| {
        let hint = error.hint();
        let error = anyhow::Error::new(error).context("the sandbox for commands cannot be created");
        Failure::from(error).or_hint(hint)
    })
}

/// Mounts that commands need not write to, even if the container may: of the kernel and of the container runtime.
const NOT_VOLUMES: [&str; 5] = ["/dev", "/etc", "/proc", "/sys", "/run"];

/// Where Kubernetes clients look for a token.
const SERVICE_ACCOUNT_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// Which volumes commands may write to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WritableVolumes {
    /// Those of the command line; where it names none, all that are mounted writable.
    MountedByDefault,
    /// Those of the command line, and no other: an image can have volumes of its own.
    CommandLineOnly,
}

/// The configuration that both front ends share: the view, the floor, the environment that the container declares.
///
/// `private` are paths of the front end itself, which are hidden from commands too.
///
/// # Errors
/// When a hidden path lies where commands may write: they could rename the directories above it. When the profile is
/// made for another kernel.
pub fn build_config(
    arguments: &SandboxArguments,
    volumes: WritableVolumes,
    private: impl IntoIterator<Item = PathBuf>,
) -> Result<Config, Failure> {
    let profile = arguments.profile.resolve(Kernel::detect());
    let profile = profile
        .map_err(|error| Failure::new(error, "leave --profile out, or check the handler of the pod's RuntimeClass"))?;
    let mut config = Config::new(profile);
    if let Some(minimum) = &arguments.minimum_isolation {
        config.floor = GuaranteeArgument::guarantees(minimum).collect();
    }
    config.sockets = arguments.sockets.to_sockets();
    let confined = !arguments.readable.is_empty();
    if confined {
        // The root file system is the machine's, not a container's: a command sees only what is listed.
        config.view.readable = arguments.readable.iter().map(|path| to_absolute(path)).collect();
        config.view.writable = Vec::new();
        config.view.terminals = false;
        config.processes = ProcessVisibility::Hidden;
    }
    config.view.hidden.extend(private);
    for path in &arguments.hidden {
        let path = to_absolute(path);
        if path == Path::new("/") || path.starts_with("/proc") {
            return Err(Failure::new(
                anyhow!("{} cannot be hidden", path.display()),
                "the executor needs it; commands see only their own processes in it",
            ));
        }
        config.view.hidden.push(path);
    }
    let named = arguments.writable.iter().map(|path| to_absolute(path));
    let writable: Vec<PathBuf> = match volumes {
        // Landlock's rules for directories do not apply to a mounted file.
        WritableVolumes::CommandLineOnly => named.filter(|path| path.is_dir()).collect(),
        WritableVolumes::MountedByDefault if arguments.writable.is_empty() && !confined => {
            let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            find_writable_volumes(&mounts, &config.view.hidden)
        }
        WritableVolumes::MountedByDefault => named.collect(),
    };
    let workspace = &to_absolute(&arguments.workspace);
    let scratch = &to_absolute(&arguments.scratch);
    let own = [workspace.clone(), scratch.clone()];
    for directory in writable.into_iter().chain(own) {
        if !config.view.writable.contains(&directory) {
            config.view.writable.push(directory);
        }
    }
    if workspace.is_dir() {
        config = config.with_working_directory(workspace);
    }
    config.environment = Environment::from_declared(declared_variables()).with_scratch(scratch);
    config.search_path = parse_search_path(config.environment.get("PATH"));
    match find_exposed(&config) {
        Some((hidden, writable)) => Err(Failure::new(
            anyhow!("{} must be hidden from commands, but they may write to {}", hidden.display(), writable.display()),
            "move it to a directory that commands cannot write to; /tmp, /var/tmp and /dev/shm are writable",
        )),
        None => Ok(config),
    }
}

/// The variables of the container. The kubelet adds the address of the API server to every container of a pod: commands get
/// it only where they have a token for it.
fn declared_variables() -> impl Iterator<Item = (OsString, OsString)> {
    let has_token = Path::new(SERVICE_ACCOUNT_TOKEN).exists();
    std::env::vars_os().filter(move |(name, _)| has_token || !is_api_server_variable(name))
}

fn is_api_server_variable(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"KUBERNETES_")
}

/// Resolved now, because the working directory may change.
fn to_absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// A hidden path below a writable one, and the latter.
fn find_exposed(config: &Config) -> Option<(&Path, &Path)> {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    config.view.hidden.iter().find_map(|hidden| {
        let real_hidden = real(hidden);
        let writable = config.view.writable.iter().find(|writable| real_hidden.starts_with(real(writable)))?;
        Some((hidden.as_path(), writable.as_path()))
    })
}

/// The absolute directories of `PATH`.
fn parse_search_path(path: Option<&OsStr>) -> Vec<PathBuf> {
    std::env::split_paths(path.unwrap_or_default()).filter(|directory| directory.is_absolute()).collect()
}

/// The mount points of `mountinfo` that the author of the pod has mounted writable.
///
/// The root is not one, nor is a mount with a hidden path below it.
fn find_writable_volumes(mountinfo: &str, hidden: &[PathBuf]) -> Vec<PathBuf> {
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
            // A later mount hides an earlier one.
            found.remove(&point);
        }
    }
    found.into_iter().collect()
}

fn is_volume(point: &Path, hidden: &[PathBuf]) -> bool {
    let private = PRIVATE_PATHS.iter().map(Path::new);
    point != Path::new("/")
        && point.is_dir()
        && !NOT_VOLUMES.iter().any(|path| point.starts_with(path))
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
        let (data, read_only, covered, ipc) = (path("my data"), path("ro"), path("covered"), path("ipc"));
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
            line("/no/such/path", "rw"),
            "nonsense\n".to_owned(),
        ];
        let found = find_writable_volumes(&text.concat(), &[PathBuf::from(ipc)]);
        assert_eq!(found, [PathBuf::from(data)]);
    }

    #[test]
    fn escapes_of_mount_points_are_decoded() {
        for (field, path) in
            [("/a", "/a"), ("/a\\040b", "/a b"), ("/a\\134040", "/a\\040"), ("/a\\04", "/a\\04"), ("/a\\", "/a\\")]
        {
            assert_eq!(unescape(field), PathBuf::from(path), "{field}");
        }
    }
}
