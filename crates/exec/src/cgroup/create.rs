//! Creates the directories of one sandbox and writes its limits.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::Limits;
use super::hierarchies::{Controller, Hierarchies, Hierarchy};
use crate::guarantee::Layer;

/// The scheduling period of CPU quotas; the kernel's own default.
const CPU_PERIOD_MICROSECONDS: u64 = 100_000;

/// The period of a quota below one core; the kernel's longest. Programs work in bursts: with a tenth of a core in the
/// default period, the first 10 ms would be followed by 90 ms of standing still.
const LONG_CPU_PERIOD_MICROSECONDS: u64 = 1_000_000;

/// The smallest quota, in thousandths of a core: with the default period, it is the kernel's minimum.
const MIN_CPU_MILLIS: u64 = 10;

/// The directories and limits that could be created.
#[derive(Debug, Default)]
pub(super) struct CreatedGroup {
    /// All created directories; a process of the sandbox is a member of all of them.
    pub directories: Vec<PathBuf>,
    /// The one in the v2 hierarchy.
    pub v2: Option<PathBuf>,
    /// The directory of each live limit, by its controller.
    pub limit_directories: BTreeMap<Controller, PathBuf>,
    pub applied: BTreeMap<Layer, String>,
    pub not_applied: Vec<(Layer, String)>,
}

/// Creates directories called `name` and applies as many of `limits` as the machine allows.
///
/// `made` is called with each new directory before it is used. The kernel needs nothing here: it fills a new cgroup
/// with its files itself. In a temporary directory, a test does that.
pub(super) fn create_group(layout: &Hierarchies, limits: &Limits, name: &str, made: &dyn Fn(&Path)) -> CreatedGroup {
    let mut placed = CreatedGroup::default();
    let mut on_v2 = Vec::new();
    for controller in Controller::ALL {
        let Some(value) = limits.value(controller) else {
            continue;
        };
        match (layout.v1.get(&controller), &layout.v2) {
            (Some(hierarchy), _) => placed.limit_v1(hierarchy, controller, value, name, made),
            (None, Some(_)) => on_v2.push((controller, value)),
            (None, None) => placed.mark_not_applied(
                controller,
                format!("no mounted cgroup hierarchy has the {} controller", controller.as_str()),
            ),
        }
    }
    // A v2 directory is created even without a limit: its cgroup.kill ends the sandbox at once.
    if let Some(hierarchy) = &layout.v2 {
        placed.limit_v2(hierarchy, &on_v2, name, made);
    }
    // Without any directory `kill` would not know the processes; membership alone is enough for that.
    if placed.directories.is_empty() {
        let hierarchies = Controller::ALL.iter().filter_map(|controller| layout.v1.get(controller));
        for own in hierarchies.filter_map(|hierarchy| hierarchy.own.as_deref()) {
            if placed.create_directory(own, name, made).is_ok() {
                break;
            }
        }
    }
    placed
}

impl CreatedGroup {
    /// v1: a child of our own cgroup, so that our own limits apply to the sandbox too.
    fn limit_v1(
        &mut self,
        hierarchy: &Hierarchy,
        controller: Controller,
        value: u64,
        name: &str,
        made: &dyn Fn(&Path),
    ) {
        let Some(own) = &hierarchy.own else {
            return self.mark_not_applied(controller, own_cgroup_hidden(hierarchy));
        };
        // Controllers that are mounted together share one directory.
        let shared = self.directories.contains(&own.join(name));
        let directory = match self.create_directory(own, name, made) {
            Ok(directory) => directory,
            Err(error) => return self.mark_not_applied(controller, describe_error(own, &error)),
        };
        match write_v1(&directory, controller, value) {
            Ok(detail) => self.mark_applied(controller, directory, detail),
            Err(error) => {
                self.mark_not_applied(controller, describe_error(&directory, &error));
                if !shared && fs::remove_dir(&directory).is_ok() {
                    self.directories.retain(|path| *path != directory);
                }
            }
        }
    }

    /// v2: below the nearest of our own cgroup and its ancestors that enables the controllers for its children. Our own
    /// usually cannot: it contains us, and a cgroup with processes may not enable controllers ("no internal processes",
    /// cgroups(7)); only the root of the tree may do both.
    fn limit_v2(&mut self, hierarchy: &Hierarchy, wanted: &[(Controller, u64)], name: &str, made: &dyn Fn(&Path)) {
        let controllers: Vec<_> = wanted.iter().map(|&(controller, _)| controller).collect();
        let mut best: Option<(&Path, Vec<Controller>)> = None;
        let mut obstacle = None;
        for parent in hierarchy.own_and_ancestors() {
            if let Err(error) = check_writable(parent) {
                obstacle.get_or_insert_with(|| describe_error(parent, &error));
                continue;
            }
            let offered = enabled_controllers(parent, &controllers);
            let complete = offered.len() == controllers.len();
            if best.as_ref().is_none_or(|(_, best)| best.len() < offered.len()) {
                best = Some((parent, offered));
            }
            if complete {
                break;
            }
        }
        let Some((parent, offered)) = best else {
            let why = obstacle.unwrap_or_else(|| own_cgroup_hidden(hierarchy));
            for &controller in &controllers {
                self.mark_not_applied(controller, why.clone());
            }
            return;
        };
        let directory = match self.create_directory(parent, name, made) {
            Ok(directory) => directory,
            Err(error) => {
                for &controller in &controllers {
                    self.mark_not_applied(controller, describe_error(parent, &error));
                }
                return;
            }
        };
        self.v2 = Some(directory.clone());
        for &(controller, value) in wanted {
            if !offered.contains(&controller) {
                let why = format!(
                    "no writable cgroup between {} and {} passes the {} controller on",
                    hierarchy.own.as_deref().unwrap_or(parent).display(),
                    hierarchy.mount.display(),
                    controller.as_str(),
                );
                self.mark_not_applied(controller, why);
                continue;
            }
            match write_v2(&directory, controller, value) {
                Ok(detail) => self.mark_applied(controller, directory.clone(), detail),
                Err(error) => self.mark_not_applied(controller, describe_error(&directory, &error)),
            }
        }
    }

