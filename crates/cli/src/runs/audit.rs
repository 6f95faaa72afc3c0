//! `sympozium audit` and `sympozium audit verify`.

mod receipt_text;
pub mod verify;

use std::process::ExitCode;

use anyhow::anyhow;
use sympozium_runs::receipts::VerifiedChain;

use super::arguments::{AuditArguments, AuditCommand, LinesFormat};
use super::table::{Printer, ignore_broken_pipe};
use crate::backend;
use crate::failure::Failure;
use crate::output::{escape_json, print_stderr};
use sympozium_api::text::printable;

pub fn audit(arguments: &AuditArguments) -> Result<ExitCode, Failure> {
    match (&arguments.command, &arguments.run) {
        (Some(AuditCommand::Verify(arguments)), _) => verify::run(arguments),
        (None, Some(run)) => print_receipts(run, arguments),
        (None, None) => Err(Failure::usage(anyhow!("no run is named"), "`sympozium runs` lists the runs")),
    }
}

/// Prints every receipt as it is verified. Nothing is printed after the first invalid one.
fn print_receipts(run: &str, arguments: &AuditArguments) -> Result<ExitCode, Failure> {
    let format = arguments.output;
    let receipts = backend::open_store(&arguments.cluster)?.receipts(run)?;
    let mut printer = Printer::new();
    let mut written = Ok(());
    let checked = receipts.verify(&mut |text, receipt| {
        let line = match format {
            LinesFormat::Text => receipt_text::format_receipt(receipt),
            LinesFormat::Jsonl => escape_json(text.to_owned()) + "\n",
        };
        written = printer.print(&line);
        written.is_ok()
    });
    // The reader closed the pipe (`| head`): the rest was not verified, so nothing is printed about it.
    if written.is_err() {
        return ignore_broken_pipe(written).map(|()| ExitCode::SUCCESS);
    }
    ignore_broken_pipe(printer.flush())?;
    Ok(match checked {
        Ok(checked) => {
            print_stderr(&verified_line(&receipts.display_name(), &checked));
            ExitCode::SUCCESS
        }
        Err(error) => {
            print_stderr(&format!(
                "error: {}: {}\nhint: the receipts above are verified; do not trust any after them",
                receipts.display_name(),
                printable(format!("{error:#}"))
            ));
            ExitCode::from(crate::failure::FAILED)
        }
    })
}

fn verified_line(name: &str, checked: &VerifiedChain) -> String {
    format!("ok: {name}: {checked}")
}
