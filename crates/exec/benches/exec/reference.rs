//! What we compare with: the raw system call, and bubblewrap.
#![expect(
    unsafe_code,
    reason = "posix_spawn is the reference, and has no safe wrapper"
)]

use std::ffi::CStr;
use std::process::{Command, Stdio};
use std::ptr;

/// `posix_spawn` of `/bin/true` and a wait, as cheap as it gets.
pub fn spawn_true() {
    const TRUE: &CStr = c"/bin/true";
    let argv = [TRUE.as_ptr().cast_mut(), ptr::null_mut()];
    let envp = [ptr::null_mut()];
    let mut pid = 0;
    let mut status = 0;
    // SAFETY: all pointers are to live, NUL-terminated values; the child is ours to wait for.
    unsafe {
        let error = libc::posix_spawn(
            &raw mut pid,
            TRUE.as_ptr(),
            ptr::null(),
            ptr::null(),
            argv.as_ptr(),
            envp.as_ptr(),
        );
        assert_eq!(error, 0);
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
    }
    assert_eq!(status, 0);
}

/// bubblewrap with every namespace and the directories that a host sandbox has.
pub struct Bwrap(Vec<String>);

impl Bwrap {
    pub fn with_the_same_binds() -> Self {
        let mut arguments: Vec<String> = ["--unshare-all", "--die-with-parent", "--new-session"]
            .map(str::to_owned)
            .to_vec();
        for path in super::system_paths() {
            let path_text = path.display().to_string();
            match path.read_link() {
                Ok(to) => {
                    arguments.extend(["--symlink".into(), to.display().to_string(), path_text])
                }
                Err(_) => arguments.extend(["--ro-bind".into(), path_text.clone(), path_text]),
            }
        }
        for (kind, target) in [
            ("--proc", "/proc"),
            ("--dev", "/dev"),
            ("--tmpfs", "/tmp"),
            ("--tmpfs", "/dev/shm"),
        ] {
            arguments.extend([kind.to_owned(), target.to_owned()]);
        }
        arguments.push("/bin/true".to_owned());
        Self(arguments)
    }

    pub fn run_true(&self) {
        let status = command("bwrap")
            .args(&self.0)
            .stdin(Stdio::null())
            .status()
            .expect("bwrap is installed by `make setup`");
        assert!(status.success());
    }
}

fn command(program: &str) -> Command {
    sympozium_testkit::command(program)
}
