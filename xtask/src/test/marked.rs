//! Lists of tests that are treated apart: `PACKAGE FILTER`, with the reason behind ` # `.

use std::fs;

use anyhow::{Context as _, Result};

use super::suites::Suite;
use crate::process::workspace_root;

/// Tests of one binary.
#[derive(Debug, PartialEq, Eq)]
pub struct Marked {
    binary: String,
    /// As the test harness takes them: parts of names.
    pub filters: Vec<String>,
}

/// Reads a list, one entry per binary. One that is not there has no entries.
pub fn read(file: &str) -> Result<Vec<Marked>> {
    let path = workspace_root().join(file);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = fs::read_to_string(path).with_context(|| format!("reading {file}"))?;
    parse(&text).with_context(|| file.to_owned())
}

fn parse(text: &str) -> Result<Vec<Marked>> {
    let mut list: Vec<Marked> = Vec::new();
    for line in text.lines() {
        let line = line.split(" # ").next().unwrap_or_default().trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (package, filter) =
            line.split_once(char::is_whitespace).with_context(|| format!("expected `PACKAGE FILTER`, not `{line}`"))?;
        // The integration tests, unless a target is named.
        let binary = if package.contains('/') { package.to_owned() } else { format!("{package}/it") };
        let filter = filter.trim().to_owned();
        match list.iter_mut().find(|entry| entry.binary == binary) {
            Some(entry) => entry.filters.push(filter),
            None => list.push(Marked { binary, filters: vec![filter] }),
        }
    }
    Ok(list)
}

impl Marked {
    pub fn is_for(&self, suite: &Suite) -> bool {
        suite.is_of(&self.binary)
    }

    /// Those tests alone.
    pub fn select(&self, suite: &Suite) -> Suite {
        suite.with_arguments(format!("{} (marked)", suite.name), self.filters.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_gathered_by_binary() {
        let list = parse("# why\na idle # measures\nb/lib x\na crash\n").unwrap();
        assert_eq!(
            list,
            [
                Marked { binary: "a/it".to_owned(), filters: vec!["idle".to_owned(), "crash".to_owned()] },
                Marked { binary: "b/lib".to_owned(), filters: vec!["x".to_owned()] }
            ]
        );
        assert!(parse("a").is_err());
    }
}
