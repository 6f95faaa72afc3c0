//! `sympozium logs`.

use std::io::{self, Read as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use serde_json::Value;
use sympozium_api::text::{printable, quote};
use sympozium_gateway::run_api::local::{StoredReport, files};
use sympozium_ipc::run_api::MAX_TRANSCRIPT_LINE;

use super::arguments::{LinesFormat, LogsArguments};
use super::bounded_lines::{BoundedLine, BoundedLines, open_regular};

use super::table::{Printer, ignore_broken_pipe, indent_lines};
use super::transcript::format_line;
use crate::cluster::{self, Cluster};
use crate::failure::Failure;
use crate::output::{escape_json, print_stderr};
use crate::target_flags::TargetFlags;
use sympozium_local::control::{Client, EventStream};
use sympozium_local::record::LocalRunRecord;
use sympozium_local::state::{RunDirectory, StateDirectory, read_bounded};
use sympozium_runs::{Event, TimedEvent};

/// Bytes of a `report.json` that are read.
pub const MAX_REPORT_BYTES: u64 = 16 << 20;
/// Bytes of one line of a part's log that are printed at once; a longer line is split.
pub const MAX_LOG_LINE: usize = 16 << 10;
/// Bytes of a line of the transcript: as long as the agent may write them, with escapes.
const MAX_TRANSCRIPT_BYTES: usize = 8 * MAX_TRANSCRIPT_LINE;
/// Parts that an error message lists.
const MAX_PARTS: usize = 1024;
/// How often a growing file is read, and how often connecting to a starting run is tried.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How often to try before giving up.
const MAX_ATTEMPTS: u32 = 50;

/// Why printing ended early.
pub enum PrintError {
    /// Stdout is closed, or fails.
    Output(io::Error),
    /// What should be printed cannot be read.
    Failed(anyhow::Error),
}

impl From<io::Error> for PrintError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<anyhow::Error> for PrintError {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

pub fn logs(arguments: &LogsArguments) -> Result<ExitCode, Failure> {
    let mut printer = Printer::new();
    let printed = match Cluster::select(&arguments.cluster)? {
        Some(cluster) => cluster::logs::print(&cluster, arguments, &mut printer)?,
        None => {
            let (directory, record) = StateDirectory::open()?.find_run(&arguments.run)?;
            match &arguments.part {
                Some(part) => print_part_log(&directory, part, arguments.follow, &mut printer),
                None => print_run(&directory, &record, arguments, &mut printer),
            }
        }
    };
    let hint = match arguments.part {
        Some(_) => "`sympozium show` says what is kept of the run",
        None => "`sympozium show` says what became of the run",
    };
    let printed = printed.and_then(|()| Ok(printer.flush()?));
    match printed {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(PrintError::Output(error)) => ignore_broken_pipe(Err(error)).map(|()| ExitCode::SUCCESS),
        Err(PrintError::Failed(error)) => Err(Failure::new(error, hint)),
    }
}

fn print_run(
    directory: &RunDirectory,
    record: &LocalRunRecord,
    arguments: &LogsArguments,
    printer: &mut Printer,
) -> Result<(), PrintError> {
    if arguments.follow
        && let Some(following) = connect_stream(directory)?
    {
        let mut told = 0;
        for event in following {
            let event = match event {
                Ok(event) => event,
                Err(error) => return print_rest(directory, told, error, arguments.output, printer),
            };
            told += usize::from(matches!(event.event, Event::Transcript { .. }));
            print_event(&event, arguments.output, &TargetFlags::local(), printer)?;
        }
        return Ok(());
    }
    print_transcript(directory, 0, arguments.output, printer)?;
    match directory.run_end(record) {
        None => print_stderr("the run goes on; -f follows it"),
        Some(outcome) => print_stderr(&format!("the run is over: {}", outcome.as_str())),
    }
    Ok(())
}

/// Called when the connection broke before the last event. The run may have ended all the same: then prints the rest of
/// its transcript.
fn print_rest(
    directory: &RunDirectory,
    told: usize,
    error: anyhow::Error,
    format: LinesFormat,
    printer: &mut Printer,
) -> Result<(), PrintError> {
    for _ in 0..MAX_ATTEMPTS {
        if !directory.is_running() {
            break;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    let Some(outcome) = directory.read_record().ok().and_then(|it| it.outcome) else {
        return Err(PrintError::Failed(error));
    };
    print_transcript(directory, told, format, printer)?;
    print_stderr(&format!("the run is over: {}", outcome.as_str()));
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
    Err(anyhow!("the run goes on, and does not listen"))
}

/// Prints an event. `place` are the flags for commands in it.
pub fn print_event(
    timed: &TimedEvent,
    format: LinesFormat,
    place: &TargetFlags,
    printer: &mut Printer,
) -> io::Result<()> {
    match (&timed.event, format) {
        (Event::Transcript { line }, LinesFormat::Text) => printer.print(&format_line(line))?,
        (Event::Transcript { line }, LinesFormat::Jsonl) => {
            printer.print(&(escape_json(line.to_string()) + "\n"))?;
        }
        (_, LinesFormat::Jsonl) => {}
        (Event::Asked { question }, LinesFormat::Text) => {
            let asked = printable(&question.approval);
            let place = place.as_str();
            printer.print(&format!("question {asked}, which waits for `sympozium approve{place}`:\n"))?;
            printer.print(&indent_lines("  ", &question.shown))?;
        }
        (Event::Answered { approval, decision, by }, LinesFormat::Text) => {
            let said = match decision {
                Some(decision) => format!("{decision:?}").to_lowercase(),
                None => "nobody waits for an answer any more".to_owned(),
            };
            let by = by.as_ref().map(|by| format!(" by {}", printable(by)));
            let by = by.unwrap_or_default();
            printer.print(&format!("question {}: {said}{by}\n", printable(approval)))?;
        }
        (Event::Warning { text }, LinesFormat::Text) => {
            printer.print(&format!("warning: {}\n", printable(text)))?;
        }
        (Event::Ended { outcome, .. }, LinesFormat::Text) => {
            printer.flush()?;
            print_stderr(&format!("the run is over: {}", outcome.as_str()));
        }
        (_, LinesFormat::Text) => {}
    }
    printer.flush()
}

/// Prints the stored transcript, without the first `printed` lines.
fn print_transcript(
    directory: &RunDirectory,
    printed: usize,
    format: LinesFormat,
    printer: &mut Printer,
) -> Result<(), PrintError> {
    let path = directory.join(files::TRANSCRIPT);
    if std::fs::symlink_metadata(&path).is_err() {
        print_stderr("nothing was said yet");
        return Ok(());
    }
    let report = read_report(directory).ok();
    // Bytes that were never reported were left by a crash, and do not count.
    let bytes = report.as_ref().map_or(u64::MAX, |it| it.transcript_bytes);
    let mut lines = BoundedLines::new(open_regular(&path)?, bytes, MAX_TRANSCRIPT_BYTES);
    for _ in 0..printed {
        if (lines.next().context("cannot read the transcript")?).is_none() {
            break;
        }
    }
    while let Some(line) = lines.next().context("cannot read the transcript")? {
        let bytes = match line {
            BoundedLine::Whole(bytes) => bytes,
            BoundedLine::Truncated(_, length) => {
                print_stderr(&format!("a line of {length} bytes was left out"));
                continue;
            }
            // Cut off by a crash.
            BoundedLine::Unterminated(_) => continue,
        };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        printer.print(&format_transcript_line(text, format))?;
    }
    printer.flush()?;
    if report.is_some_and(|it| it.transcript_cut) {
        print_stderr("there was more, which the plan does not keep");
    }
    Ok(())
}

/// Formats a line of a transcript.
pub fn format_transcript_line(text: String, format: LinesFormat) -> String {
    // The gateway stores only JSON. A line that was changed since is printed as text.
    let value = serde_json::from_str(&text);
    match (value, format) {
        (Ok(value), LinesFormat::Text) => format_line(&value),
        (Err(_), LinesFormat::Text) => printable(&text).into_owned() + "\n",
        (Ok::<Value, _>(_), LinesFormat::Jsonl) => escape_json(text) + "\n",
        (Err(_), LinesFormat::Jsonl) => escape_json(Value::from(text).to_string()) + "\n",
    }
}

/// Reads the last report of a run.
pub fn read_report(directory: &RunDirectory) -> anyhow::Result<StoredReport> {
    let path = directory.join(files::REPORT);
    let bytes = read_bounded(&path, MAX_REPORT_BYTES)?;
    serde_json::from_slice(&bytes).with_context(|| format!("{} is not what was reported", path.display()))
}

/// Prints the log of one part.
fn print_part_log(
    directory: &RunDirectory,
    part: &str,
    is_followed: bool,
    printer: &mut Printer,
) -> Result<(), PrintError> {
    let parts = list_parts(directory);
    // Compared with the existing names, so that the argument cannot be a path.
    if !parts.iter().any(|it| it == part) {
        let wanted = quote(part);
        return Err(PrintError::Failed(match parts.is_empty() {
            true => anyhow!("no part {wanted} logged anything, nor did any other"),
            false => anyhow!("no part {wanted} logged anything; these did: {}", printable(parts.join(", "))),
        }));
    }
    let mut file = open_regular(&directory.logs_directory().join(format!("{part}.log")))?;
    let mut line = LogLines::default();
    loop {
        // Checked before reading: what the run writes before it ends is still read.
        let is_last = !is_followed || !directory.is_running();
        let mut piece = [0; 8192];
        loop {
            let read = file.read(&mut piece).context("cannot read what was logged")?;
            if read == 0 {
                break;
            }
            line.print(&piece[..read], printer)?;
        }
        if is_last {
            break;
        }
        printer.flush()?;
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(line.finish(printer)?)
}

/// Prints the log of a part line by line, escaped.
#[derive(Debug, Default)]
pub struct LogLines(Vec<u8>);

impl LogLines {
    /// Prints the lines that these bytes complete.
    pub fn print(&mut self, bytes: &[u8], printer: &mut Printer) -> io::Result<()> {
        for byte in bytes {
            let is_end = *byte == b'\n';
            if !is_end {
                self.0.push(*byte);
            }
            if is_end || self.0.len() >= MAX_LOG_LINE {
                printer.print(&indent_lines("", &String::from_utf8_lossy(&self.0)))?;
                self.0.clear();
            }
        }
        Ok(())
    }

    /// Prints a last line that has no line break.
    pub fn finish(&mut self, printer: &mut Printer) -> io::Result<()> {
        match self.0.is_empty() {
            true => Ok(()),
            false => self.print(b"\n", printer),
        }
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
