//! What the program was started with, as one JSON object.

use serde_json::{Map, Value, json};

use crate::attempt::Start;
use crate::sys::{self, Arg};

/// What is printed under a name.
type Part = (&'static str, fn(&Start) -> Value);

pub fn print(start: &Start, which: &str) -> i32 {
    let parts: [Part; 6] = [
        ("env", |_| environment()),
        ("cwd", |_| std::env::current_dir().map_or(Value::Null, |path| json!(path.to_string_lossy()))),
        ("fds", |start| json!(descriptors(start))),
        ("signals", |_| signals()),
        ("ids", |start| ids(start)),
        ("args", |_| std::env::args_os().map(|word| json!(word.to_string_lossy())).collect()),
    ];
    let chosen: Map<String, Value> = parts
        .into_iter()
        .filter(|(name, _)| which == "all" || which == *name)
        .map(|(name, value)| (name.to_owned(), value(start)))
        .collect();
    if chosen.is_empty() {
        return crate::usage(&format!("nothing called `{which}` to print"), "env, cwd, fds, signals, ids, args or all");
    }
    crate::print_line(&Value::Object(chosen).to_string());
    0
}

fn environment() -> Value {
    std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), json!(value.to_string_lossy())))
        .collect::<Map<_, _>>()
        .into()
}

fn descriptors(start: &Start) -> Vec<i32> {
    let standard =
        (0..3).filter(|&fd| sys::call(libc::SYS_fcntl, [Arg::Int(fd), Arg::Int(libc::F_GETFD.into())]).is_ok());
    standard.map(|fd| fd as i32).chain(start.inherited.iter().copied()).collect()
}

fn signals() -> Value {
    let mut mask = [0_u8; 8];
    let _ = sys::call(libc::SYS_rt_sigprocmask, [Arg::Int(0), Arg::Null, Arg::Out(&mut mask), Arg::Int(8)]);
    let mask = u64::from_ne_bytes(mask);
    let blocked: Vec<_> = (1..=64).filter(|signal| mask >> (signal - 1) & 1 == 1).collect();
    let dispositions: Map<_, _> = sys::dispositions()
        .into_iter()
        // Rust's runtime sets these three before `main`: SIGPIPE ignored, a stack guard for the other two.
        .filter(|(signal, _)| ![libc::SIGPIPE, libc::SIGSEGV, libc::SIGBUS].contains(signal))
        .map(|(signal, what)| (signal.to_string(), json!(what)))
        .collect();
    json!({ "blocked": blocked, "dispositions": dispositions })
}

fn ids(start: &Start) -> Value {
    let get = |number: i64| sys::call(number, []).unwrap_or(-1);
    let of_self = |number: i64| sys::call(number, [Arg::Int(0)]).unwrap_or(-1);
    json!({
        "pid": start.pid,
        "parent": start.parent,
        "group": of_self(libc::SYS_getpgid),
        "session": of_self(libc::SYS_getsid),
        "uid": get(libc::SYS_getuid),
        "euid": get(libc::SYS_geteuid),
        "gid": get(libc::SYS_getgid),
        "egid": get(libc::SYS_getegid),
    })
}
