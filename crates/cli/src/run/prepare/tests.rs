use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use clap::Parser as _;
use sympozium_api::agent_run::Task;
use sympozium_api::run_plan::Gate;
use sympozium_manifests::built_in;
use tempfile::TempDir;
use zeroize::Zeroizing;

use super::*;
use crate::arguments::{Arguments, Command};
use crate::failure::{DENIED, FAILED, USAGE};
use sympozium_local::binaries::Binary;
use sympozium_local::prepared_run::PartRoot;
use sympozium_runs::ApprovalMode;

mod from_files;
mod from_flags;
mod local_needs;
mod shipped_names;

const UID: &str = "0b5e2f0a-6d0e-4b53-8d1f-3f2a9a1c7e44";

/// A separate machine: state, configuration, data, programs and files.
struct Harness {
    root: TempDir,
    variables: HashMap<String, OsString>,
}

impl Harness {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        for name in ["config", "data", "bin", "files"] {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        let mut machine = Self { root, variables: HashMap::new() };
        machine.program("sh");
        let path = machine.path("bin").into_os_string();
        machine.variables.insert("PATH".to_owned(), path);
        machine.set("OPENAI_API_KEY", "sk-env");
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        fs::canonicalize(self.root.path()).unwrap().join(name)
    }

    fn set(&mut self, name: &str, value: &str) {
        self.variables.insert(name.to_owned(), value.into());
    }

    fn program(&self, name: &str) {
        let path = self.root.path().join("bin").join(name);
        fs::write(&path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Writes a file, and returns its path as an argument.
    fn file(&self, name: &str, text: &str) -> String {
        let path = self.path("files").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn state(&self) -> StateDirectory {
        StateDirectory::open_at(self.path("state")).unwrap()
    }

    fn assemble(&self, typed: &[&str]) -> Result<PreparedRun, Failure> {
        let all = ["sympozium", "run"].into_iter().chain(typed.to_vec());
        let Command::Run(arguments) = Arguments::try_parse_from(all).unwrap().command else {
            panic!("another command");
        };
        let host = HostEnvironment {
            configuration: Some(self.path("config")),
            data: Some(self.path("data")),
            environment: &|name| self.variables.get(name).cloned(),
        };
        prepare_on(&host, &arguments, &self.state(), UID)
    }

    /// Exit code and output.
    #[track_caller]
    fn expect_failure(&self, typed: &[&str]) -> (u8, String) {
        match self.assemble(typed) {
            Ok(prepared) => panic!("composed: {prepared:#?}"),
            Err(failure) => (failure.code(), failure.text()),
        }
    }

    /// Asserts that the run is refused with this code, and with all of these words.
    #[track_caller]
    fn assert_refused(&self, typed: &[&str], expected: u8, words: &[&str]) {
        let (code, text) = self.expect_failure(typed);
        for said in words {
            assert!(text.contains(said), "no {said:?} in {text}");
        }
        assert_eq!(code, expected, "{text}");
    }
}

#[track_caller]
fn expect_prepared(prepared: Result<PreparedRun, Failure>) -> PreparedRun {
    prepared.unwrap_or_else(|failure| panic!("{}", failure.text()))
}

fn model_key(prepared: &PreparedRun) -> Option<(&str, &str)> {
    let key = prepared.model_key.as_ref();
    key.map(|(variable, key)| (variable.as_str(), key.as_str()))
}
