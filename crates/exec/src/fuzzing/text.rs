//! Names, variables, output, and texts of the kernel that contain what a process chose.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path};

use crate::cgroup::owner;
use crate::environment::{
    DEFAULT_PATH, Environment, MAX_ENTRY_BYTES, MAX_NAME_BYTES, MAX_REQUEST_VARIABLES, MAX_TOTAL_BYTES,
    SCRATCH_VARIABLES,
};
use crate::features::{MIN_GVISOR_SIGNS, machine};
use crate::lookup::SkillName;
use crate::outcome::CapturedOutput;
use crate::stage::tree;

/// A name is accepted exactly when it matches `[A-Za-z0-9_+][A-Za-z0-9_.+-]{0,127}`, and is not changed.
pub fn skill_name(data: &[u8]) {
    let Ok(name) = std::str::from_utf8(data) else {
        return;
    };
    let inner = |byte: &u8| matches!(byte, b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'+' | b'-');
    let allowed = (1..=128).contains(&data.len()) && data.iter().all(inner) && !matches!(data[0], b'.' | b'-');
    match SkillName::parse(name) {
        Ok(parsed) => {
            assert!(allowed, "{name:?} was taken");
            assert_eq!(parsed.as_str(), name);
            let parts: Vec<_> = Path::new(parsed.as_str()).components().collect();
            assert!(matches!(parts[..], [Component::Normal(_)]), "{name:?}");
        }
        Err(error) => assert!(!allowed, "{name:?}: {error}"),
    }
}

/// Whatever name a process has, its parent and its start time are read from behind that name.
pub fn process_stat(data: &[u8]) {
    let fields = b") S 42 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456 9 10\n";
    let line = [b"7 (", data, fields].concat();
    assert_eq!(tree::parse_parent(&line), Some(42));
    assert_eq!(owner::parse_start_ticks(&line), Some(123_456));

    let behind_the_name = data.rsplit(|&byte| byte == b')').next();
    let plain = [b"7 (x)", behind_the_name.unwrap_or_default()].concat();
    let has_name = data.contains(&b')');
    assert_eq!(tree::parse_parent(data), tree::parse_parent(&plain).filter(|_| has_name));
    assert_eq!(owner::parse_start_ticks(data), owner::parse_start_ticks(&plain).filter(|_| has_name));
}

/// No log makes a kernel count as gVisor without another sign.
pub fn kernel_log(data: &[u8]) {
    let log = String::from_utf8_lossy(data);
    let signs = |release, version: &str, log: &str| machine::match_gvisor_signs(release, version, log, true).len();
    assert!(signs("6.18.44", "#1 SMP PREEMPT_DYNAMIC", &log) < MIN_GVISOR_SIGNS);
    let build = "#1 SMP Sun Jan 10 15:06:54 PST 2016";
    for (release, certain) in [("4.4.0", true), ("4.19.0-gvisor", true), ("6.1", false)] {
        let without = signs(release, build, "");
        assert_eq!(without >= MIN_GVISOR_SIGNS, certain, "{release}");
        assert!((0..=1).contains(&(signs(release, build, &log) - without)));
    }
    // Release and version may contain anything as well. Each is one sign at most, unless the release names gVisor
    // explicitly.
    let (release, version) = log.split_once('\n').unwrap_or((&log, ""));
    assert!(signs(release, "", "") <= 1 || release.ends_with("-gvisor"));
    assert!(signs("6.1", version, "") <= 1, "{version:?}");
}

/// Output is truncated at the limit and nowhere else, and its text is a prefix of the whole output's text.
///
/// The first two bytes are the limit, the third is how much the command writes at once.
pub fn captured(data: &[u8]) {
    let [low, high, chunk, output @ ..] = data else {
        return;
    };
    let cap = usize::from(u16::from_le_bytes([*low, *high]));
    let mut captured = CapturedOutput::default();
    for piece in output.chunks(usize::from(*chunk).max(1)) {
        captured.append(piece, cap);
    }
    assert_eq!(captured.bytes, output[..output.len().min(cap)]);
    assert_eq!(captured.total_bytes, output.len() as u64);
    assert_eq!(captured.is_truncated(), output.len() > cap);

    let whole = String::from_utf8_lossy(output);
    let text = captured.text();
    if captured.is_truncated() {
        assert!(whole.starts_with(&*text), "{text:?} of {whole:?}");
    } else {
        assert_eq!(text, whole);
    }
    if !captured.has_invalid_utf8() {
        assert!(output.starts_with(text.as_bytes()));
        let lost = captured.bytes.len() - text.len();
        assert!(lost <= 3, "{lost} bytes of a cut character");
    }
    if std::str::from_utf8(output).is_ok() {
        assert!(!captured.has_invalid_utf8(), "the cap was taken for damage");
    }
}

