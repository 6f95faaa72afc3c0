//! `sympozium audit` and `sympozium audit verify`.

pub mod verify;
mod words;

use std::process::ExitCode;

use anyhow::anyhow;

use super::arguments::{AuditArguments, AuditCommand, LinesFormat};
use super::table::{Printer, unless_gone};
use super::view::short;
use crate::cluster::{self, Cluster};
use crate::failure::Failure;
use crate::local::record::RunRecord;
use crate::local::state::{RunDirectory, State};
use crate::manifests::problem::printable;
use crate::output::{escaped, note};
use verify::Checked;

pub fn audit(arguments: &AuditArguments) -> Result<ExitCode, Failure> {
    match (&arguments.command, &arguments.run) {
        (Some(AuditCommand::Verify(arguments)), _) => verify::run(arguments),
        (None, Some(run)) => print(run, arguments),
        (None, None) => Err(Failure::usage(anyhow!("no run is named"), "`sympozium runs` lists them")),
    }
}

/// Prints every receipt, and verifies them meanwhile: nothing is printed after the first one that does not hold.
fn print(run: &str, arguments: &AuditArguments) -> Result<ExitCode, Failure> {
    let format = arguments.output;
    let kept = match Cluster::chosen(&arguments.cluster)? {
        Some(cluster) => Kept::Cluster(Box::new(cluster::audit::kept(&cluster, run)?)),
        None => Kept::here(State::open()?.find(run)?),
    };
    let mut printer = Printer::new();
    let mut written = Ok(());
    let checked = kept.check(&mut |text, receipt| {
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
            note(&said(&kept.name(), &checked));
            ExitCode::SUCCESS
        }
        Err(error) => {
            note(&format!(
                "error: {}: {}\nhint: what stands above this line holds, and nothing behind it does",
                kept.name(),
                printable(&format!("{error:#}"))
            ));
            ExitCode::from(crate::failure::FAILED)
        }
    })
}

/// Verifies the receipts of a run, and describes them. The error is the first defect.
pub fn verified(directory: &RunDirectory) -> anyhow::Result<String> {
    let record = directory.record()?;
    let checked = verify::check(directory, &record, &mut |_, _| true)?;
    Ok(checked.to_string())
}

/// The stored receipts of a run.
enum Kept {
    Here(Box<(RunDirectory, RunRecord)>),
    Cluster(Box<cluster::audit::Kept>),
}

impl Kept {
    fn here(found: (RunDirectory, RunRecord)) -> Self {
        Self::Here(Box::new(found))
    }

    fn name(&self) -> String {
        match self {
            Self::Here(found) => named(&found.1.name, &found.1.uid),
            Self::Cluster(kept) => named(&kept.name, &kept.uid),
        }
    }

    fn check(&self, told: &mut verify::Told<'_>) -> anyhow::Result<Checked> {
        match self {
            Self::Here(found) => verify::check(&found.0, &found.1, told),
            Self::Cluster(kept) => kept.check(told),
        }
    }
}

/// The run as messages name it.
fn named(name: &str, uid: &str) -> String {
    format!("{} ({})", printable(name), short(&printable(uid)))
}

fn said(name: &str, checked: &Checked) -> String {
    format!("ok: {name}: {checked}")
}
