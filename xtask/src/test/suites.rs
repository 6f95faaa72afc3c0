//! The test binaries: which there are, and how each is started.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::table::{Need, Row, Table};
use crate::process::{cargo, command, workspace_root};

/// What is compiled for tests. Targets by kind and not `--all-targets`, which would compile the benches; the tests of the cluster
/// are left out by a plain `cargo test` and have to be named.
const BUILDS: [&[&str]; 2] = [&["--lib", "--bins", "--tests", "--examples"], &["--test", "it"]];

/// A test binary.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Binary {
    /// `package/lib`, or `package/` and the name of the target.
    pub name: String,
    package: String,
    version: String,
    directory: PathBuf,
    program: PathBuf,
}

/// A test binary, or a part of one, that is run as one job.
#[derive(Debug, Clone)]
pub struct Suite {
    /// As in `test/suites.txt`.
    pub name: String,
    binary: Binary,
    /// What of it: filters and other arguments of the harness.
    arguments: Vec<String>,
    pub row: Row,
}

/// Compiles every test of the workspace and gives the binaries. What cargo says goes to standard error.
pub fn build(run: impl Fn(Command) -> Result<Vec<String>>) -> Result<Vec<Binary>> {
    let mut binaries = BTreeMap::new();
    for targets in BUILDS {
        let mut build = cargo(&["test", "--workspace", "--locked", "--no-run"]);
        build.args(targets).arg("--message-format=json-render-diagnostics");
        for binary in run(build)?.iter().filter_map(|line| Binary::parse(line)) {
            binaries.insert(binary.name.clone(), binary);
        }
    }
    if binaries.is_empty() {
        bail!("cargo built no tests");
    }
    Ok(binaries.into_values().collect())
}

/// The jobs that the binaries make. A binary without a row of its own has the table's default.
pub fn split(binaries: Vec<Binary>, table: &Table) -> Result<Vec<Suite>> {
    let mut suites = Vec::new();
    for binary in binaries {
        let rows = table.rows_of(&binary.name);
        if rows.is_empty() {
            suites.push(Suite { name: binary.name.clone(), arguments: Vec::new(), row: Row::default(), binary });
            continue;
        }
        suites.extend(rows.into_iter().map(|(name, row)| Suite {
            name: name.to_owned(),
            arguments: row.arguments.clone(),
            row: row.clone(),
            binary: binary.clone(),
        }));
    }
    for name in table.names() {
        if !suites.iter().any(|suite| suite.name == name) {
            bail!("{}: there is no test binary for `{name}`", super::table::FILE);
        }
    }
    Ok(suites)
}

impl Binary {
    /// The test binary that a message of cargo tells of.
    fn parse(message: &str) -> Option<Self> {
        let message: serde_json::Value = serde_json::from_str(message).ok()?;
        if message["profile"]["test"] != true {
            return None;
        }
        let program = message["executable"].as_str()?;
        let manifest = Path::new(message["manifest_path"].as_str()?);
        let directory = manifest.parent()?;
        // `path+file:///directory#name@version`, or without the name where it is the directory's.
        let id = message["package_id"].as_str()?.rsplit('#').next()?;
        let (package, version) = match id.split_once('@') {
            Some((name, version)) => (name.to_owned(), version),
            None => (directory.file_name()?.to_str()?.to_owned(), id),
        };
        let target = &message["target"];
        let name = match target["kind"][0].as_str()? {
            "lib" | "proc-macro" => format!("{package}/lib"),
            _ => format!("{package}/{}", target["name"].as_str()?),
        };
        Some(Self {
            name,
            version: version.to_owned(),
            package,
            directory: directory.to_owned(),
            program: program.into(),
        })
    }
}

impl Suite {
    pub fn need(&self) -> Need {
        self.row.need
    }

    /// Whether the harness is cargo's and not our own.
    fn has_libtest(&self) -> bool {
        !self.row.own_harness
    }

    /// As `cargo test` would start it, with the time of each test.
    pub fn command(&self) -> Command {
        let mut test = command(&self.binary.program);
        test.current_dir(&self.binary.directory)
            .env("CARGO_PKG_NAME", &self.binary.package)
            .env("CARGO_PKG_VERSION", &self.binary.version)
            .env("CARGO_MANIFEST_DIR", &self.binary.directory)
            .env("INSTA_WORKSPACE_ROOT", workspace_root())
            .arg(format!("--test-threads={}", self.row.threads))
            .arg("--report-time");
        if self.has_libtest() {
            // The time of a test is an unstable option of the harness that the stable compiler ships with.
            test.env("RUSTC_BOOTSTRAP", "1").arg("-Zunstable-options");
        }
        test.args(&self.arguments);
        test
    }

    /// The names of its tests.
    pub fn list(&self) -> Result<Vec<String>> {
        let mut list = self.command();
        list.arg("--list");
        let output = list.output().with_context(|| format!("listing the tests of {}", self.name))?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    }

    /// The same binary with other arguments in the place of its own.
    #[must_use]
    pub fn with_arguments(&self, name: String, arguments: Vec<String>) -> Self {
        Self { name, arguments, ..self.clone() }
    }

    /// Leaves tests out that are run elsewhere.
    pub fn skip(&mut self, filters: &[String]) {
        for filter in filters {
            self.arguments.extend(["--skip".to_owned(), filter.clone()]);
        }
    }

    pub fn is_of(&self, binary: &str) -> bool {
        self.binary.name == binary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(id: &str, kind: &str, test: bool, program: &str) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","package_id":"{id}","manifest_path":"/w/test/cluster/Cargo.toml",
            "profile":{{"test":{test}}},"target":{{"kind":["{kind}"],"name":"it"}},"executable":{program}}}"#
        )
    }

    #[test]
    fn binaries_are_found_among_messages() {
        let named = "path+file:///w/test/cluster#sympozium-cluster-tests@0.1.0";
        let program = r#""/t/it-1""#;
        let binary = |name: &str, package: &str| {
            Some(Binary {
                name: name.to_owned(),
                package: package.to_owned(),
                version: "0.1.0".to_owned(),
                directory: "/w/test/cluster".into(),
                program: "/t/it-1".into(),
            })
        };
        assert_eq!(
            Binary::parse(&message(named, "test", true, program)),
            binary("sympozium-cluster-tests/it", "sympozium-cluster-tests")
        );
        assert_eq!(
            Binary::parse(&message(named, "lib", true, program)),
            binary("sympozium-cluster-tests/lib", "sympozium-cluster-tests")
        );
        let unnamed = "path+file:///w/test/cluster#0.1.0";
        assert_eq!(Binary::parse(&message(unnamed, "test", true, program)), binary("cluster/it", "cluster"));
        assert_eq!(Binary::parse(&message(named, "bin", false, program)), None);
        assert_eq!(Binary::parse(&message(named, "test", true, "null")), None);
        assert_eq!(Binary::parse("warning: something else"), None);
    }
}
