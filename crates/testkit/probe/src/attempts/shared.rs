//! What a command shares with the machine when it has no namespaces: metadata of the user's files, and IPC objects that
//! outlive the process that made them.

use std::ffi::{CStr, CString};

use crate::attempt::{Attempt, Input, Verdict, plain, with};
use crate::sys::{self, Arg, Errno, call};

/// Its low 32 bits are zero: a filter that compares only those takes it for a null pointer.
const LOW_HALF_NULL: usize = 0x1_0000_0000;
const HERE: Arg<'static> = Arg::Int(libc::AT_FDCWD as i64);
const MAKE: i64 = (libc::IPC_CREAT | libc::IPC_EXCL | 0o600) as i64;
const REMOVE: Arg<'static> = Arg::Int(libc::IPC_RMID as i64);

pub const ATTEMPTS: &[Attempt] = &[
    with("change-times", "PATH", "change a file's times", |input| match path(input) {
        Ok(path) => Verdict::of(touch(&path), "changed"),
        Err(error) => Verdict::Refused(error.to_string()),
    }),
    with(
        "change-times-by-high-pointer",
        "PATH",
        "change a file's times, the path being where the low half of its address is zero",
        |input| {
            let placed = path(input).and_then(|path| sys::place_at(LOW_HALF_NULL, &path));
            match placed {
                Ok(path) => Verdict::of(touch(path), "changed"),
                Err(error) => Verdict::Refused(error.to_string()),
            }
        },
    ),
    plain("make-shared-memory", "make System V shared memory", |_| {
        let private = || Arg::Int(libc::IPC_PRIVATE.into());
        let made = call(libc::SYS_shmget, [private(), Arg::Int(4096), Arg::Int(MAKE)]);
        let made = made.inspect(|&id| {
            let _ = call(libc::SYS_shmctl, [Arg::Int(id), REMOVE, Arg::Null]);
        });
        Verdict::of(made, "made it")
    }),
    plain("make-semaphores", "make System V semaphores", |_| {
        let private = || Arg::Int(libc::IPC_PRIVATE.into());
        let made = call(libc::SYS_semget, [private(), Arg::Int(1), Arg::Int(MAKE)]);
        let made = made.inspect(|&id| {
            let _ = call(libc::SYS_semctl, [Arg::Int(id), Arg::Int(0), REMOVE]);
        });
        Verdict::of(made, "made them")
    }),
    plain("make-queue", "make a System V message queue", |_| {
        let private = || Arg::Int(libc::IPC_PRIVATE.into());
        let made = call(libc::SYS_msgget, [private(), Arg::Int(MAKE)]);
        let made = made.inspect(|&id| {
            let _ = call(libc::SYS_msgctl, [Arg::Int(id), REMOVE, Arg::Null]);
        });
        Verdict::of(made, "made it")
    }),
    plain("make-posix-queue", "make a POSIX message queue", make_posix_queue),
    plain("use-ipc-object", "use IPC objects by a number or name that was guessed", use_ipc_object),
];

fn path(input: &Input<'_>) -> Result<CString, Errno> {
    CString::new(input.argument).map_err(|_| Errno(libc::EINVAL))
}

/// Sets the times to now.
fn touch(path: &CStr) -> Result<i64, Errno> {
    call(libc::SYS_utimensat, [HERE, Arg::Text(path), Arg::Null, Arg::Int(0)])
}

fn make_posix_queue(input: &Input<'_>) -> Verdict {
    let name = CString::new(format!("probe-{}", input.start.pid)).unwrap_or_default();
    let flags = (libc::O_CREAT | libc::O_EXCL | libc::O_RDWR).into();
    let made = call(libc::SYS_mq_open, [Arg::Text(&name), Arg::Int(flags), Arg::Int(0o600), Arg::Null]);
    if made.is_ok() {
        let _ = call(libc::SYS_mq_unlink, [Arg::Text(&name)]);
    }
    Verdict::of(made.map(sys::owned), "made it")
}

/// With a number that no object has, so that nothing happens where a call is let through.
fn use_ipc_object(_: &Input<'_>) -> Verdict {
    let none = || Arg::Int(-1);
    let zero = || Arg::Int(0);
    let name = c"no-such-queue-of-the-probe";
    let calls = [
        ("shmat", call(libc::SYS_shmat, [none(), Arg::Null, zero()])),
        ("shmctl", call(libc::SYS_shmctl, [none(), REMOVE, zero()])),
        ("semop", call(libc::SYS_semop, [none(), Arg::Null, zero()])),
        ("semtimedop", call(libc::SYS_semtimedop, [none(), Arg::Null, zero(), Arg::Null])),
        ("semctl", call(libc::SYS_semctl, [none(), zero(), REMOVE])),
        ("msgsnd", call(libc::SYS_msgsnd, [none(), Arg::Null, zero(), zero()])),
        ("msgrcv", call(libc::SYS_msgrcv, [none(), Arg::Null, zero(), zero(), zero()])),
        ("msgctl", call(libc::SYS_msgctl, [none(), REMOVE, zero()])),
        ("mq_unlink", call(libc::SYS_mq_unlink, [Arg::Text(name)])),
    ];
    let passed: Vec<String> = calls
        .into_iter()
        .filter_map(|(name, result)| match Verdict::of_call(result) {
            Verdict::Possible(detail) => Some(format!("{name}: {detail}")),
            Verdict::Refused(_) => None,
        })
        .collect();
    Verdict::from_condition(!passed.is_empty(), passed.join(", "))
}
