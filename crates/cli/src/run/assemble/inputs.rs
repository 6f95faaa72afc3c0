//! Separates the positional arguments of `run` into files and the task.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use sympozium_api::text::quote;

use crate::failure::Failure;
use crate::run::arguments::RunArguments;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct RunInputs {
    /// Files, directories, and `-`.
    pub files: Vec<PathBuf>,
    pub task: Option<String>,
}

impl RunInputs {
    /// Fails if there are two tasks, or one that is not UTF-8.
    pub fn from_arguments(arguments: &RunArguments) -> Result<Self, Failure> {
        let mut inputs = Self { files: Vec::new(), task: arguments.task.clone() };
        for input in &arguments.inputs {
            if is_file_argument(input) {
                inputs.files.push(PathBuf::from(input));
                continue;
            }
            let hint =
                "put the task between quotes, and check the names of files; --task takes one that could be a file";
            let Some(task) = input.to_str() else {
                let error = anyhow!("{} is neither a file nor UTF-8 text", quote(&input.to_string_lossy()));
                return Err(Failure::usage(error, hint));
            };
            if let Some(first) = &inputs.task {
                let error = anyhow!("there are two tasks, {} and {}: neither is a file", quote(first), quote(task));
                return Err(Failure::usage(error, hint));
            }
            inputs.task = Some(task.to_owned());
        }
        if inputs.task.as_ref().is_some_and(|task| task.trim().is_empty()) {
            let error = anyhow!("the task is empty");
            return Err(Failure::usage(error, "say what the agent is to do"));
        }
        Ok(inputs)
    }
}

/// Whether an argument is a file and cannot be the task.
pub fn is_file_argument(input: &OsStr) -> bool {
    let path = Path::new(input);
    let extension = path.extension().and_then(OsStr::to_str);
    input == "-"
        || matches!(extension, Some("yaml" | "yml" | "json"))
        // A dangling link is a file that cannot be read, not the task.
        || path.symlink_metadata().is_ok()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arguments::{Arguments, Command};

    fn inputs(arguments: &[&str]) -> Result<RunInputs, String> {
        let all = ["sympozium", "run"].into_iter().chain(arguments.to_vec());
        let Command::Run(arguments) = Arguments::try_parse_from(all).unwrap().command else {
            panic!("another command");
        };
        RunInputs::from_arguments(&arguments).map_err(|failure| {
            assert_eq!(failure.code(), crate::failure::USAGE);
            failure.text()
        })
    }

    #[test]
    fn files_are_told_from_the_task() {
        let directory = tempfile::tempdir().unwrap();
        let there = directory.path().join("README");
        std::fs::write(&there, "").unwrap();
        let dangling = directory.path().join("dangling");
        std::os::unix::fs::symlink("nowhere", &dangling).unwrap();
        let (there, dangling) = (there.to_str().unwrap(), dangling.to_str().unwrap());
        let typed = ["missing.yaml", "Fix it", there, "-", dangling, "x.json"];
        let expected = RunInputs {
            files: ["missing.yaml", there, "-", dangling, "x.json"].map(PathBuf::from).to_vec(),
            task: Some("Fix it".to_owned()),
        };
        assert_eq!(inputs(&typed), Ok(expected));
        assert_eq!(inputs(&[]), Ok(RunInputs::default()));
        let task = inputs(&["--task", there]).unwrap();
        assert_eq!(task.task.as_deref(), Some(there));
    }

    #[test]
    fn there_is_one_task() {
        for typed in [&["one", "two"][..], &["--task", "one", "two"]] {
            let error = inputs(typed).unwrap_err();
            assert!(error.contains("two tasks, `one` and `two`"), "{error}");
        }
        let error = inputs(&[" "]).unwrap_err();
        assert!(error.contains("the task is empty"), "{error}");
    }
}
