//! The bodies of the fuzz targets: names and files that the other side of a volume chose.
//!
//! They have three callers: coverage-guided fuzzing (`make fuzz`), the replay of the corpora on stable in `make test`,
//! and a debugging session for a finding. Each one states a property and panics when it does not hold.

#![expect(clippy::expect_used, reason = "a broken property panics, as in a test")]

use std::time::Duration;

use serde_json::Value;

use crate::auth::StartReport;
use crate::credential::{KEY_BYTES, KeyRing, MAX_USER_BYTES};
use crate::id::RequestId;
use crate::message::{
    DEFAULT_MAX_TIMEOUT, ExecRequest, ExecResult, MAX_ARGUMENTS, MAX_REQUEST_BYTES, MAX_WORD_BYTES, RequestError,
    ResultError,
};
use crate::names::{self, Entry};

/// A body: it returns when every property holds for `data`, and panics otherwise.
pub type Target = fn(data: &[u8]);

/// Every target by its name, which is also the name of its corpus and of its program in `fuzz/`.
pub const TARGETS: &[(&str, Target)] = &[
    ("ipc_name", ipc_name),
    ("ipc_request", ipc_request),
    ("ipc_result", ipc_result),
    ("ipc_start", ipc_start),
    ("proxy_credential", proxy_credential),
];

/// An error's text is written to results and logs; it must be short whatever the file contains.
const MAX_ERROR_BYTES: usize = 300;

/// An accepted announcement is the same start after a round trip, and is exactly one line.
pub fn ipc_start(data: &[u8]) {
    if let Some(report) = StartReport::parse(data) {
        let again = StartReport::parse(report.to_line().as_bytes());
        assert_eq!(again.map(|report| report.nonce), Some(report.nonce));
        let mut longer = data.to_vec();
        longer.push(b'x');
        assert_eq!(StartReport::parse(&longer), None);
    }
}

/// A recognised name is exactly the name that we would generate, and one plain component.
pub fn ipc_name(data: &[u8]) {
    let made = match Entry::parse(data) {
        Entry::Request(id) => names::request(&id),
        Entry::Result(id) => names::result(&id),
        Entry::Claim(id) => names::claim(&id),
        Entry::Expired(id) => names::expired(&id),
        Entry::Temporary => return assert!(data.ends_with(b".tmp")),
        Entry::BadRequestName(problem) => {
            let id = data.strip_prefix(b"exec-request-");
            let id = id.and_then(|rest| rest.strip_suffix(b".json"));
            let id = id.expect("it is named as a request");
            return assert_eq!(RequestId::parse_bytes(id), Err(problem));
        }
        Entry::Foreign => {
            let request = data.starts_with(b"exec-request-") && data.ends_with(b".json");
            // In a shorter name, prefix and suffix would overlap.
            return assert!(!request || data.len() < "exec-request-.json".len());
        }
    };
    assert_eq!(made.as_bytes(), data);
    assert!(data.len() < 200 && !data.contains(&b'/'));
    assert!(data.iter().all(u8::is_ascii_graphic));
}

