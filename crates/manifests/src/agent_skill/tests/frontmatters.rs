//! The frontmatter of `SKILL.md`: what is accepted, what is corrected, and what is rejected.

use std::collections::BTreeMap;

use super::super::tools::AllowedTool;
use super::{raw, read};
use crate::agent_skill::limits::{MAX_ANNOTATION_BYTES, MAX_DESCRIPTION};

/// The parsed skill: name, description, text, and the problems.
fn became(text: &str) -> (String, String, String, Vec<String>) {
    let (skill, problems) = read(raw(text));
    let skill = skill.unwrap_or_else(|| panic!("{text}: {problems:?}"));
    (skill.spec.name.as_str().to_owned(), skill.spec.description.unwrap_or_default(), skill.spec.content, problems)
}

#[test]
fn standard_fields_have_no_warnings() {
    let plain = ("skill", "What it does.", "# Title\n\nText.\n");
    for text in [
        "---\nname: skill\ndescription: What it does.\n---\n# Title\n\nText.\n",
        "---\nname: skill\ndescription: What it does.\n---\n\n\n# Title\n\nText.",
        "---  \r\nname: skill\r\ndescription: What it does.\r\n---\r\n\r\n# Title\r\n\r\nText.\r\n",
        "\u{feff}---\nname: \"skill\"\ndescription: >-\n  What it\n  does.\n---\n# Title\n\nText.\n\n\n",
        "\n\n---\n# a comment\ndescription: 'What it does.'\nname: skill\n---\t\n# Title\n\nText.\n",
        "---\nname: skill\ndescription: What it does.\nlicense:\nmetadata:\n---\n# Title\n\nText.\n",
    ] {
        let (name, description, content, problems) = became(text);
        let found = (name.as_str(), description.as_str(), content.as_str());
        assert_eq!((found, problems), (plain, Vec::new()), "{text}");
    }
}

#[test]
fn fields_are_mapped_to_the_pack() {
    let text = "---\nname: skill\ndescription: d\nlicense: MIT\ncompatibility: Needs git.\nmetadata:\n  version: 1.10\n  category: sre\n  author: Ada\n  strict: yes\nallowed-tools: Bash Read\n---\nx\n";
    let (skill, problems) = read(raw(text));
    let skill = skill.unwrap();
    assert_eq!(problems, [""; 0]);
    assert_eq!(skill.license.as_deref(), Some("MIT"));
    assert_eq!(skill.compatibility.as_deref(), Some("Needs git."));
    // As it is written: as a number it would be 1.1.
    assert_eq!(skill.version.as_deref(), Some("1.10"));
    assert_eq!(skill.category.as_deref(), Some("sre"));
    let rest = [("author", "Ada"), ("strict", "yes")];
    let rest: BTreeMap<String, String> = rest.map(|(key, text)| (key.to_owned(), text.to_owned())).into();
    assert_eq!(skill.metadata, rest);
    let tools = vec![AllowedTool::OwnCommands, AllowedTool::Pattern("read_file".to_owned())];
    assert_eq!(skill.allowed_tools, Some(tools));
    assert!(skill.runs_commands);
}

