//! The page shows the files that the other tests run.

use std::collections::BTreeSet;
use std::fs;

use sympozium_testkit::static_build::workspace_root;

const PAGE: &str = include_str!("../../../../../docs/tool-authoring.md");
/// The comment before a block that shows a file.
const SHOWS: &str = "<!-- shows: ";
/// All its files are on the page, except the README.
const DIRECTORY: &str = "examples/tool-authoring";
const README: &str = "README.md";
/// Blocks that show a terminal.
const CONSOLE: &str = "console";

/// Code blocks of a page: language, content, and the line before.
fn blocks(page: &str) -> Vec<(String, String, String)> {
    let mut blocks = Vec::new();
    let mut before = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let content = lines.by_ref().take_while(|line| *line != "```");
            let content = content.map(|line| format!("{line}\n")).collect();
            blocks.push((language.to_owned(), content, before.clone()));
        }
        line.clone_into(&mut before);
    }
    blocks
}

#[test]
fn every_block_of_the_page_is_its_file() {
    let mut shown = BTreeSet::new();
    for (language, content, before) in blocks(PAGE) {
        if language == CONSOLE {
            continue;
        }
        let path = before.strip_prefix(SHOWS).and_then(|rest| rest.strip_suffix(" -->"));
        let path = path.unwrap_or_else(|| panic!("which file is this?\n{content}"));
        let file = fs::read_to_string(workspace_root().join(path)).expect(path);
        assert_eq!(content, file, "{path} and the page differ");
        shown.insert(path.to_owned());
    }
    let mut expected: BTreeSet<String> = [
        "crates/testkit/agent-programs/src/bin/agent-with-count-words.rs",
        "crates/agent/tests/it/authoring/count_words.json",
    ]
    .map(str::to_owned)
    .into();
    for entry in fs::read_dir(workspace_root().join(DIRECTORY)).expect("a directory") {
        let name = entry.expect("an entry").file_name();
        if name != README {
            expected.insert(format!("{DIRECTORY}/{}", name.to_string_lossy()));
        }
    }
    assert_eq!(shown, expected);
}