/// An accepted request is within every limit, equals what an independent parser reads, survives a round trip, and none
/// of its prefixes is a request.
pub fn ipc_request(data: &[u8]) {
    let id = RequestId::from_nanoseconds(1);
    let request = match ExecRequest::parse(data, &id) {
        Ok(request) => request,
        Err(problem) => return check_request_error(data, &problem),
    };
    let Some(value) = parse_independently(data) else {
        return;
    };
    let text = |field: &str| value.get(field).and_then(Value::as_str);
    let words = |field: &str| -> Vec<String> {
        let list = value.get(field).and_then(Value::as_array);
        let words = list.into_iter().flatten().filter_map(Value::as_str);
        words.map(str::to_owned).collect()
    };
    assert_eq!(text("id"), Some("1"));
    assert_eq!(text("command").unwrap_or_default(), request.command);
    assert_eq!(words("args"), request.args);
    assert_eq!(words("argv"), request.argv);
    assert_eq!(text("workDir"), request.work_dir.as_deref());
    assert_eq!(text("target"), request.target.as_deref());
    assert_eq!(text("stdin"), request.stdin.as_deref());
    assert_eq!(value.get("timeout").and_then(Value::as_i64), request.timeout);

    assert!(data.len() <= MAX_REQUEST_BYTES);
    assert!(request.args.len() <= MAX_ARGUMENTS && request.argv.len() <= MAX_ARGUMENTS);
    let line = request.shell_line();
    assert!(line.len() <= MAX_WORD_BYTES && !line.contains('\0'));
    let timeout = request.effective_timeout(DEFAULT_MAX_TIMEOUT);
    assert!((Duration::from_secs(1)..=DEFAULT_MAX_TIMEOUT).contains(&timeout));
    assert!(request.targets(None) && request.targets(request.target.as_deref()));

    // Our own JSON may need more bytes than the original, and then does not fit.
    match request.to_json() {
        Ok(json) => assert_eq!(ExecRequest::parse(&json, &id), Ok(request)),
        Err(problem) => {
            assert!(matches!(problem, RequestError::TooLarge { .. } | RequestError::TooLong { field: "_meta", .. }))
        }
    }
    let end = data.trim_ascii_end().len();
    for cut in [0, end / 3, end / 2, end - 1] {
        let beginning = ExecRequest::parse(&data[..cut], &id);
        assert!(beginning.is_err(), "{cut} of {end} bytes");
    }
}

/// What another parser reads from an accepted file. It may refuse half a surrogate in a field that we ignore.
fn parse_independently(data: &[u8]) -> Option<Value> {
    let value = serde_json::from_slice(data);
    let escapes = data.windows(2).any(|pair| pair == b"\\u");
    assert!(value.is_ok() || escapes, "what was taken is no JSON");
    value.ok()
}

fn check_request_error(data: &[u8], problem: &RequestError) {
    let text = problem.to_string();
    assert!(!text.is_empty() && text.len() <= MAX_ERROR_BYTES, "{text}");
    if *problem == RequestError::EndsEarly {
        assert!(serde_json::from_slice::<Value>(data).is_err());
    }
}

/// An accepted result equals what an independent parser reads, and survives a round trip.
pub fn ipc_result(data: &[u8]) {
    let id = RequestId::from_nanoseconds(1);
    let result = match ExecResult::parse(data, &id) {
        Ok(result) => result,
        Err(problem) => {
            let text = problem.to_string();
            return assert!(!text.is_empty() && text.len() <= MAX_ERROR_BYTES, "{text}");
        }
    };
    let Some(value) = parse_independently(data) else {
        return;
    };
    assert_eq!(value["id"], "1");
    assert_eq!(value["exitCode"].as_i64(), Some(result.exit_code));
    assert_eq!(value["stdout"].as_str(), Some(result.stdout.as_str()));
    assert_eq!(value["stderr"].as_str(), Some(result.stderr.as_str()));
    assert_eq!(value["timedOut"].as_bool().unwrap_or(false), result.timed_out);
    let never = Duration::MAX;
    assert_eq!(result.timed_out_after(Duration::ZERO, never), result.timed_out);
    match result.to_json() {
        Ok(json) => assert_eq!(ExecResult::parse(&json, &id), Ok(result)),
        Err(problem) => assert!(matches!(problem, ResultError::TooLarge { .. })),
    }
}

/// A name and a password, separated by a line feed: what is accepted is exactly what would be signed, and within the
/// documented limits.
pub fn proxy_credential(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let ring = KeyRing::single("k1", [7; KEY_BYTES]).expect("a key");
    let (user, password) = text.split_once('\n').unwrap_or((text, ""));
    let Ok(claims) = ring.verify(user, password, 0) else {
        let _ = KeyRing::parse(text);
        return;
    };
    assert!(user.len() <= MAX_USER_BYTES);
    assert!(user.bytes().all(|byte| byte.is_ascii_graphic()));
    let signed = ring.sign(&claims).expect("it was signed before");
    assert_eq!((signed.user.as_str(), signed.password.as_str()), (user, password));
    ring.verify(user, password, claims.expires).expect_err("it has expired");
}

#[cfg(test)]
mod tests;