#[test]
fn mistakes_are_corrected_with_a_warning() {
    for (text, name, description, expected) in [
        ("name: PDF Tools\ndescription: d", "pdf-tools", "d", "2:7 warning skill-name"),
        ("name: other\ndescription: d", "other", "d", "2:7 warning skill-name"),
        ("description: d", "skill", "d", "2:1 warning skill-name"),
        ("name: 日本\ndescription: d", "skill", "d", "2:7 warning skill-name"),
        ("name:\ndescription: d", "skill", "d", "2:5 warning skill-name"),
        ("name: [a]\ndescription: d", "skill", "d", "2:7 warning skill-name"),
        ("name: 007\ndescription: d", "007", "d", "2:7 warning skill-name"),
        ("name: skill\ndescription: Use when: asked", "skill", "Use when: asked", "3:1 warning frontmatter-quotes"),
        (
            "name: skill\ndescription: Use `x`: or\n  \"y\": it's\n  fine",
            "skill",
            "Use `x`: or \"y\": it's fine",
            "3:1 warning frontmatter-quotes",
        ),
        ("name: skill\ndescription: d\nmetadata:\n  note: a: b", "skill", "d", "5:3 warning frontmatter-quotes"),
        ("name: skill\ndescription: \"no end", "skill", "\"no end", "3:1 warning frontmatter-quotes"),
        ("name: skill\ndescription: d\nmodel: x", "skill", "d", "4:1 warning frontmatter-field"),
        ("name: skill\nDescription: d", "skill", "d", "3:1 warning frontmatter-field"),
        ("name: skill\ndescription: d\nmetadata: x", "skill", "d", "4:1 warning frontmatter-field"),
        ("name: skill\ndescription: d\nmetadata: {a: [b]}", "skill", "d", "4:12 warning frontmatter-field"),
        ("name: skill\ndescription: d\nlicense: [MIT]", "skill", "d", "4:1 warning frontmatter-field"),
        ("name: skill\ndescription: \"a\\u0007b\"", "skill", "ab", ""),
        ("name: skill\ndescription: 42", "skill", "42", ""),
    ] {
        let found = became(&format!("---\n{text}\n---\nx\n"));
        let expected: Vec<String> = Some(expected.to_owned()).into_iter().filter(|text| !text.is_empty()).collect();
        let expected = (name.to_owned(), description.to_owned(), "x\n".to_owned(), expected);
        assert_eq!(found, expected, "{text}");
    }
}

/// A misspelt restriction must not widen what is allowed.
#[test]
fn allowed_tools_by_another_spelling_still_narrow() {
    for key in ["allowed_tools", "allowedTools", "Allowed-Tools"] {
        let (skill, problems) = read(raw(format!("---\nname: skill\ndescription: d\n{key}: Read\n---\nx\n")));
        let read_only = vec![AllowedTool::Pattern("read_file".to_owned())];
        assert_eq!(skill.unwrap().allowed_tools, Some(read_only), "{key}");
        assert_eq!(problems, ["4:1 warning frontmatter-field"], "{key}");
    }
    let both = "---\nname: skill\ndescription: d\nallowed_tools: Bash\nallowed-tools: Read\n---\nx\n";
    let (skill, problems) = read(raw(both));
    assert!(!skill.unwrap().runs_commands);
    assert_eq!(problems, ["4:1 warning frontmatter-field"]);
}

#[test]
fn long_values_are_truncated_or_omitted() {
    let long = "ä".repeat(MAX_DESCRIPTION + 1);
    let (_, description, _, problems) = became(&format!("---\nname: skill\ndescription: {long}\n---\nx\n"));
    assert_eq!(description, "ä".repeat(MAX_DESCRIPTION));
    assert_eq!(problems, ["3:14 warning description"]);
    let long = "l".repeat(MAX_ANNOTATION_BYTES + 1);
    let text = format!(
        "---\nname: skill\ndescription: d\nlicense: {long}\nmetadata:\n  version: \"1\"\n  note: {long}\n---\nx\n"
    );
    let (skill, problems) = read(raw(text));
    let skill = skill.unwrap();
    assert_eq!((skill.license, skill.metadata), (None, BTreeMap::new()));
    assert_eq!(skill.version.as_deref(), Some("1"));
    assert_eq!(problems, ["4:1 warning frontmatter-field", "5:1 warning frontmatter-field"]);
}

#[test]
fn a_version_that_is_too_long_stays_with_the_metadata() {
    let long = "1".repeat(129);
    let text = format!("---\nname: skill\ndescription: d\nmetadata:\n  version: {long}\n---\nx\n");
    let (skill, problems) = read(raw(text));
    let skill = skill.unwrap();
    assert_eq!((skill.version, problems), (None, Vec::new()));
    let kept = BTreeMap::from([("version".to_owned(), long)]);
    assert_eq!(skill.metadata, kept);
}

