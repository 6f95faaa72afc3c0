//! The interpreter of a script: by its first line, or else by its file extension.

use std::path::Path;

/// The only interpreter of the base image.
pub const SHELL: &str = "sh";

/// Extensions that are unambiguous.
const BY_EXTENSION: &[(&str, &str)] = &[
    ("sh", SHELL),
    ("bash", "bash"),
    ("py", "python3"),
    ("js", "node"),
    ("mjs", "node"),
    ("rb", "ruby"),
    ("pl", "perl"),
];

/// Bytes of a first line that are examined, as many as the kernel does.
const MAX_FIRST_LINE: usize = 255;

/// Whether the file has a `#!` line.
pub fn has_interpreter(bytes: &[u8]) -> bool {
    bytes.starts_with(b"#!")
}

/// The program that runs a script, by its plain name.
pub fn interpreter(path: &str, bytes: &[u8]) -> Option<String> {
    if has_interpreter(bytes) {
        return parse_shebang(bytes);
    }
    let extension = Path::new(path).extension()?.to_str()?;
    let (_, program) = BY_EXTENSION.iter().find(|(known, _)| *known == extension)?;
    Some((*program).to_owned())
}

fn parse_shebang(bytes: &[u8]) -> Option<String> {
    let line = bytes[..bytes.len().min(MAX_FIRST_LINE)].split(|byte| *byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.strip_prefix("#!")?.split_whitespace();
    let mut program = base_name(words.next()?);
    if program == "env" {
        // Options and assignments come before the program: `env -S VAR=1 python3 -u`.
        let is_program = |word: &&str| !word.starts_with('-') && !word.contains('=');
        program = base_name(words.find(is_program)?);
    }
    is_program_name(program).then(|| program.to_owned())
}

/// Whether this can be the plain name of a program.
pub fn is_program_name(program: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte);
    (1..=64).contains(&program.len()) && !program.starts_with(['.', '-']) && program.bytes().all(is_plain)
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_names_the_program() {
        for (line, expected) in [
            ("#!/bin/sh\n", Some("sh")),
            ("#!/bin/bash -e", Some("bash")),
            ("#! /usr/bin/env python3\r\n", Some("python3")),
            ("#!/usr/bin/env -S uv run --script\n", Some("uv")),
            ("#!/usr/bin/env -S A=1 perl\n", Some("perl")),
            ("#!/usr/bin/env\n", None),
            ("#!\n/bin/sh", None),
            ("#!/bin/$(id)\n", None),
        ] {
            let found = interpreter("x.rb", line.as_bytes());
            assert_eq!(found.as_deref(), expected, "{line}");
        }
        assert_eq!(interpreter("x", b"#!/bin/\xff\n"), None);
        assert_eq!(interpreter("x", &[b"#!/".as_slice(), &[b'a'; 999]].concat()), None);
    }

    #[test]
    fn without_a_shebang_the_extension_names_the_program() {
        assert_eq!(interpreter("scripts/a.py", b"pass").as_deref(), Some("python3"));
        assert_eq!(interpreter("scripts/a.sh", b"").as_deref(), Some("sh"));
        assert_eq!(interpreter("scripts/a.PY", b""), None);
        assert_eq!(interpreter("scripts/a", b"x"), None);
    }
}
