//! Commands for a person at a running cluster: `status`, `exec`, `logs`, `import`.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};

use super::command::{line, program};
use super::config::{CONTAINERD_SOCKET, STATE};
use super::lock;
use super::paths::Root;
use super::state::{Instance, Record};

/// Prints one line per cluster.
pub fn status(root: &Root) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let all = Instance::all(root)?;
    for instance in &all {
        let held = lock::try_exclusive(&instance.lock)?.is_none();
        let line = match (held, instance.record()?) {
            (true, Some(record)) => {
                let logs = fs::read_dir(instance.file("logs")).into_iter().flatten().flatten();
                let mut names: Vec<_> =
                    logs.map(|log| log.file_name().to_string_lossy().trim_end_matches(".log").to_owned()).collect();
                names.sort();
                format!("ready     {}  {}  {}", record.tier, record.address, names.join(" "))
            }
            (true, None) => "starting".to_owned(),
            (false, _) => "left by a killed owner; the next command removes it".to_owned(),
        };
        writeln!(out, "{:<16}{line}", instance.name).context("cannot print")?;
    }
    if all.is_empty() {
        writeln!(out, "no cluster").context("cannot print")?;
    }
    Ok(())
}

/// The record of a cluster that is ready.
pub fn ready(root: &Root, name: &str) -> Result<(Instance, Record)> {
    let instance = Instance::new(root, name)?;
    let held = instance.folder.is_dir() && lock::try_exclusive(&instance.lock)?.is_none();
    match instance.record()? {
        Some(record) if held => Ok((instance, record)),
        _ => bail!("cluster {name} is not running\nhint: `cargo xtask kube up --name {name}`"),
    }
}

/// Runs a command in the cluster's namespaces, as root of its node, with its programs and kubeconfig.
pub fn exec(root: &Root, name: &str, command: &[String]) -> Result<ExitCode> {
    let (instance, record) = ready(root, name)?;
    let status =
        inside(&instance, &record)?.args(command).stdin(Stdio::inherit()).status().context("cannot start nsenter")?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

fn inside(instance: &Instance, record: &Record) -> Result<Command> {
    let init = instance.init()?.context("the cluster has no first process")?;
    let mut path: Vec<_> = record.inner_programs.iter().map(|folder| folder.display().to_string()).collect();
    path.push("/usr/sbin:/usr/bin:/sbin:/bin".to_owned());
    let mut command = line("nsenter --mount --uts --ipc --net --pid --target");
    command.arg(init.pid.to_string()).args(["--", "env"]);
    command.arg(format!("PATH={}", path.join(":")));
    command.arg(format!("KUBECONFIG={STATE}/config/admin.kubeconfig"));
    command.arg(format!("CONTAINERD_ADDRESS={CONTAINERD_SOCKET}"));
    command.arg("CONTAINERD_NAMESPACE=k8s.io");
    Ok(command)
}

/// Prints a component's log, or the names of all.
pub fn logs(root: &Root, name: &str, component: Option<&str>, follow: bool) -> Result<ExitCode> {
    let (instance, _) = ready(root, name)?;
    let folder = instance.file("logs");
    let mut names: Vec<_> = fs::read_dir(&folder)
        .with_context(|| format!("cannot list {}", folder.display()))?
        .flatten()
        .filter_map(|log| log.file_name().to_str()?.strip_suffix(".log").map(str::to_owned))
        .collect();
    names.sort();
    let Some(component) = component else {
        writeln!(std::io::stdout(), "{}", names.join("\n")).context("cannot print")?;
        return Ok(ExitCode::SUCCESS);
    };
    if !names.iter().any(|name| name == component) {
        bail!("cluster {name} has no component {component:?}\nhint: it has {}", names.join(", "));
    }
    let mut tail = program("tail");
    tail.args(["-n", "+1"]).args(follow.then_some("--follow")).arg(folder.join(format!("{component}.log")));
    let done = tail.status().context("cannot start tail")?;
    Ok(if done.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Loads an image archive (docker-archive or OCI) into the cluster's containerd.
pub fn import(root: &Root, name: &str, archive: &Path) -> Result<()> {
    let (instance, record) = ready(root, name)?;
    // Inside, only the state folder is sure to be seen at a known place.
    let copy = instance.file(&format!("images/import-{}.tar", std::process::id()));
    fs::copy(archive, &copy).with_context(|| format!("cannot read {}", archive.display()))?;
    let seen = format!("{STATE}/images/import-{}.tar", std::process::id());
    let outcome = super::command::output(inside(&instance, &record)?.args(["ctr", "images", "import", &seen]));
    fs::remove_file(&copy).with_context(|| format!("cannot remove {}", copy.display()))?;
    let printed = outcome.context("the import failed\nhint: only clusters of the node tier hold images")?;
    eprint!("{printed}");
    Ok(())
}