    fn create_directory(&mut self, parent: &Path, name: &str, made: &dyn Fn(&Path)) -> io::Result<PathBuf> {
        let directory = parent.join(name);
        if !self.directories.contains(&directory) {
            // An existing directory is not ours: an error, never adopted.
            fs::create_dir(&directory)?;
            made(&directory);
            self.directories.push(directory.clone());
        }
        Ok(directory)
    }

    fn mark_applied(&mut self, controller: Controller, directory: PathBuf, detail: String) {
        self.limit_directories.insert(controller, directory);
        self.applied.insert(controller.layer(), detail);
    }

    fn mark_not_applied(&mut self, controller: Controller, why: String) {
        self.not_applied.push((controller.layer(), why));
    }
}

/// Whether we may create a cgroup below `parent` and move processes into it. Moving needs write access to
/// `cgroup.procs` of the nearest common ancestor of both ends, which is `parent`.
fn check_writable(parent: &Path) -> io::Result<()> {
    accessat(CWD, parent, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)?;
    let procs = parent.join("cgroup.procs");
    accessat(CWD, &procs, Access::WRITE_OK, AtFlags::EACCESS)?;
    Ok(())
}

/// Those of `wanted` that children of `parent` get. In the root of the whole tree, where that is allowed beside
/// processes, missing ones are enabled.
fn enabled_controllers(parent: &Path, wanted: &[Controller]) -> Vec<Controller> {
    let listed = |file: &str| {
        let text = fs::read_to_string(parent.join(file)).unwrap_or_default();
        let mut names: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        names.sort();
        names
    };
    let passes = |names: &[String], controller: Controller| names.iter().any(|name| name == controller.as_str());
    let mut passed_on = listed("cgroup.subtree_control");
    // Every cgroup except the root has a type.
    let is_root = !parent.join("cgroup.type").exists();
    if is_root {
        let available = listed("cgroup.controllers");
        for &controller in wanted {
            if passes(&available, controller) && !passes(&passed_on, controller) {
                // One at a time: a single failure would undo the others. A controller that failed is not listed below.
                let enable = format!("+{}", controller.as_str());
                let _ = write_control_file(parent, "cgroup.subtree_control", &enable);
            }
        }
        passed_on = listed("cgroup.subtree_control");
    }
    let offered = wanted.iter().copied();
    offered.filter(|&controller| passes(&passed_on, controller)).collect()
}

fn write_v2(directory: &Path, controller: Controller, value: u64) -> io::Result<String> {
    match controller {
        Controller::Memory => {
            write_control_file(directory, "memory.max", &value.to_string())?;
            // Absent when the kernel does not account swap. Then the limit applies to memory alone.
            let swap = match write_control_file(directory, "memory.swap.max", "0") {
                Ok(()) => "no swap",
                Err(error) if error.kind() == io::ErrorKind::NotFound => "swap not counted",
                Err(error) => return Err(error),
            };
            Ok(format!("v2: {value} bytes, {swap}"))
        }
        Controller::Pids => {
            write_control_file(directory, "pids.max", &value.to_string())?;
            Ok(format!("v2: {value} processes"))
        }
        Controller::Cpu => {
            let (millis, quota, period) = cpu_quota(value);
            write_control_file(directory, "cpu.max", &format!("{quota} {period}"))?;
            Ok(format!("v2: {millis} millicores"))
        }
    }
}

fn write_v1(directory: &Path, controller: Controller, value: u64) -> io::Result<String> {
    match controller {
        Controller::Memory => {
            // In this order: the limit for memory and swap together may never be below that for memory alone.
            write_control_file(directory, "memory.limit_in_bytes", &value.to_string())?;
            let memory_and_swap = "memory.memsw.limit_in_bytes";
            let swap = match write_control_file(directory, memory_and_swap, &value.to_string()) {
                Ok(()) => "no swap",
                Err(error) if error.kind() == io::ErrorKind::NotFound => "swap not counted",
                Err(error) => return Err(error),
            };
            Ok(format!("v1: {value} bytes, {swap}"))
        }
        Controller::Pids => {
            write_control_file(directory, "pids.max", &value.to_string())?;
            Ok(format!("v1: {value} processes"))
        }
        Controller::Cpu => {
            let (millis, quota, period) = cpu_quota(value);
            write_control_file(directory, "cpu.cfs_period_us", &period.to_string())?;
            write_control_file(directory, "cpu.cfs_quota_us", &quota.to_string())?;
            Ok(format!("v1: {millis} millicores"))
        }
    }
}

/// Thousandths of a core, and quota and period in microseconds.
fn cpu_quota(cpu_millis: u64) -> (u64, u64, u64) {
    let millis = cpu_millis.max(MIN_CPU_MILLIS);
    let period = if millis < 1000 { LONG_CPU_PERIOD_MICROSECONDS } else { CPU_PERIOD_MICROSECONDS };
    (millis, millis * period / 1000, period)
}

/// Writes one control file in one call: the kernel treats each write as one command.
pub(super) fn write_control_file(directory: &Path, file: &str, value: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(directory.join(file))?;
    file.write_all(value.as_bytes())
}

fn describe_error(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

fn own_cgroup_hidden(hierarchy: &Hierarchy) -> String {
    format!("the cgroup of this process is not shown in {}", hierarchy.mount.display())
}
