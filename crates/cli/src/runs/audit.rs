//! `sympozium audit` and `sympozium audit verify`.

mod receipt_text;
pub mod verify;

use std::process::ExitCode;

use anyhow::anyhow;
use sympozium_api::text::printable;

use super::arguments::{AuditArguments, AuditCommand, LinesFormat};
use super::table::{Printer, ignore_broken_pipe};
use super::view::short_uid;
use crate::cluster::{self, Cluster};
use crate::failure::Failure;
use crate::output::{escape_json, print_stderr};
use sympozium_local::record::LocalRunRecord;
use sympozium_local::state::{RunDirectory, StateDirectory};
use verify::VerifiedChain;

pub fn audit(arguments: &AuditArguments) -> Result<ExitCode, Failure> {
    match (&arguments.command, &arguments.run) {
        (Some(AuditCommand::Verify(arguments)), _) => verify::run(arguments),
        (None, Some(run)) => print_receipts(run, arguments),
        (None, None) => Err(Failure::usage(anyhow!("no run is named"), "`sympozium runs` lists them")),
    }
}

/// Prints every receipt, and verifies them meanwhile: nothing is printed after the first one that does not hold.
fn print_receipts(run: &str, arguments: &AuditArguments) -> Result<ExitCode, Failure> {
    let format = arguments.output;
    let kept = match Cluster::select(&arguments.cluster)? {
        Some(cluster) => StoredReceipts::Cluster(Box::new(cluster::audit::read_receipts(&cluster, run)?)),
        None => StoredReceipts::local(StateDirectory::open()?.find_run(run)?),
    };
    let mut printer = Printer::new();
    let mut written = Ok(());
    let checked = kept.verify(&mut |text, receipt| {
        let line = match format {
            LinesFormat::Text => receipt_text::format_receipt(receipt),
            LinesFormat::Jsonl => escape_json(text.to_owned()) + "\n",
        };
        written = printer.print(&line);
        written.is_ok()
    });
    let flushed = printer.flush();
    ignore_broken_pipe(written.and(flushed))?;
    Ok(match checked {
        Ok(checked) => {
            print_stderr(&verified_line(&kept.display_name(), &checked));
            ExitCode::SUCCESS
        }
        Err(error) => {
            print_stderr(&format!(
                "error: {}: {}\nhint: what stands above this line holds, and nothing behind it does",
                kept.display_name(),
                printable(format!("{error:#}"))
            ));
            ExitCode::from(crate::failure::FAILED)
        }
    })
}

/// Verifies the receipts of a run, and describes them. The error is the first defect.
pub fn verify_receipts(directory: &RunDirectory) -> anyhow::Result<String> {
    let record = directory.read_record()?;
    let checked = verify::verify_run(directory, &record, &mut |_, _| true)?;
    Ok(checked.to_string())
}

/// The stored receipts of a run.
enum StoredReceipts {
    Local(Box<(RunDirectory, LocalRunRecord)>),
    Cluster(Box<cluster::audit::ClusterReceipts>),
}

impl StoredReceipts {
    fn local(found: (RunDirectory, LocalRunRecord)) -> Self {
        Self::Local(Box::new(found))
    }

    fn display_name(&self) -> String {
        match self {
            Self::Local(found) => display_name(&found.1.name, &found.1.uid),
            Self::Cluster(kept) => display_name(&kept.name, &kept.uid),
        }
    }

    fn verify(&self, told: &mut verify::OnReceipt<'_>) -> anyhow::Result<VerifiedChain> {
        match self {
            Self::Local(found) => verify::verify_run(&found.0, &found.1, told),
            Self::Cluster(kept) => kept.verify(told),
        }
    }
}

/// The run as messages name it.
fn display_name(name: &str, uid: &str) -> String {
    format!("{} ({})", printable(name), short_uid(&printable(uid)))
}

fn verified_line(name: &str, checked: &VerifiedChain) -> String {
    format!("ok: {name}: {checked}")
}
