//! Links between the project's documents must lead somewhere.

use std::path::{Component, Path, PathBuf};

use super::Source;

/// `exists` is asked with paths relative to the root.
pub fn check(source: &Source, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    if !source.path.ends_with(".md") {
        return Vec::new();
    }
    let mut problems = Vec::new();
    for (number, target) in targets(&source.text) {
        let Some(path) = resolve(&source.path, target) else {
            continue;
        };
        if !exists(&path) {
            problems.push(format!("{}:{number}: the link to `{target}` leads nowhere", source.path));
        }
    }
    problems
}

/// What stands in `](…)`, with its line. Code blocks and code spans hold examples, not links.
fn targets(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        // Every second piece between backticks is code.
        for piece in line.split('`').step_by(2) {
            let mut rest = piece;
            while let Some((_, after)) = rest.split_once("](") {
                let Some((target, behind)) = after.split_once(')') else {
                    break;
                };
                // A title may follow the target.
                found.push((number + 1, target.split_whitespace().next().unwrap_or("")));
                rest = behind;
            }
        }
    }
    found
}

/// The file that a link names, relative to the root; `None` when it names none of ours.
fn resolve(document: &str, target: &str) -> Option<PathBuf> {
    let file = target.split('#').next().unwrap_or("");
    if file.is_empty() || target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let base = match file.strip_prefix('/') {
        Some(from_root) => PathBuf::from(from_root),
        None => Path::new(document).parent().unwrap_or(Path::new("")).join(file),
    };
    let mut path = PathBuf::new();
    for component in base.components() {
        match component {
            Component::ParentDir => {
                // Above the root there is nothing of ours: such a link leads nowhere.
                if !path.pop() {
                    return Some(base);
                }
            }
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_followed_from_the_document() {
        let text = "[a](b.md) [b](../x.md#part) ![p](p.png \"title\") [out](https://example.org/y)\n\
                    [here](#part) `[not](code.md)`\n```\n[nor](block.md)\n```\n[last](/root.md)\n";
        let source = Source { path: "docs/a.md".into(), text: text.into() };
        let asked = std::cell::RefCell::new(Vec::new());
        let problems = check(&source, |path| {
            asked.borrow_mut().push(path.to_string_lossy().into_owned());
            false
        });
        assert_eq!(*asked.borrow(), ["docs/b.md", "x.md", "docs/p.png", "root.md"]);
        assert_eq!(problems[3], "docs/a.md:6: the link to `/root.md` leads nowhere");
    }

    #[test]
    fn a_link_above_the_root_leads_nowhere() {
        assert_eq!(resolve("a.md", "../b.md"), Some(PathBuf::from("../b.md")));
    }
}
