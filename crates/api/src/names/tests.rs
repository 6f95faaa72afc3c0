//! The two definitions of each syntax, function and pattern, agree.

use proptest::prelude::*;

use super::*;

#[test]
fn examples() {
    for (name, good) in
        [("a", true), ("my-agent.v2", true), ("", false), ("-a", false), ("a..b", false), ("A", false), ("a/b", false)]
    {
        assert_eq!(AgentName::new(name).check().is_ok(), good, "{name:?}");
    }
    let error = AgentName::new("A".repeat(300)).check();
    assert_eq!(error, Err(InvalidText { text: "A".repeat(MAX_REPEATED_CHARS), what: "a name of an agent" }));
    assert!(AgentName::new("a".repeat(253)).check().is_ok());
    assert!(AgentName::new("a".repeat(254)).check().is_err());
}

proptest! {
    #[test]
    fn patterns_and_checks_agree(
        text in prop_oneof![
            r"[aA0\-._/*:]{0,8}",
            r"(\*\.|sha256:|/)?[a-fA-F0-9._/ -]{0,70}",
            r"\PC{0,6}",
            r"/[\x00-\x7f]{0,4}",
        ],
    ) {
        for (name, pattern, most, check) in ALL {
            let pattern = regex::Regex::new(pattern)?;
            let expected = text.chars().count() <= *most && pattern.is_match(&text);
            prop_assert_eq!(check(&text), expected, "{} on {:?}", name, text);
        }
    }
}
