//! What we compare with: the raw system call.
#![expect(unsafe_code, reason = "posix_spawn is the reference, and has no safe wrapper")]
#![expect(clippy::expect_used, reason = "a measurement that cannot be made must stop")]

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::path::Path;
use std::ptr;

use super::{in_threads, median};

/// Processes in one round of one side, of [`against_true`].
const ROUND: u32 = 100;
const ROUNDS: usize = 21;

/// How many times as long a program takes, as a whole process, as starting `/bin/true`. The two alternate, so whatever else
/// the machine does hits both.
pub fn against_true(program: &Path, arguments: &[&CStr]) -> f64 {
    let program = c_string(program);
    let ours = || spawn(&program, arguments);
    let reference = || spawn(c"/bin/true", &[]);
    in_threads(1, ROUND, ours);
    let round = |_| {
        let raw = in_threads(1, ROUND, reference);
        in_threads(1, ROUND, ours).as_secs_f64() / raw.as_secs_f64()
    };
    median((0..ROUNDS).map(round).collect())
}

/// A path as an argument of [`spawn`].
///
/// # Panics
///
/// When there is a NUL in it, which no path has.
pub fn c_string(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).expect("a path has no NUL in it")
}

/// `posix_spawn` of a program, its output thrown away, and a wait: as cheap as it gets.
///
/// # Panics
///
/// When it does not start or fails: what is compared with must do the work.
pub fn spawn(program: &CStr, arguments: &[&CStr]) {
    let mut argv: Vec<_> = std::iter::once(&program).chain(arguments).map(|word| word.as_ptr().cast_mut()).collect();
    argv.push(ptr::null_mut());
    let envp = [ptr::null_mut()];
    let mut pid = 0;
    let mut status = 0;
    let mut actions = MaybeUninit::<libc::posix_spawn_file_actions_t>::uninit();
    // SAFETY: all pointers are to live, NUL-terminated values; the actions are used between init and destroy only;
    // the child is ours to wait for.
    unsafe {
        let actions = actions.as_mut_ptr();
        assert_eq!(libc::posix_spawn_file_actions_init(actions), 0);
        let null = c"/dev/null".as_ptr();
        let opened = libc::posix_spawn_file_actions_addopen(actions, 1, null, libc::O_WRONLY, 0);
        assert_eq!(opened, 0);
        let error =
            libc::posix_spawn(&raw mut pid, program.as_ptr(), actions, ptr::null(), argv.as_ptr(), envp.as_ptr());
        libc::posix_spawn_file_actions_destroy(actions);
        assert_eq!(error, 0);
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
    }
    assert_eq!(status, 0);
}
