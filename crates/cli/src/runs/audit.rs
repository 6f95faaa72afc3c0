//! `sympozium audit` and `sympozium audit verify`.

mod verify;
mod words;

use std::process::ExitCode;

use anyhow::anyhow;

use super::arguments::{AuditArguments, AuditCommand, LinesFormat};
use super::table::{Printer, unless_gone};
use super::view::short;
use crate::failure::Failure;
use crate::local::record::RunRecord;
use crate::local::state::{RunDirectory, State};
use crate::manifests::problem::printable;
use crate::output::{escaped, note};
use verify::Checked;

/// Prints or verifies receipts.
pub fn audit(arguments: &AuditArguments) -> Result<ExitCode, Failure> {
    match (&arguments.command, &arguments.run) {
        (Some(AuditCommand::Verify(arguments)), _) => verify::run(arguments),
        (None, Some(run)) => print(run, arguments.output),
        (None, None) => Err(Failure::usage(
            anyhow!("no run is named"),
            "`sympozium runs` lists them",
        )),
    }
}

/// Prints every receipt, and verifies them on the way: what does not hold is not shown as if it did.
fn print(run: &str, format: LinesFormat) -> Result<ExitCode, Failure> {
    let (directory, record) = State::open()?.find(run)?;
    let mut printer = Printer::new();
    let mut written = Ok(());
    let checked = verify::check(&directory, &record, &mut |text, receipt| {
        let line = match format {
            LinesFormat::Text => words::line(receipt),
            LinesFormat::Jsonl => escaped(text.to_owned()) + "\n",
        };
        written = printer.print(&line);
        written.is_ok()
    });
    let flushed = printer.flush();
    unless_gone(written.and(flushed))?;
    Ok(match checked {
        Ok(checked) => {
            note(&said(&record, &checked));
            ExitCode::SUCCESS
        }
        Err(error) => {
            note(&format!(
                "error: {}: {}\nhint: what stands above this line holds, and nothing behind it does",
                named(&record),
                printable(&format!("{error:#}"))
            ));
            ExitCode::from(crate::failure::FAILED)
        }
    })
}

/// Verifies the receipts of a run, and says how many there are.
///
/// # Errors
///
/// What does not hold.
pub fn verified(directory: &RunDirectory) -> anyhow::Result<String> {
    let record = directory.record()?;
    let checked = verify::check(directory, &record, &mut |_, _| true)?;
    Ok(checked.to_string())
}

/// How a run is called here.
fn named(record: &RunRecord) -> String {
    format!(
        "{} ({})",
        printable(&record.name),
        short(&printable(&record.uid))
    )
}

/// That it holds.
fn said(record: &RunRecord, checked: &Checked) -> String {
    format!("ok: {}: {checked}", named(record))
}
