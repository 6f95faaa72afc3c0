//! Privileges that should have been taken away.

use crate::attempt::{Attempt, Verdict, plain};
use crate::sys::{Arg, Errno, call};

pub const ATTEMPTS: &[Attempt] = &[
    plain("become-root", "become root", |_| {
        if call(libc::SYS_geteuid, []) == Ok(0) {
            return Verdict::Possible("we are root already".into());
        }
        Verdict::of(call(libc::SYS_setuid, [Arg::Int(0)]), "setuid(0) worked")
    }),
    plain("become-root-group", "join the root group", |_| {
        if call(libc::SYS_getegid, []) == Ok(0) {
            return Verdict::Possible("we are in it already".into());
        }
        Verdict::of(call(libc::SYS_setgid, [Arg::Int(0)]), "setgid(0) worked")
    }),
    plain("keep-groups", "use supplementary groups of the executor", |_| {
        let mut groups = [0_u8; 256];
        let count = call(libc::SYS_getgroups, [Arg::Int(64), Arg::Out(&mut groups)]).unwrap_or(0);
        let own = call(libc::SYS_getegid, []).unwrap_or(-1);
        let others: Vec<u32> = groups
            .chunks_exact(4)
            .take(count as usize)
            .map(|bytes| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
            .filter(|&group| i64::from(group) != own)
            .collect();
        Verdict::from_condition(!others.is_empty(), format!("groups {others:?}"))
    }),
    plain("hold-capabilities", "use a capability", |_| match capabilities() {
        Ok(sets) => Verdict::from_condition(
            sets.iter().any(|&set| set != 0),
            format!("effective, permitted, inheritable {sets:x?}"),
        ),
        Err(error) => Verdict::Refused(error.to_string()),
    }),
    plain("regain-capabilities", "get a capability back (bounding or ambient set)", |_| {
        let held = |option: i64, first: i64| {
            (0..64)
                .filter(|&number| match first {
                    0 => call(libc::SYS_prctl, [Arg::Int(option), Arg::Int(number)]) == Ok(1),
                    _ => {
                        call(
                            libc::SYS_prctl,
                            [Arg::Int(option), Arg::Int(first), Arg::Int(number), Arg::Int(0), Arg::Int(0)],
                        ) == Ok(1)
                    }
                })
                .count()
        };
        let bounding = held(libc::PR_CAPBSET_READ.into(), 0);
        let ambient = held(libc::PR_CAP_AMBIENT.into(), libc::PR_CAP_AMBIENT_IS_SET.into());
        Verdict::from_condition(bounding + ambient > 0, format!("{bounding} in the bounding set, {ambient} ambient"))
    }),
    plain("gain-by-exec", "gain privileges from a setuid program", |_| {
        let value = call(
            libc::SYS_prctl,
            [Arg::Int(libc::PR_GET_NO_NEW_PRIVS.into()), Arg::Int(0), Arg::Int(0), Arg::Int(0), Arg::Int(0)],
        );
        Verdict::from_condition(value != Ok(1), format!("no_new_privs is {}", value.unwrap_or(0)))
    }),
    plain("run-unfiltered", "make calls without a filter", |_| {
        // PR_GET_SECCOMP itself may be refused, or fatal in strict mode: each of these means that a filter is on.
        match call(
            libc::SYS_prctl,
            [Arg::Int(libc::PR_GET_SECCOMP.into()), Arg::Int(0), Arg::Int(0), Arg::Int(0), Arg::Int(0)],
        ) {
            Ok(mode) => Verdict::from_condition(mode == 0, format!("seccomp mode {mode}")),
            Err(error) => Verdict::Refused(error.to_string()),
        }
    }),
];

/// Effective, permitted, inheritable.
fn capabilities() -> Result<[u64; 3], Errno> {
    let mut header = [0_u8; 8];
    // _LINUX_CAPABILITY_VERSION_3, ourselves.
    header[..4].copy_from_slice(&0x2008_0522_u32.to_ne_bytes());
    let mut data = [0_u8; 24];
    call(libc::SYS_capget, [Arg::Out(&mut header), Arg::Out(&mut data)])?;
    let word = |index: usize| {
        let at = index * 4;
        u64::from(u32::from_ne_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]))
    };
    Ok([0, 1, 2].map(|set| word(set) | word(set + 3) << 32))
}
