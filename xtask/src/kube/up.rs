//! Starts a cluster, or finds the one that is there.

use std::io::{BufRead, BufReader, Write as _};
use std::process::{ChildStdin, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::build::{self, Built};
use super::command::program;
use super::events::{Event, seconds};
use super::keeper::{Request, STAY};
use super::parts::{self, Tier};
use super::paths::Root;
use super::state::{Instance, Record};
use super::{end, lock, preflight, times};

/// How long to wait for a cluster that another process is starting.
const OTHER_PATIENCE: Duration = Duration::from_secs(180);

/// Who ends the cluster.
#[derive(Debug, Clone, Copy)]
pub enum Lifetime {
    /// `down`.
    UntilDown,
    /// The cluster itself, when its lease has had no holder for so long.
    Leased { idle: Duration },
}

/// What is wanted.
#[derive(Debug)]
pub struct Wish {
    pub name: String,
    pub tier: Tier,
    pub lifetime: Lifetime,
}

/// Starts the cluster of that name unless it is there. When this returns, it is ready.
///
/// Killed at any moment, this leaves nothing that outlives it by more than the moment its parts need to notice, and
/// nothing that keeps the next call from succeeding.
pub fn up(root: &Root, wish: &Wish) -> Result<Record> {
    preflight::check(wish.tier)?;
    let built = build::build(root, &wish.tier.parts())?;
    if let Some(gvisor) = built.iter().find(|built| *built.part == parts::GVISOR) {
        preflight::check_gvisor(root, &gvisor.folder)?;
    }
    end::sweep(root)?;
    let instance = Instance::new(root, &wish.name)?;
    let deadline = Instant::now() + OTHER_PATIENCE;
    loop {
        if let Some(record) = start(root, wish, &built)? {
            return Ok(record);
        }
        // Another process starts it: wait until it is ready, or gone.
        while lock::try_exclusive(&instance.lock)?.is_none() {
            if let Some(record) = instance.record()? {
                return suitable(record, wish);
            }
            if Instant::now() > deadline {
                bail!("cluster {} is being started by another process and does not get ready", wish.name);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn suitable(record: Record, wish: &Wish) -> Result<Record> {
    let there: Tier = record.tier.parse()?;
    if !there.covers(wish.tier) {
        bail!(
            "cluster {} is there with tier {there}, which lacks something of {}\n\
             hint: `cargo xtask kube down --name {}`, or give the new one another --name",
            wish.name,
            wish.tier,
            wish.name
        );
    }
    Ok(record)
}

/// Hands the wish to a keeper; `None` when the cluster of that name belongs to another one.
fn start(root: &Root, wish: &Wish, built: &[Built]) -> Result<Option<Record>> {
    let begin = Instant::now();
    // Not by its path: that may lead to another build by now.
    let mut keeper = program("/proc/self/exe");
    keeper.args(["kube", "keep"]).env(super::paths::ROOT_VARIABLE, root.path()).current_dir("/");
    // It must not hold our output open: a reader of it waits for its end.
    let mut child = keeper
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start the keeper")?;
    let mut stdin = child.stdin.take().context("the keeper has no input")?;
    let stdout = child.stdout.take().context("the keeper has no output")?;
    write_line(&mut stdin, &serde_json::to_string(&request(wish, built)).context("cannot write the request")?)?;
    for line in BufReader::new(stdout).lines() {
        let line = line.context("cannot read from the keeper")?;
        match serde_json::from_str(&line).with_context(|| format!("cannot read {line:?}"))? {
            Event::Step { name, milliseconds } => {
                let took = Duration::from_millis(milliseconds);
                times::note(&format!("start {}: {name}", wish.tier), took);
                eprintln!("  {name:<26}{}", seconds(took));
            }
            Event::Ready(record) => {
                write_line(&mut stdin, STAY)?;
                times::note(&format!("start {}", wish.tier), begin.elapsed());
                let done = format!("cluster {} ready", wish.name);
                eprintln!("  {done:<26}{}", seconds(begin.elapsed()));
                return Ok(Some(*record));
            }
            Event::Failed(text) => bail!("the cluster did not start: {text}"),
            Event::Taken => return Ok(None),
        }
    }
    bail!("the keeper of cluster {} ended without an answer", wish.name)
}

fn request(wish: &Wish, built: &[Built]) -> Request {
    let folder = |built: &Built| built.folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Request {
        name: wish.name.clone(),
        tier: wish.tier.to_string(),
        parts: built.iter().map(|built| (built.part.name.to_owned(), folder(built))).collect(),
        idle_seconds: match wish.lifetime {
            Lifetime::UntilDown => None,
            Lifetime::Leased { idle } => Some(idle.as_secs()),
        },
    }
}

fn write_line(stdin: &mut ChildStdin, line: &str) -> Result<()> {
    writeln!(stdin, "{line}").context("cannot write to the keeper")
}

/// Builds Helm: no cluster runs it, but users need it.
pub fn helm(root: &Root) -> Result<Built> {
    build::build(root, &[&parts::HELM])?.pop().context("no part was built")
}
