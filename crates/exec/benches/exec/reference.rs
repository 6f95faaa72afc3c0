//! What we compare with besides the raw system call: bubblewrap.

use std::process::{Command, Stdio};

/// bubblewrap with every namespace and the directories that a host sandbox has.
pub struct Bwrap(Vec<String>);

impl Bwrap {
    pub fn with_the_same_binds() -> Self {
        let mut arguments: Vec<String> =
            ["--unshare-all", "--die-with-parent", "--new-session"].map(str::to_owned).to_vec();
        for path in super::system_paths() {
            let path_text = path.display().to_string();
            match path.read_link() {
                Ok(to) => arguments.extend(["--symlink".into(), to.display().to_string(), path_text]),
                Err(_) => arguments.extend(["--ro-bind".into(), path_text.clone(), path_text]),
            }
        }
        for (kind, target) in [("--proc", "/proc"), ("--dev", "/dev"), ("--tmpfs", "/tmp"), ("--tmpfs", "/dev/shm")] {
            arguments.extend([kind.to_owned(), target.to_owned()]);
        }
        arguments.push("/bin/true".to_owned());
        Self(arguments)
    }

    pub fn run_true(&self) {
        let status =
            command("bwrap").args(&self.0).stdin(Stdio::null()).status().expect("bwrap is installed by `make setup`");
        assert!(status.success());
    }
}

fn command(program: &str) -> Command {
    sympozium_testkit::command(program)
}
