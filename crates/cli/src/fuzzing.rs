//! The body of the fuzz target of this crate; `make fuzz` and the tests call it. The same module of `sympozium-exec`
//! documents its use.

use std::cell::RefCell;

use sympozium_api::text::is_visible;
use sympozium_manifests::load::Budget;
use sympozium_manifests::planning::plan_session;
use sympozium_manifests::sources::decode;
use sympozium_manifests::validate::{Schemas, Session};
use sympozium_plan::explain::{compare, explain};
use sympozium_plan::plan::Planned;
use unicode_width::UnicodeWidthStr as _;

use crate::explain::text;
use crate::page::WIDTH;
use crate::planning::NIL_UID;

/// A target: returns if every property holds for `data`, and panics otherwise.
pub type Target = fn(data: &[u8]);

/// Every target by its name, which is also the name of its corpus and of its program in `fuzz/`.
pub const TARGETS: &[(&str, Target)] = &[("explanation", explanation)];

/// Nodes that a file may have. With the product's limit, a million, a file of aliases takes a second, and fuzzing makes
/// no progress.
const MAX_NODES: usize = 10_000;

// Built once per thread: building them is the most expensive part, and they do not change.
thread_local! {
    static SCHEMAS: RefCell<Schemas> = RefCell::default();
}

/// A file of manifests: the explanations of its runs fit the width, and have no character that a terminal acts on.
pub fn explanation(data: &[u8]) {
    let Ok(text) = decode(data.to_vec()) else {
        return;
    };
    let mut session = Session::with_budget("default", Budget::with_nodes(MAX_NODES));
    session.add_text("fuzz.yaml".to_owned(), Ok(text));
    let planning = SCHEMAS.with_borrow_mut(|schemas| {
        let make = |planned: &Planned<'_>| Ok(explain(&planned.plan));
        plan_session(session, schemas, None, NIL_UID, make)
    });
    let page = text::render(&planning);
    for line in page.lines() {
        assert!(line.chars().all(is_visible), "{line:?}");
        assert!(line.width() <= WIDTH, "{line:?}");
    }
    for (_, explanation) in planning.admitted() {
        assert_eq!(compare(explanation, explanation).0, []);
    }
}

#[cfg(test)]
mod tests;
