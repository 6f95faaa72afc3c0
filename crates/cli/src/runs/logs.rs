//! `sympozium logs`.

use std::io;
use std::process::ExitCode;

use serde_json::Value;
use sympozium_runs::{Event, LogError, LogRequest, LogSink, RunEnd, TargetFlags, TimedEvent};

use super::arguments::{LinesFormat, LogsArguments};
use super::table::{Printer, ignore_broken_pipe, indent_lines};
use super::transcript::format_line;
use crate::backend;
use crate::failure::Failure;
use crate::output::{escape_json, print_stderr};
use sympozium_api::text::printable;

/// Bytes of one line of a part's log that are printed at once; a longer line is split.
const MAX_LOG_LINE: usize = 16 << 10;

pub fn logs(arguments: &LogsArguments) -> Result<ExitCode, Failure> {
    let store = backend::open_store(&arguments.cluster)?;
    let mut log = LogPrinter {
        printer: Printer::new(),
        part: LogLines::default(),
        format: arguments.output,
        target: store.target(),
    };
    let request = LogRequest { part: arguments.part.as_deref(), follow: arguments.follow };
    let read = store.read_log(&arguments.run, request, &mut log);
    match read.and_then(|()| Ok(log.finish()?)) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(LogError::Sink(error)) => ignore_broken_pipe(Err(error)).map(|()| ExitCode::SUCCESS),
        Err(LogError::Store(error)) => Err(error.into()),
    }
}

/// Prints a log as it is read.
struct LogPrinter {
    printer: Printer,
    part: LogLines,
    format: LinesFormat,
    target: TargetFlags,
}

impl LogPrinter {
    fn finish(&mut self) -> io::Result<()> {
        self.part.finish(&mut self.printer)?;
        self.printer.flush()
    }
}

impl LogSink for LogPrinter {
    fn transcript_line(&mut self, line: String) -> io::Result<()> {
        self.printer.print(&format_transcript_line(line, self.format))
    }

    fn event(&mut self, event: &TimedEvent) -> io::Result<()> {
        if let Event::Starting { text } = &event.event {
            print_stderr(&format!("waiting: {}", printable(text)));
        }
        print_event(event, self.format, &self.target, &mut self.printer)
    }

    fn part_output(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.part.print(bytes, &mut self.printer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.printer.flush()
    }

    fn note(&mut self, text: &str) {
        print_stderr(text);
    }

    fn run_state(&mut self, end: Option<&RunEnd>) {
        match end {
            None => print_stderr("the run has not ended; -f follows it"),
            Some(end) => print_stderr(&format!("the run has ended: {}", end.as_str())),
        }
    }
}

/// Prints an event. `target` are the flags for commands in it.
fn print_event(timed: &TimedEvent, format: LinesFormat, target: &TargetFlags, printer: &mut Printer) -> io::Result<()> {
    match (&timed.event, format) {
        (Event::Transcript { line }, LinesFormat::Text) => printer.print(&format_line(line))?,
        (Event::Transcript { line }, LinesFormat::Jsonl) => {
            printer.print(&(escape_json(line.to_string()) + "\n"))?;
        }
        (_, LinesFormat::Jsonl) => {}
        (Event::Asked { question }, LinesFormat::Text) => {
            let name = printable(&question.approval);
            printer.print(&format!(
                "question {name} is pending; decide it with `sympozium approve{}`:\n",
                target.as_str()
            ))?;
            printer.print(&indent_lines("  ", &question.shown))?;
        }
        (Event::Answered { approval, decision, by }, LinesFormat::Text) => {
            let result = match decision {
                Some(decision) => format!("{decision:?}").to_lowercase(),
                None => "withdrawn".to_owned(),
            };
            let by = by.as_ref().map(|by| format!(" by {}", printable(by)));
            let by = by.unwrap_or_default();
            printer.print(&format!("question {}: {result}{by}\n", printable(approval)))?;
        }
        (Event::Warning { text }, LinesFormat::Text) => {
            printer.print(&format!("warning: {}\n", printable(text)))?;
        }
        (Event::Ended { outcome, .. }, LinesFormat::Text) => {
            printer.flush()?;
            print_stderr(&format!("the run has ended: {}", outcome.as_str()));
        }
        (_, LinesFormat::Text) => {}
    }
    printer.flush()
}

/// Formats a line of a transcript.
fn format_transcript_line(text: String, format: LinesFormat) -> String {
    // The gateway stores only JSON. A line that was changed later is printed as text.
    let value = serde_json::from_str(&text);
    match (value, format) {
        (Ok(value), LinesFormat::Text) => format_line(&value),
        (Err(_), LinesFormat::Text) => printable(&text).into_owned() + "\n",
        (Ok::<Value, _>(_), LinesFormat::Jsonl) => escape_json(text) + "\n",
        (Err(_), LinesFormat::Jsonl) => escape_json(Value::from(text).to_string()) + "\n",
    }
}

/// Prints the log of a part line by line, escaped.
#[derive(Debug, Default)]
struct LogLines(Vec<u8>);

impl LogLines {
    /// Prints the lines that these bytes complete.
    fn print(&mut self, bytes: &[u8], printer: &mut Printer) -> io::Result<()> {
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
    fn finish(&mut self, printer: &mut Printer) -> io::Result<()> {
        match self.0.is_empty() {
            true => Ok(()),
            false => self.print(b"\n", printer),
        }
    }
}
