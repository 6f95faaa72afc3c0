//! Every case against every backend that this machine has. Each case is a test of its own, and its name says which.
//!
//! `leftovers::…`: the listing of what is left finds what it should. `harness::…`: options are read as libtest reads them. `explain::NAME`: the manifests are admitted and planned as the case says, without a run. `local::root::NAME` and
//! `local::user::NAME`: the case is run on this machine by the real program, as root and as an ordinary user.
//! `kubernetes::NAME` and `kubernetes-gvisor::NAME`: the case is run in a cluster. These are dear, and are there only where a
//! filter asks for them.
#![expect(clippy::print_stdout, reason = "this is the harness: what it prints is the result")]

mod explained;
mod harness;
mod kubernetes;
mod leftovers;
mod local;
mod pages;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use sympozium_conformance::{Backend, Case, judge, load_all};
use sympozium_testkit::{as_user, skips};

use crate::harness::{Arguments, EXIT_FAILURE, Test};
use crate::kubernetes::{Kernel, Purpose};
use crate::local::{Local, Who};

/// Names another program to be tried, such as the one that is shipped.
const BINARY: &str = "SYMPOZIUM_BINARY";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(EXIT_FAILURE),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(EXIT_FAILURE)
        }
    }
}

fn run() -> anyhow::Result<bool> {
    let arguments = Arguments::read()?;
    let in_cluster = [Kernel::Node, Kernel::Gvisor].iter().any(|kernel| arguments.ask_for(&kernel.prefix()));
    let at_a_time = if in_cluster { kubernetes::RUNS_AT_A_TIME } else { local::RUNS_AT_A_TIME };
    let tests = tests(&arguments)?;
    Ok(harness::run(tests, &arguments, at_a_time))
}

fn tests(arguments: &Arguments) -> anyhow::Result<Vec<Test>> {
    let cases = load_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("cases"))?;
    let cases: Vec<Arc<Case>> = cases.into_iter().map(Arc::new).collect();
    let mut tests = Vec::new();
    let purpose = if arguments.list { Purpose::List } else { Purpose::Run };
    for kernel in [Kernel::Node, Kernel::Gvisor] {
        if arguments.ask_for(&kernel.prefix()) {
            tests.extend(kubernetes::tests(kernel, &cases, purpose)?);
        }
    }
    tests.extend(elsewhere(&cases)?);
    Ok(tests)
}

/// Everything that needs no cluster.
fn elsewhere(cases: &[Arc<Case>]) -> anyhow::Result<Vec<Test>> {
    let binary = match std::env::var_os(BINARY) {
        Some(binary) => PathBuf::from(binary),
        None => PathBuf::from(env!("CARGO_BIN_EXE_sympozium-under-test")),
    };
    let mut tests = leftovers::tests();
    tests.extend(harness::tests());
    for case in cases {
        let (case, binary) = (Arc::clone(case), binary.clone());
        tests.push(Test::new(format!("explain::{}", case.name), move || explained::problems(&case, &binary)));
    }
    for who in [Who::Root, Who::Ordinary] {
        // Without root there is one user, and that is an ordinary one.
        if who == Who::Root && !as_user::is_root() {
            continue;
        }
        let local = Arc::new(Local::new(who, &binary).context("nothing can be tried here")?);
        let missing = local.missing()?;
        // Those that wait for something first: others have the processors meanwhile.
        let numbered = cases.iter().enumerate();
        let mut numbered: Vec<_> = numbered.filter(|(_, case)| case.is_for(local.name())).collect();
        numbered.sort_by_key(|(_, case)| !case.spec.waits());
        for (number, case) in numbered {
            let (case, local, missing) = (Arc::clone(case), Arc::clone(&local), missing.clone());
            let name = format!("{}::{}::{}", local.name(), who.word(), case.name);
            tests.push(Test::new(name, move || {
                if let Some(missing) = &missing {
                    skips::record(missing);
                    return Ok(Vec::new());
                }
                let local = local.numbered(number);
                let observed = local.realise(&case)?;
                Ok(judge(&case, &observed, &local))
            }));
        }
    }
    Ok(tests)
}
