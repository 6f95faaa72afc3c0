//! New namespaces, by each call that can make one.

use crate::attempt::{Attempt, Verdict, plain};
use crate::sys::{self, Arg, call};

/// `CLONE_NEWTIME`, which the libc crate does not name everywhere.
const NEW_TIME: i32 = 0x80;

macro_rules! namespaces {
    ($($kind:literal, $flag:expr;)*) => {
        pub const ATTEMPTS: &[Attempt] = &[$(
            plain(concat!("unshare-", $kind), concat!("make a new ", $kind, " namespace: unshare"), |_| by_unshare($flag)),
            plain(concat!("clone-", $kind), concat!("make a new ", $kind, " namespace: clone"), |_| by_clone($flag)),
            plain(concat!("clone3-", $kind), concat!("make a new ", $kind, " namespace: clone3"), |_| by_clone3($flag)),
        )*
            // Without `clone`: the low byte of its flags is the exit signal, and the bit means something else there.
            plain("unshare-time", "make a new time namespace: unshare", |_| by_unshare(NEW_TIME)),
            plain("clone3-time", "make a new time namespace: clone3", |_| by_clone3(NEW_TIME)),
        ];
    };
}

namespaces! {
    "user", libc::CLONE_NEWUSER;
    "mount", libc::CLONE_NEWNS;
    "pid", libc::CLONE_NEWPID;
    "network", libc::CLONE_NEWNET;
    "ipc", libc::CLONE_NEWIPC;
    "uts", libc::CLONE_NEWUTS;
    "cgroup", libc::CLONE_NEWCGROUP;
}

fn by_unshare(flag: i32) -> Verdict {
    Verdict::of(call(libc::SYS_unshare, [Arg::Int(flag.into())]), "made one")
}

fn by_clone(flag: i32) -> Verdict {
    match sys::fork_with(flag) {
        Ok(None) => sys::exit_now(0),
        Ok(Some(child)) => Verdict::of(sys::wait_for(child), "made one"),
        Err(error) => Verdict::Refused(error.to_string()),
    }
}

fn by_clone3(flag: i32) -> Verdict {
    // struct clone_args, first version: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls.
    let mut arguments = [0_u8; 64];
    arguments[..8].copy_from_slice(&(flag as u32 as u64).to_ne_bytes());
    arguments[32..40].copy_from_slice(&(libc::SIGCHLD as u64).to_ne_bytes());
    match call(libc::SYS_clone3, [Arg::In(&arguments), Arg::Int(64)]) {
        Ok(0) => sys::exit_now(0),
        Ok(child) => Verdict::of(sys::wait_for(child as i32), "made one"),
        Err(error) => Verdict::Refused(error.to_string()),
    }
}
