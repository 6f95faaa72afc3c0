//! Reads the transcript of a run and the logs of its parts.

use std::io::Read as _;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use sympozium_api::text::{printable, quote};
use sympozium_gateway::run_api::local::{StoredReport, files};
use sympozium_ipc::run_api::MAX_TRANSCRIPT_LINE;
use sympozium_runs::{Event, HintedError, LogError, LogSink};

use crate::bounded_lines::{BoundedLine, BoundedLines, open_regular};
use crate::control::{Client, EventStream};
use crate::record::LocalRunRecord;
use crate::state::{RunDirectory, read_bounded};

/// Bytes of a `report.json` that are read.
const MAX_REPORT_BYTES: u64 = 16 << 20;
/// Bytes of a line of the transcript: as long as the agent may write them, with escapes.
const MAX_TRANSCRIPT_BYTES: usize = 8 * MAX_TRANSCRIPT_LINE;
/// Parts that an error message lists.
const MAX_PARTS: usize = 1024;
/// How often a growing file is read, and how often connecting to a starting run is tried.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How often to try before giving up.
const MAX_ATTEMPTS: u32 = 50;

/// Passes on the transcript of a run; with `follow`, the events of a running one until its end.
pub fn read_run_log(
    directory: &RunDirectory,
    record: &LocalRunRecord,
    follow: bool,
    sink: &mut dyn LogSink,
) -> Result<(), LogError> {
    if follow && let Some(events) = connect_stream(directory).map_err(run_error)? {
        let mut passed = 0;
        for event in events {
            let event = match event {
                Ok(event) => event,
                Err(error) => return read_rest(directory, passed, error, sink),
            };
            passed += usize::from(matches!(event.event, Event::Transcript { .. }));
            sink.event(&event)?;
        }
        return Ok(());
    }
    read_transcript(directory, 0, sink)?;
    sink.run_state(directory.run_end(record).as_ref());
    Ok(())
}

fn run_error(error: anyhow::Error) -> HintedError {
    HintedError::new(error, "`sympozium show` prints the state of the run")
}

fn part_error(error: anyhow::Error) -> HintedError {
    HintedError::new(error, "`sympozium show` lists the stored files of the run")
}

/// Called when the connection broke before the last event. If the run has ended nevertheless, passes on the rest of its
/// transcript.
fn read_rest(
    directory: &RunDirectory,
    passed: usize,
    error: anyhow::Error,
    sink: &mut dyn LogSink,
) -> Result<(), LogError> {
    for _ in 0..MAX_ATTEMPTS {
        if !directory.is_running() {
            break;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    let Some(outcome) = directory.read_record().ok().and_then(|record| record.outcome) else {
        return Err(run_error(error).into());
    };
    read_transcript(directory, passed, sink)?;
    sink.run_state(Some(&outcome));
    Ok(())
}

/// Streams the events of a running run; `None` if it has ended.
fn connect_stream(directory: &RunDirectory) -> anyhow::Result<Option<EventStream>> {
    for _ in 0..MAX_ATTEMPTS {
        if let Some(client) = Client::connect(directory)? {
            return client.follow().map(Some);
        }
        if !directory.is_running() {
            return Ok(None);
        }
        // The run is starting, and will listen soon.
        std::thread::sleep(POLL_INTERVAL);
    }
    Err(anyhow!("the run is still running, but does not accept connections"))
}

/// Passes on the stored transcript, without the first `passed` lines.
fn read_transcript(directory: &RunDirectory, passed: usize, sink: &mut dyn LogSink) -> Result<(), LogError> {
    let path = directory.join(files::TRANSCRIPT);
    if std::fs::symlink_metadata(&path).is_err() {
        sink.note("the transcript is empty so far");
        return Ok(());
    }
    let report = read_report(directory).ok();
    // Bytes that were never reported were left by a crash, and do not count.
    let bytes = report.as_ref().map_or(u64::MAX, |report| report.transcript_bytes);
    let mut lines = BoundedLines::new(open_regular(&path).map_err(run_error)?, bytes, MAX_TRANSCRIPT_BYTES);
    let mut next = || lines.next_line().context("cannot read the transcript").map_err(run_error);
    for _ in 0..passed {
        if next()?.is_none() {
            break;
        }
    }
    while let Some(line) = next()? {
        match line {
            BoundedLine::Whole(bytes) => sink.transcript_line(String::from_utf8_lossy(&bytes).into_owned())?,
            BoundedLine::Truncated(_, length) => sink.note(&format!("a line of {length} bytes was omitted")),
            // Cut off by a crash.
            BoundedLine::Unterminated(_) => {}
        }
    }
    sink.flush()?;
    if report.is_some_and(|report| report.transcript_cut) {
        sink.note("the transcript is truncated: it has reached the limit of the run's plan");
    }
    Ok(())
}

/// Reads the last report of a run.
pub fn read_report(directory: &RunDirectory) -> anyhow::Result<StoredReport> {
    let path = directory.join(files::REPORT);
    let bytes = read_bounded(&path, MAX_REPORT_BYTES)?;
    serde_json::from_slice(&bytes).with_context(|| format!("{} is not a valid report", path.display()))
}

/// Passes on the log of one part; with `follow`, until the run has ended.
pub fn read_part_log(
    directory: &RunDirectory,
    part: &str,
    follow: bool,
    sink: &mut dyn LogSink,
) -> Result<(), LogError> {
    let parts = list_parts(directory);
    // Compared with the existing names, so that the argument cannot be a path.
    if !parts.iter().any(|name| name == part) {
        let wanted = quote(part);
        let error = if parts.is_empty() {
            anyhow!("part {wanted} has no log, and neither has any other part")
        } else {
            anyhow!("part {wanted} has no log; the parts with logs are {}", printable(parts.join(", ")))
        };
        return Err(part_error(error).into());
    }
    let mut file = open_regular(&directory.logs_directory().join(format!("{part}.log"))).map_err(part_error)?;
    loop {
        // Checked before reading: what the run writes before it ends is still read.
        let is_last = !follow || !directory.is_running();
        let mut chunk = [0; 8192];
        loop {
            let read = file.read(&mut chunk).context("cannot read the log").map_err(part_error)?;
            if read == 0 {
                break;
            }
            sink.part_output(&chunk[..read])?;
        }
        if is_last {
            return Ok(());
        }
        sink.flush()?;
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// The parts that have a log.
fn list_parts(directory: &RunDirectory) -> Vec<String> {
    let entries = std::fs::read_dir(directory.logs_directory()).into_iter().flatten();
    let mut parts: Vec<String> = (entries.take(MAX_PARTS).flatten())
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".log")?.to_owned()))
        .collect();
    parts.sort();
    parts
}
