//! Properties of every run and every policy.

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use sympozium_api::labels::SYSTEM_NAMESPACE;

use super::cases::all_changes;
use super::harness::{Harness, merged};
use crate::admit::violation::Findings;
use crate::admit::{Decision, MAX_FINDINGS, agents, decide, run_subject};
use crate::policy::tests::{any_effective, any_policy};
use crate::policy::{EffectivePolicy, PolicyDefaults};

/// Texts that have caused bugs elsewhere.
const HOSTILE: &[&str] = &[
    "",
    " ",
    "*",
    "..",
    "/",
    "//",
    "/ipc",
    "a/b",
    "\u{0}",
    "\u{202e}x",
    "-1",
    "1e999",
    "9999999999999999999",
    "x:y@z",
    "PATH",
    "ünï",
    "𝕏",
    "a.b.c.d.e",
    "$(X)",
    "'; --",
    "\n",
    "0x7f",
    "https://",
    "[::1]",
    "Unconfined",
];

/// Harnesses of the cases, several merged, some texts in them replaced.
fn any_harness() -> impl Strategy<Value = Option<Harness>> {
    let changes = prop::collection::vec(any::<prop::sample::Index>(), 0..5);
    let replaced = prop::collection::vec((any::<prop::sample::Index>(), any_value()), 0..3);
    // Some of the hosts that generated policies list, and others.
    let address = prop::sample::select(
        &[
            "https://api.github.com/v1",
            "https://models.github.com",
            "http://db.team.svc/v1",
            "https://10.0.0.1",
            "https://api.openai.com/v1",
            "https://llm.example.com",
        ][..],
    );
    // Without a policy that lists it most of them deny the run.
    let address = prop::option::weighted(0.3, address);
    (changes, address, replaced).prop_map(|(changes, address, replaced)| {
        let all = all_changes();
        let address = address.map(|address| json!({ "run": { "model": { "baseURL": address } } }));
        let changes = changes.iter().map(|index| index.get(all).clone());
        let mut harness = merged(changes.chain(address));
        for (index, value) in replaced {
            let at = index.index(count(&harness));
            replace(&mut harness, at, value);
        }
        Harness::read(harness).ok()
    })
}

/// Mostly texts, because only they can be read wherever a text is expected.
fn any_value() -> impl Strategy<Value = Value> {
    let numbers = prop::sample::select(&[-1, 0, 1, 65_536, i64::MAX, i64::MIN][..]);
    prop_oneof![
        6 => prop::sample::select(HOSTILE).prop_map(Value::from),
        2 => numbers.prop_map(Value::from),
        1 => any::<bool>().prop_map(Value::from),
        1 => Just(Value::Array(Vec::new())),
        1 => Just(serde_json::json!({})),
        1 => any::<String>().prop_map(Value::from),
    ]
}

/// The number of leaf values.
fn count(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(count).sum::<usize>().max(1),
        Value::Object(fields) => fields.values().map(count).sum::<usize>().max(1),
        _ => 1,
    }
}

/// Replaces the leaf value of that number.
fn replace(value: &mut Value, mut at: usize, by: Value) {
    let parts: Vec<&mut Value> = match value {
        Value::Array(items) if !items.is_empty() => items.iter_mut().collect(),
        Value::Object(fields) if !fields.is_empty() => fields.values_mut().collect(),
        _ => {
            *value = by;
            return;
        }
    };
    for part in parts {
        let inside = count(part);
        if at < inside {
            return replace(part, at, by);
        }
        at -= inside;
    }
}

fn under<'a>(input: &crate::admit::Input<'a>, policy: EffectivePolicy) -> Decision<'a> {
    let mut findings = Findings::default();
    let agent = agents::resolve(input, &run_subject(input), &mut findings);
    decide(input, agent, policy, &PolicyDefaults::default(), findings)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_stricter_policy_never_admits_more(harness in any_harness(), wide in any_effective(), other in any_effective()) {
        let Some(harness) = harness else { return Ok(()) };
        let packs = harness.packs();
        let input = harness.input(&packs);
        let narrow = wide.meet(&other);
        let (Decision::Admitted(narrow), wide) = (under(&input, narrow), under(&input, wide)) else {
            return Ok(());
        };
        let Decision::Admitted(wide) = wide else {
            return Err(TestCaseError::fail(format!("only the stricter policy admits: {wide:?}")));
        };
        prop_assert_eq!(narrow.tools.len(), wide.tools.len());
        for (narrow, wide) in narrow.tools.iter().zip(&wide.tools) {
            prop_assert!(narrow.action <= wide.action, "{narrow:?} {wide:?}");
        }
    }

    #[test]
    fn denying_all_else_never_admits_more(harness in any_harness(), mut spec in any_policy()) {
        let Some(harness) = harness else { return Ok(()) };
        let packs = harness.packs();
        let input = harness.input(&packs);
        let mut with = |deny_all| {
            if let Some(network) = &mut spec.network_policy {
                network.deny_all = deny_all;
            }
            under(&input, EffectivePolicy::from_named(&spec, SYSTEM_NAMESPACE))
        };
        let (narrow, wide) = (with(true), with(false));
        if matches!(narrow, Decision::Admitted(_)) {
            prop_assert!(matches!(wide, Decision::Admitted(_)), "only the stricter policy admits: {wide:?}");
        }
    }

    #[test]
    fn admitting_again_changes_nothing(harness in any_harness()) {
        let Some(mut harness) = harness else { return Ok(()) };
        let (_, warnings, Some(run)) = harness.decide() else { return Ok(()) };
        harness.run = run.clone();
        prop_assert_eq!(harness.decide(), (Vec::new(), warnings, Some(run)));
    }

    #[test]
    fn decisions_are_bounded_and_depend_on_the_input_only(harness in any_harness()) {
        let Some(harness) = harness else { return Ok(()) };
        let first = harness.decide();
        prop_assert!(first.0.len() <= MAX_FINDINGS && first.1.len() <= MAX_FINDINGS);
        for reason in first.0.iter().chain(&first.1) {
            prop_assert!(!reason.message.is_empty() && !reason.hint.is_empty());
            prop_assert!(reason.to_string().chars().all(|letter| !letter.is_control()), "{reason}");
        }
        prop_assert_eq!(first, harness.decide());
    }
}

/// Without this the properties above could hold because nothing is ever admitted.
#[test]
fn enough_runs_are_admitted() {
    let mut runner = TestRunner::deterministic();
    let (mut admitted, mut under_two) = (0, 0);
    for _ in 0..300 {
        let any = (any_harness(), any_effective(), any_effective());
        let (harness, wide, other) = any.new_tree(&mut runner).expect("a harness").current();
        let Some(harness) = harness else {
            continue;
        };
        admitted += u32::from(harness.decide().2.is_some());
        let packs = harness.packs();
        let narrow = under(&harness.input(&packs), wide.meet(&other));
        under_two += u32::from(matches!(narrow, Decision::Admitted(_)));
    }
    assert!(admitted > 60 && under_two > 20, "{admitted} and {under_two} of 300");
}