/// A command's environment is exactly what the rules derive from the declared and the requested variables. Refusals and
/// debug output do not depend on the text of a value, so they cannot reveal it.
///
/// Each line is a variable: `D` declares it, `R` requests it; in lower case its value is repeated 4096 times.
pub fn environment(data: &[u8]) {
    let mut declared: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut requested: Vec<(String, String)> = Vec::new();
    let mut bytes = 0;
    for line in data.split(|&byte| byte == b'\n') {
        let Some((&kind, variable)) = line.split_first() else {
            continue;
        };
        let at = variable.iter().position(|&byte| byte == b'=');
        let (name, value) = variable.split_at(at.unwrap_or(variable.len()));
        let value = value.get(1..).unwrap_or_default();
        let times = if kind.is_ascii_lowercase() { 4096 } else { 1 };
        let value = value.repeat(times);
        bytes += value.len();
        if bytes > MAX_TOTAL_BYTES + 2 * MAX_ENTRY_BYTES {
            break;
        }
        match kind {
            b'D' | b'd' => declared.push((name.to_vec(), value)),
            b'R' | b'r' => requested.push((lossy(name), lossy(&value))),
            _ => {}
        }
    }

    let environment = declare(declared.clone());
    let given = environment.for_request(&requested);
    let expected = expected_environment(&declared, &requested);
    match (&given, expected) {
        (Ok(entries), Some(expected)) => {
            let entries: Vec<_> = entries.iter().map(|entry| entry.to_bytes()).collect();
            assert_eq!(entries, expected);
        }
        (Err(_), None) => {}
        (Ok(_), None) => panic!("a request against the rules was taken"),
        (Err(error), Some(_)) => panic!("a request within the rules was refused: {error}"),
    }
    if let Err(error) = given {
        let masked: Vec<_> =
            requested.iter().map(|(name, value)| (name.clone(), lossy(&mask(value.as_bytes())))).collect();
        assert_eq!(environment.for_request(&masked), Err(error));
    }
    let masked = declared.iter().map(|(name, value)| (name.clone(), mask(value)));
    let masked = declare(masked.collect());
    assert_eq!(format!("{environment:?}"), format!("{masked:?}"));
}

fn declare(variables: Vec<(Vec<u8>, Vec<u8>)>) -> Environment {
    let pairs = variables.into_iter();
    Environment::from_declared(pairs.map(|(name, value)| (OsString::from_vec(name), OsString::from_vec(value))))
}

/// A second implementation of the rules, on bytes. `None`: a rule is violated.
fn expected_environment(declared: &[(Vec<u8>, Vec<u8>)], requested: &[(String, String)]) -> Option<Vec<Vec<u8>>> {
    let mut all: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for (name, value) in declared.iter().rev() {
        let is_variable = !name.is_empty() && !name.contains(&0) && !value.contains(&0);
        if is_variable && !is_ours(name) {
            all.insert(name.clone(), value.clone());
        }
    }
    for (name, place) in SCRATCH_VARIABLES {
        let kept = all.get(name.as_bytes()).is_some_and(|value| {
            let parts = || value.split(|&byte| byte == b'/');
            let mut named = parts().filter(|part| !part.is_empty() && *part != b".");
            value.starts_with(b"/") && named.next() == Some(b"tmp") && parts().all(|part| part != b"..")
        });
        if !kept {
            all.insert(name.into(), place.into());
        }
    }
    if all.get(&b"PATH"[..]).is_none_or(Vec::is_empty) {
        all.insert(b"PATH".into(), DEFAULT_PATH.into());
    }
    let mut names = BTreeSet::new();
    for (name, value) in requested {
        let rest = name.strip_prefix("SKILL_")?;
        let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let allowed = !rest.is_empty()
            && rest.chars().all(is_word)
            && name.len() <= MAX_NAME_BYTES
            && !is_ours(name.as_bytes())
            && !value.contains('\0')
            && names.insert(name);
        if !allowed {
            return None;
        }
        all.insert(name.clone().into(), value.clone().into());
    }
    let entries: Vec<_> = all.into_iter().map(|(name, value)| [name, value].join(&b'=')).collect();
    let total: usize = entries.iter().map(|entry| entry.len() + 1).sum();
    let fits = requested.len() <= MAX_REQUEST_VARIABLES
        && total <= MAX_TOTAL_BYTES
        && entries.iter().all(|entry| entry.len() <= MAX_ENTRY_BYTES);
    fits.then_some(entries)
}

fn is_ours(name: &[u8]) -> bool {
    let name = name.to_ascii_uppercase();
    name.starts_with(b"SYMPOZIUM_") || name.starts_with(b"SKILL_TOKEN")
}

/// Another value of the same length that violates the same rules.
fn mask(value: &[u8]) -> Vec<u8> {
    let parts = value.split(|&byte| byte == 0);
    let parts: Vec<_> = parts.map(|part| b"z".repeat(part.len())).collect();
    parts.join(&0)
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
