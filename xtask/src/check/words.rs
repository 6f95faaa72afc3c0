//! Words that must not be in the project: where one person's machine keeps things, and whose servers it loads from.

use super::Source;

/// Put together here, so that this file does not contain what it looks for.
const FORBIDDEN: &[(&str, &str)] = &[
    (concat!("/wo", "rk/"), "is a path of one machine"),
    (concat!("crates", ".io"), REGISTRY),
    (concat!("pypi", ".org"), REGISTRY),
    (concat!("pythonhosted", ".org"), REGISTRY),
    (concat!("npmjs", ".org"), REGISTRY),
    (concat!("npmjs", ".com"), REGISTRY),
    (concat!("proxy.golang", ".org"), REGISTRY),
    (concat!("deb.debian", ".org"), REGISTRY),
    (concat!("repo.maven.apache", ".org"), REGISTRY),
    (concat!("repo1.maven", ".org"), REGISTRY),
];
const REGISTRY: &str = "names a package registry's host; use the client's own setting";

/// Cargo names its registry in the lock file.
const EXEMPT: &[&str] = &["Cargo.lock", "fuzz/Cargo.lock"];

pub fn check(source: &Source) -> Vec<String> {
    let path = &source.path;
    if EXEMPT.contains(&path.as_str()) {
        return Vec::new();
    }
    let mut problems = Vec::new();
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

    #[test]
    fn each_word_is_found_and_the_lock_file_is_exempt() {
        for (word, _) in FORBIDDEN {
            let text = format!("first\nsee {word} there\n");
            assert_eq!(check(&Source { path: "README.md".into(), text: text.clone() }).len(), 1, "{word}");
            assert_eq!(check(&Source { path: "Cargo.lock".into(), text }).len(), 0, "{word}");
        }
    }
}
