//! The process outside on which a cluster depends: it starts the first process inside, waits for it, and then removes
//! what the kernel does not: the link, the cgroups, the state folder.
//!
//! Until `up` says that it may stay, the keeper ends the cluster when `up` ends. A killed keeper takes its cluster
//! with it; what it could not remove is swept by the next command.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::command::{check, line};
use super::config::PARTS;
use super::events::{Clock, Event, send};
use super::image::Image;
use super::network::{self, Link};
use super::parts::Tier;
use super::paths::Root;
use super::state::{Instance, Plan, Process, Record, write_json};
use super::{cgroups, end, files, lock};

/// What `up` asks for: the first line on the keeper's standard input.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    pub name: String,
    pub tier: String,
    /// Folders of the parts below `parts/`, by part.
    pub parts: Vec<(String, String)>,
    pub idle_seconds: Option<u64>,
}

/// The second line: `up` has seen the cluster ready and lets go of it.
pub const STAY: &str = "stay";

/// How long a process may take to appear after it was started.
const FORK_PATIENCE: Duration = Duration::from_secs(10);

pub fn run(root: &Root) -> Result<()> {
    // A session of our own: the interrupt key in the terminal of `up` must not reach the cluster.
    let _ = rustix::process::setsid();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).context("cannot read the request")?;
    let request: Request = serde_json::from_str(&line).context("cannot read the request")?;
    let instance = Instance::new(root, &request.name)?;
    let Some(lock) = lock::try_exclusive(&instance.lock)? else {
        send(&Event::Taken);
        return Ok(());
    };
    end::remove_remains(&instance)?;
    let outcome = keep(root, &instance, request);
    if let Err(error) = &outcome {
        let logs = end::save_logs(root, &instance);
        send(&Event::Failed(format!("{error:#}{logs}")));
    }
    end::remove_folder(&instance)?;
    lock.remove();
    outcome
}

/// Starts the cluster and returns when it has ended.
fn keep(root: &Root, instance: &Instance, request: Request) -> Result<()> {
    let mut clock = Clock::start();
    let tier: Tier = request.tier.parse()?;
    let (link, link_lock) = network::take_link()?;
    let plan = Plan {
        name: request.name,
        tier: request.tier,
        link,
        root: root.path().to_owned(),
        parts: request.parts,
        idle_seconds: request.idle_seconds,
    };
    fs::DirBuilder::new().mode(0o700).create(&instance.folder).context("cannot create the state folder")?;
    write_json(&instance.file("plan.json"), &plan)?;
    files::write(instance, &plan, tier)?;
    if tier.node {
        Image::pause()?.write(&instance.file("images/pause.tar"))?;
    }
    link.create()?;
    cgroups::create(&link.cgroup());
    clock.step("files and keys");
    let outcome = run_inside(instance, link);
    link.remove();
    cgroups::remove(&link.cgroup())?;
    link_lock.remove();
    outcome
}

fn run_inside(instance: &Instance, link: Link) -> Result<()> {
    let mut child = spawn(instance)?;
    let stdin = Arc::new(Mutex::new(child.stdin.take()));
    watch_owner(Arc::clone(&stdin));
    let outcome = admit(instance, link, &child).and_then(|()| forward(instance, &mut child));
    // Closing its input ends the first process; it may have ended already.
    close(&stdin);
    child.wait().context("cannot wait for the cluster")?;
    outcome
}

fn spawn(instance: &Instance) -> Result<Child> {
    // A copy: the path of this program may lead to another build by now.
    let own = instance.file("init");
    fs::copy("/proc/self/exe", &own).context("cannot copy this program")?;
    let log = File::create(instance.file("logs/init.log")).context("cannot create the first log")?;
    let mut command = line("unshare --mount --uts --ipc --net --pid --fork --kill-child=KILL --mount-proc --");
    command.arg(own).args(["kube", "init"]).arg(&instance.folder);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
    command.spawn().context("cannot start unshare")
}

/// Finds the first process and hands it its end of the link.
fn admit(instance: &Instance, link: Link, unshare: &Child) -> Result<()> {
    let deadline = Instant::now() + FORK_PATIENCE;
    let init = loop {
        if let Some(init) = Process::only_child(unshare.id()) {
            break init;
        }
        if Instant::now() > deadline {
            bail!("unshare started no process; its messages are in logs/init.log");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    write_json(&instance.file("init.json"), &init)?;
    check(&format!("ip link set {} netns {} name eth0", link.peer(), init.pid))
}

/// Passes events on until the first process ends, and notes when it is ready.
fn forward(instance: &Instance, child: &mut Child) -> Result<()> {
    let stdout = child.stdout.take().context("the cluster has no output")?;
    let mut failure = None;
    for line in BufReader::new(stdout).lines() {
        let line = line.context("cannot read from the cluster")?;
        match serde_json::from_str(&line) {
            Ok(Event::Failed(text)) => failure = Some(text),
            Ok(event) => {
                if let Event::Ready(record) = &event {
                    write_json(&instance.file("cluster.json"), record)?;
                }
                send(&event);
            }
            Err(_) => {}
        }
    }
    match failure {
        Some(text) => bail!("{text}"),
        None => Ok(()),
    }
}

/// Ends the cluster when `up` ends before it has said that the cluster may stay.
fn watch_owner(stdin: Arc<Mutex<Option<ChildStdin>>>) {
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = std::io::stdin().read_line(&mut line);
        if read.is_err() || line.trim() != STAY {
            close(&stdin);
        }
    });
}

fn close(stdin: &Mutex<Option<ChildStdin>>) {
    drop(stdin.lock().take());
}

/// How to reach the cluster of a plan.
pub fn record(plan: &Plan) -> Result<Record> {
    let folder = plan.root.join("clusters").join(&plan.name);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).context("the clock is before 1970")?;
    let folders = |base: PathBuf| plan.parts.iter().map(|(_, part)| base.join(part)).collect();
    Ok(Record {
        name: plan.name.clone(),
        tier: plan.tier.clone(),
        kubeconfig: folder.join("config/admin.kubeconfig"),
        audit_log: folder.join("audit/audit.log"),
        host_address: plan.link.host(),
        address: plan.link.cluster(),
        programs: folders(plan.root.join("parts")),
        inner_programs: folders(PathBuf::from(PARTS)),
        lease: folder.join("lease"),
        started_unix_seconds: now.as_secs(),
    })
}
