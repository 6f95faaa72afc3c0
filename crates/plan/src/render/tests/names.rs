//! Names of objects and values of labels.

use std::collections::BTreeSet;

use proptest::prelude::*;
use sympozium_api::names::LabelName;
use sympozium_api::run_plan::RunIdentity;

use super::checks::is_label_value;
use crate::render::names::{is_run_object_name, label_value, object_name};

fn run(name: &str, uid: &str) -> RunIdentity {
    RunIdentity {
        namespace: "team".into(),
        name: name.into(),
        uid: uid.into(),
        agent_kind: "Agent".to_owned(),
        agent: "a".into(),
        agent_id: String::new(),
        session_key: String::new(),
        parent: None,
    }
}

#[test]
fn a_name_begins_with_the_runs_and_ends_with_its_uid_and_what_it_is_for() {
    let uid = "0123abcd-4567-489a-8bcd-ef0123456789";
    let digits = "0123abcd4567489a8bcdef0123456789";
    let rows = [
        ("short", format!("short-{digits}-plan")),
        // Truncated where a dash would be last, and with a dot inside.
        ("fifteen-letter.-and-more", format!("fifteen-letter-{digits}-plan")),
        ("a.b", format!("a-b-{digits}-plan")),
        (&"x".repeat(253), format!("{}-{digits}-plan", "x".repeat(16))),
    ];
    for (name, expected) in rows {
        assert_eq!(object_name(&run(name, uid), "plan"), expected);
    }
}

/// Every text that is not a UUID as the API server writes it is hashed: two spellings of one are two runs.
#[test]
fn other_uids_are_hashed() {
    let uids = [
        "0123abcd-4567-489a-8bcd-ef0123456789",
        "0123ABCD-4567-489A-8BCD-EF0123456789",
        "0123abcd4567489a8bcdef0123456789",
        "0123abcd-4567-489a-8bcd-ef012345678",
        "1",
        "--",
    ];
    let names: BTreeSet<String> = uids.iter().map(|uid| object_name(&run("r", uid), "plan")).collect();
    assert_eq!(names.len(), uids.len());
    assert!(names.iter().all(|name| name.len() == "r-".len() + 32 + "-plan".len()));
}

#[test]
fn a_label_has_the_name_or_what_fits_of_it_and_its_hash() {
    let long = "a".repeat(64);
    let cut = label_value(&long);
    assert_eq!(label_value("a.b-c"), "a.b-c");
    assert_eq!(label_value(&long[..63]), long[..63]);
    assert_eq!(cut.len(), 63);
    assert!(cut.starts_with(&long[..46]), "{cut}");
    assert_ne!(label_value(&("a".repeat(63) + "b")), cut);
}

proptest! {
    #[test]
    fn names_are_labels_and_differ_by_uid_and_word(
        names in proptest::array::uniform2("[a-z0-9]([-.]{0,3}[a-z0-9]){0,120}"),
        uids in proptest::array::uniform2("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-8[0-9a-f]{3}-[0-9a-f]{12}|[A-Za-z0-9-]{1,64}"),
        words in proptest::array::uniform2("[a-z0-9]{1,13}"),
    ) {
        let made = [0, 1].map(|number: usize| {
            object_name(&run(&names[number], &uids[number]), &words[number])
        });
        for name in &made {
            prop_assert_eq!(LabelName::new(name.clone()).check(), Ok(()));
        }
        if uids[0] != uids[1] || words[0] != words[1] {
            prop_assert_ne!(&made[0], &made[1]);
        }
    }

    #[test]
    fn every_text_has_a_value_for_a_label(text in "\\PC{1,100}|[a-z.-]{1,300}") {
        let value = label_value(&text);
        prop_assert!(is_label_value(&value), "{}", value);
        if value.len() < text.len() || !is_label_value(&text) {
            prop_assert_ne!(&value, &label_value(&format!("{text}x")));
        } else {
            prop_assert_eq!(value, text);
        }
    }
}

#[test]
fn names_of_runs_are_known_by_their_form() {
    let digits = "0123456789abcdef0123456789abcdef";
    for (name, expected) in [
        (format!("r-{digits}"), true),
        (format!("r-{digits}-plan"), true),
        (format!("sb-r-{digits}"), true),
        (format!("a-b-{digits}-skill0token"), true),
        (digits.to_owned(), false),
        (format!("{digits}-plan"), false),
        (format!("r-{digits}-a-b"), false),
        (format!("r-{}", &digits[1..]), false),
        (format!("r-{}", digits.to_uppercase()), false),
        ("anthropic-key".to_owned(), false),
    ] {
        assert_eq!(is_run_object_name(&name), expected, "{name}");
    }
}
