//! Source files that have grown too long, tests that do not run, code that is not written yet.

use super::Source;

/// At this length a file is split before anything is added to it.
const MOST_LINES: usize = 800;

/// Put together here, so that this file does not contain what it looks for.
const FORBIDDEN: &[(&str, &str)] = &[
    (concat!("to", "do!("), "is not written yet"),
    (concat!("unimple", "mented!("), "is not written yet"),
    (concat!("#[", "ignore"), "never runs; use `skip!`, which is counted"),
];

pub fn check(source: &Source) -> Vec<String> {
    let path = &source.path;
    if !path.ends_with(".rs") {
        return Vec::new();
    }
    let mut problems = Vec::new();
    let lines = source.text.lines().count();
    if lines > MOST_LINES {
        problems.push(format!("{path}: {lines} lines, at most {MOST_LINES}; split it"));
    }
    for (number, line) in source.text.lines().enumerate() {
        for (word, why) in FORBIDDEN {
            if line.contains(word) {
                problems.push(format!("{path}:{}: `{word}` {why}", number + 1));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: String) -> Source {
        Source { path: "a.rs".into(), text }
    }

    #[test]
    fn long_files_and_forbidden_words_are_found() {
        assert_eq!(check(&source("x\n".repeat(MOST_LINES))), Vec::<String>::new());
        assert_eq!(check(&source("x\n".repeat(MOST_LINES + 1))).len(), 1);
        let word = FORBIDDEN[2].0;
        let problems = check(&source(format!("fn a() {{}}\n    {word}]\n")));
        assert_eq!(problems, [format!("a.rs:2: `{word}` never runs; use `skip!`, which is counted")]);
    }
}