#[test]
fn uncorrectable_mistakes_are_errors_with_positions() {
    for (text, expected) in [
        ("", "1:1 error frontmatter"),
        ("# Only Markdown\n", "1:1 error frontmatter"),
        ("\n\ntext\n---\nname: x\n---\n", "3:1 error frontmatter"),
        ("---\nname: skill\ndescription: d\n", "1:1 error frontmatter"),
        ("---\n---\ntext\n", "1:1 error frontmatter"),
        ("---\n- a\n- b\n---\n", "2:1 error frontmatter"),
        ("---\njust words\n---\n", "2:1 error frontmatter"),
        ("---\nname: skill\n---\ntext\n", "2:1 error description"),
        ("---\nname: skill\ndescription: \"  \"\n---\n", "3:14 error description"),
        ("---\nname: skill\ndescription: {a: b}\n---\n", "3:14 error description"),
        ("---\nname: skill\nname: other\ndescription: d\n---\n", "3:1 error duplicate-key"),
        ("---\nname: skill\n\tdescription: d\n---\n", "2:7 error syntax"),
        ("---\nname: skill\ndescription: d\n  x: {\n---\n", "4:4 error syntax"),
        ("---\nname: !!python/object x\ndescription: d\n---\n", "2:23 error tag"),
        ("---\na: &a [*a]\ndescription: d\n---\n", "2:8 error alias"),
        ("---\nname: \u{1b}[2J\ndescription: d\n---\n", "2:7 error encoding"),
    ] {
        let (skill, problems) = read(raw(text));
        assert_eq!(skill, None, "{text}");
        let errors: Vec<String> = problems.into_iter().filter(|problem| problem.contains("error")).collect();
        assert_eq!(errors, [expected], "{text}");
    }
    let (skill, problems) = read(raw(b"---\nname: \xff\n---\n".to_vec()));
    assert_eq!((skill, problems), (None, vec!["2:7 error encoding".to_owned()]));
    let (skill, problems) = read(raw(b"\xff\xfe-\0-\0-\0".to_vec()));
    assert_eq!((skill, problems), (None, vec!["1:1 error encoding".to_owned()]));
}

#[test]
fn a_frontmatter_that_means_gigabytes_is_refused() {
    let mut text = "---\nname: skill\na0: &a0 [x]\n".to_owned();
    for level in 1..30 {
        let before = level - 1;
        let aliases = format!("*a{before},").repeat(10);
        text += &format!("a{level}: &a{level} [{aliases}]\n");
    }
    text += "description: d\n---\n";
    let (skill, problems) = read(raw(text));
    assert_eq!(skill, None);
    assert!(problems.iter().any(|problem| problem.ends_with("error too-large")), "{problems:?}");
    let deep = format!("---\ndescription: {}\n---\n", "[".repeat(100_000));
    let (skill, problems) = read(raw(deep));
    assert_eq!(skill, None);
    assert!(problems.iter().any(|problem| problem.contains("error")), "{problems:?}");
}

#[test]
fn the_text_is_preserved_without_control_characters() {
    let (_, _, content, problems) =
        became("---\nname: skill\ndescription: d\n---\n  first\n\ttab\n---\nb\u{2028}c\u{1b}[2J\u{85}d\n");
    assert_eq!(content, "  first\n\ttab\n---\nb\nc[2J\nd\n");
    assert_eq!(problems, ["5:1 warning control-characters"]);
    let (_, _, content, problems) = became("---\nname: skill\ndescription: d\n---\n\n \n");
    assert_eq!((content.as_str(), problems.as_slice()), ("", &["6:1 warning skill-empty".to_owned()][..]));
}

#[test]
fn hidden_characters_in_description_and_text_are_reported() {
    let text =
        "---\nname: skill\ndescription: Reads\u{200b} files\u{e0069}.\n---\n# Title\n\nUse \u{202e}it\u{2069}.\n";
    let (_, description, content, problems) = became(text);
    assert_eq!(problems, ["3:19 warning hidden-characters", "7:5 warning hidden-characters",]);
    // It is the author's text, and its digest covers all of it.
    assert!(description.contains('\u{e0069}') && content.contains('\u{202e}'));
}
