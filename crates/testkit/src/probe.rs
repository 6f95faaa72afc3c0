//! The probe: a static program that runs inside a sandbox and reports what it could do.
//!
//! A test names one escape, runs `probe attempt NAME` inside, and asserts that it fails:
//!
//! ```
//! use sympozium_testkit::probe::{self, Findings};
//!
//! let output = sympozium_testkit::command(probe::path()).args(["attempt", "unix-socket"]).output()?;
//! let findings = Findings::parse(&output.stdout);
//! assert!(findings.of("unix-socket").possible);
//! # Ok::<(), std::io::Error>(())
//! ```

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

pub use sympozium_probe::Finding;

use crate::static_build;

/// Names a probe that is built already.
pub const PROBE: &str = "SYMPOZIUM_PROBE";

/// Where the probe is: what the environment variable [`PROBE`] names, or the workspace's own.
///
/// # Panics
///
/// When it cannot be built: there is no test without it.
pub fn path() -> &'static Path {
    static PATH: LazyLock<PathBuf> = LazyLock::new(|| {
        if let Some(path) = std::env::var_os(PROBE) {
            return path.into();
        }
        match static_build::program("probe") {
            Ok(path) => path,
            Err(error) => panic!("cannot build the probe: {error:#}"),
        }
    });
    &PATH
}

/// What a run of the probe found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Findings(Vec<Finding>);

impl Findings {
    /// Reads the probe's output. Lines that are no findings are left out.
    pub fn parse(output: &[u8]) -> Self {
        let text = String::from_utf8_lossy(output);
        Self(text.lines().filter_map(Finding::from_line).collect())
    }

    /// The finding for an attempt, named as it was asked for (`read-file=/etc/shadow`).
    ///
    /// # Panics
    ///
    /// When there is none: an attempt that was not made must not count as one that was stopped.
    #[track_caller]
    pub fn of(&self, attempt: &str) -> &Finding {
        match self.0.iter().find(|finding| finding.attempt == attempt) {
            Some(finding) => finding,
            None => panic!("the probe did not report on `{attempt}`; it reported {:#?}", self.0),
        }
    }

    /// Asserts that every one of these attempts was made, and stopped.
    ///
    /// # Panics
    ///
    /// With all that were possible, and what the probe saw.
    #[track_caller]
    pub fn assert_refused<'a>(&self, attempts: impl IntoIterator<Item = &'a str>) {
        let possible: Vec<_> =
            attempts.into_iter().map(|name| self.of(name)).filter(|finding| finding.possible).collect();
        assert!(possible.is_empty(), "the sandbox let the probe: {possible:#?}");
    }

    /// Asserts that every one of these attempts was made, and worked.
    ///
    /// # Panics
    ///
    /// With all that were refused, and why.
    #[track_caller]
    pub fn assert_possible<'a>(&self, attempts: impl IntoIterator<Item = &'a str>) {
        let refused: Vec<_> =
            attempts.into_iter().map(|name| self.of(name)).filter(|finding| !finding.possible).collect();
        assert!(refused.is_empty(), "the sandbox stopped what it should allow: {refused:#?}");
    }

    /// All findings, in the order of the attempts.
    pub fn iter(&self) -> impl Iterator<Item = &Finding> {
        self.0.iter()
    }
}
