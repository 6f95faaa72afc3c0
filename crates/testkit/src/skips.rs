//! Tests that a machine cannot run: said out loud, counted, and compared with a checked-in list by `cargo xtask test`.

use std::fs::OpenOptions;
use std::io::Write as _;

/// Names the file that collects the skips of a test run, one line each: the reason, a tab, `package/test`.
pub const SKIPS_FILE: &str = "SYMPOZIUM_SKIPS_FILE";

/// Ends the test as skipped. Say which feature of the machine is missing, not which test it is:
/// `skip!("no Landlock scopes")`.
#[macro_export]
macro_rules! skip {
    ($($what:tt)+) => {{
        $crate::skips::record(&::std::format!($($what)+));
        return;
    }};
}

/// Says that the current test is skipped, for tests that cannot use [`skip!`](crate::skip!) to return.
///
/// Written to standard error itself, which the test harness does not capture, and to the file named by
/// [`SKIPS_FILE`], so that counting depends on neither.
pub fn record(what: &str) {
    // Cargo names the package for every test that it runs, and the harness names the thread after the test.
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("unnamed");
    let _ = writeln!(std::io::stderr(), "skipped: {what}");
    let Some(path) = std::env::var_os(SKIPS_FILE) else {
        return;
    };
    // One write of a whole line to a file opened for appending is not torn by other tests.
    let line = format!("{}\t{package}/{test}\n", what.replace(['\t', '\n'], " "));
    let written =
        OpenOptions::new().append(true).create(true).open(&path).and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        // A skip that is not counted would look like a pass.
        panic!("cannot record a skip in {}: {error}", path.display());
    }
}
