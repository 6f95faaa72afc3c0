//! `sympozium audit verify`.

use std::fs::File;
use std::process::ExitCode;

use anyhow::Context as _;
use sympozium_local::receipts::verify_chain;
use sympozium_runs::receipts::ExpectedEnd;
use sympozium_runs::{RunStore, StoredReceipts};

use super::super::arguments::VerifyArguments;
use super::verified_line;
use crate::backend;
use crate::failure::{FAILED, Failure};
use crate::output::print_stdout;
use sympozium_api::text::printable;

pub fn run(arguments: &VerifyArguments) -> Result<ExitCode, Failure> {
    if let (Some(file), Some(plan)) = (&arguments.file, &arguments.plan) {
        let end = ExpectedEnd { head: arguments.head.as_ref(), count: arguments.count, bytes: u64::MAX };
        let name = printable(file.display().to_string());
        // Links and pipes are permitted: the user named the file.
        let opened = File::open(file).with_context(|| format!("cannot read {name}"));
        let checked = opened.and_then(|opened| verify_chain(opened, plan, &end, &mut |_, _| true));
        return print_verdicts([match checked {
            Ok(checked) => Ok(format!("ok: {name}: {checked}")),
            Err(error) => Err(broken_line(&name, &error)),
        }]);
    }
    let store = backend::open_store(&arguments.cluster)?;
    let (runs, selection) = if arguments.all {
        (store.runs_with_receipts()?, RunSelection::All)
    } else {
        // All are found first, so that nothing is verified if a name is mistyped.
        for run in &arguments.runs {
            store.find(run)?;
        }
        (arguments.runs.clone(), RunSelection::Named)
    };
    // One after the other, because the receipts of a run can be large.
    let mut code = ExitCode::SUCCESS;
    for run in &runs {
        if print_verdicts([verify_in_store(&*store, selection, run)?])? != ExitCode::SUCCESS {
            code = ExitCode::from(FAILED);
        }
    }
    Ok(code)
}

/// Which runs are verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunSelection {
    /// Those that the user named.
    Named,
    All,
}

/// Verifies the receipts of a run. Returns a line for the user; `Err` if they do not hold.
///
/// # Errors
///
/// If a named run cannot be read. With [`RunSelection::All`], where a run may have been deleted since it was listed,
/// that is only a line.
pub fn verify_in_store(
    store: &dyn RunStore,
    selection: RunSelection,
    run: &str,
) -> Result<Result<String, String>, Failure> {
    match (store.receipts(run), selection) {
        (Ok(receipts), _) => Ok(verify_stored(&*receipts)),
        (Err(error), RunSelection::Named) => Err(error.into()),
        (Err(error), RunSelection::All) => {
            Ok(Err(format!("not verified: {}: {}", printable(run), printable(error.summary()))))
        }
    }
}

fn verify_stored(receipts: &dyn StoredReceipts) -> Result<String, String> {
    let name = receipts.display_name();
    match receipts.verify(&mut |_, _| true) {
        Ok(checked) => Ok(verified_line(&name, &checked)),
        Err(error) => Err(broken_line(&name, &error)),
    }
}

/// Prints the lines. The exit code is 0 if all hold.
fn print_verdicts(all: impl IntoIterator<Item = Result<String, String>>) -> Result<ExitCode, Failure> {
    let mut code = ExitCode::SUCCESS;
    for one in all {
        let text = one.unwrap_or_else(|broken| {
            code = ExitCode::from(FAILED);
            broken
        });
        print_stdout(&(text + "\n"))?;
    }
    Ok(code)
}

fn broken_line(name: &str, error: &anyhow::Error) -> String {
    format!("broken: {name}: {}", printable(format!("{error:#}")))
}
