//! What we compare with: the raw system call.
#![expect(
    unsafe_code,
    reason = "posix_spawn is the reference, and has no safe wrapper"
)]

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr;

/// `posix_spawn` of a program, its output thrown away, and a wait: as cheap as it gets.
///
/// # Panics
///
/// When it does not start or fails: what is compared with must do the work.
pub fn spawn(program: &CStr, arguments: &[&CStr]) {
    let mut argv: Vec<_> = std::iter::once(&program)
        .chain(arguments)
        .map(|word| word.as_ptr().cast_mut())
        .collect();
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
        let error = libc::posix_spawn(
            &raw mut pid,
            program.as_ptr(),
            actions,
            ptr::null(),
            argv.as_ptr(),
            envp.as_ptr(),
        );
        libc::posix_spawn_file_actions_destroy(actions);
        assert_eq!(error, 0);
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
    }
    assert_eq!(status, 0);
}
