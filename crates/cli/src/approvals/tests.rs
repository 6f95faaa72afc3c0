//! Tests of the selection of questions.

use std::path::PathBuf;

use sympozium_api::names::Digest;
use sympozium_ipc::run_api::{BridgePhase, Usage};

use super::pending::display_name;
use super::select::{Selection, select};
use sympozium_local::record::{FORMAT, LocalRunRecord};
use sympozium_local::state::StateDirectory;
use sympozium_runs::{PendingQuestion, Question};

const FIRST: &str = "aaaaaaaa-0000-4000-8000-000000000001";
const SECOND: &str = "bbbbbbbb-0000-4000-8000-000000000002";

fn digest(letter: char) -> Digest {
    Digest::from(format!("sha256:{}", letter.to_string().repeat(64)).as_str())
}

/// Questions of a run.
fn pending_questions(
    state: &StateDirectory,
    uid: &str,
    name: &str,
    questions: &[(&str, char)],
) -> Vec<PendingQuestion> {
    let directory = state.run_directory(uid);
    drop(directory.create().unwrap());
    let run = LocalRunRecord {
        format: FORMAT,
        uid: uid.into(),
        name: name.into(),
        namespace: "default".into(),
        agent: "assistant".into(),
        task: "task".into(),
        model: "scripted/model".into(),
        skills: Vec::new(),
        origins: Vec::new(),
        plan: digest('0'),
        pid: 1,
        started_ms: 1,
        ended_ms: None,
        phase: BridgePhase::Waiting,
        workspace: Some(PathBuf::from("/workspace")),
        usage: Usage::default(),
        cost: None,
        outcome: None,
        isolation: Default::default(),
        leftovers: None,
    };
    directory.write_record(&run).unwrap();
    let one = |(approval, letter): &(&str, char)| PendingQuestion {
        run: run.name.clone(),
        uid: run.uid.clone(),
        key: (*approval).into(),
        question: Question {
            approval: (*approval).into(),
            tool: "execute_command".into(),
            pack: None,
            action: digest(*letter),
            shown: "tool: execute_command".into(),
            deadline_ms: 0,
            run_scope: false,
        },
    };
    questions.iter().map(one).collect()
}

fn select_names(words: &[&str], actions: &[Digest], all: bool) -> Result<Vec<String>, String> {
    let temporary = tempfile::tempdir().unwrap();
    let state = StateDirectory::open_at(temporary.path().join("s")).unwrap();
    let mut all_pending = pending_questions(&state, FIRST, "one", &[("q1", '1'), ("q2", '2')]);
    all_pending.extend(pending_questions(&state, SECOND, "two", &[("q1", '3')]));
    pending_questions(&state, "cccccccc-0000-4000-8000-000000000003", "none", &[]);
    let words: Vec<String> = words.iter().map(|it| (*it).to_owned()).collect();
    let wanted = Selection { words: &words, actions, all };
    let find = |name: &str| Ok(state.find_run(name)?.1.uid);
    match select(all_pending, &find, &wanted) {
        Ok(found) => Ok(found.iter().map(display_name).collect()),
        Err(failure) => Err(format!("{failure:?}").lines().next().unwrap_or_default().to_owned()),
    }
}

#[test]
fn unambiguous_names_select_questions() {
    let names = |all: &[&str]| Ok(all.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>());
    let (q1, q2, q3) = ("q1 of one (aaaaaaaa)", "q2 of one (aaaaaaaa)", "q1 of two (bbbbbbbb)");
    assert_eq!(select_names(&["two"], &[], false), names(&[q3]));
    assert_eq!(select_names(&["bbbb"], &[], false), names(&[q3]));
    assert_eq!(select_names(&["one", "q1"], &[], false), names(&[q1]));
    assert_eq!(select_names(&["one", "q2", "q1"], &[], false), names(&[q1, q2]));
    assert_eq!(select_names(&["q2"], &[], false), names(&[q2]));
    assert_eq!(select_names(&["one"], &[digest('2')], false), names(&[q2]));
    assert_eq!(select_names(&[], &[digest('3')], false), names(&[q3]));
    assert_eq!(select_names(&["one"], &[], true), names(&[q1, q2]));
    assert_eq!(select_names(&[], &[], true), names(&[q1, q2, q3]));
}

#[test]
fn ambiguous_or_unknown_names_select_nothing() {
    for (words, actions, message) in [
        (&["one"][..], &[][..], "2 questions are pending"),
        (&[], &[], "3 questions are pending"),
        (&["q1"], &[], "several runs have a pending question `q1`"),
        (&["one", "q3"], &[], "there is no pending question `q3`"),
        (&["none"], &[], "run `none` has no pending question"),
        (&["nowhere"], &[], "there is no run `nowhere`"),
        (&["two"], &[digest('1')], "there is no pending question about action sha256:1111"),
    ] {
        let error = select_names(words, actions, false).unwrap_err();
        assert!(error.contains(message), "{words:?}: {error}");
    }
}
