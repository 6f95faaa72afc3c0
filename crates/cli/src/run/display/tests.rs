//! Whole runs as the user sees them.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sympozium_api::digest::digest;
use sympozium_api::names::Digest;
use sympozium_api::origin::Origin;
use sympozium_api::text::is_visible;
use sympozium_bridge::calls::ARGUMENTS_DOMAIN;
use sympozium_exec::guarantee::{Layer, Profile};
use sympozium_ipc::receipt::{Actor, CallDecision, Event as Noted, Outcome as Ended, OutputSize, Receipt};

use super::*;

const DIGEST: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";

/// A display that is fed event by event, and the lines that it returned.
struct Harness {
    display: RunDisplay,
    now_ms: u64,
    receipts: u64,
    lines: Vec<Line>,
}

/// Policies and packs of different origins.
fn origins() -> Vec<ObjectOrigin> {
    let file = |path: &str| Origin::File { path: path.into() };
    [
        ("SympoziumPolicy", "default", Origin::Shipped),
        ("SkillPack", "k8s-ops", Origin::Shipped),
        ("SkillPack", "notes", file("skills/notes/SKILL.md")),
        ("SympoziumPolicy", "floor", file("/etc/floor.yaml")),
    ]
    .map(|(kind, name, from)| ObjectOrigin { kind: kind.to_owned(), name: name.to_owned(), from })
    .into()
}

impl Harness {
    fn new() -> Self {
        Self::with(Detail::All)
    }

    fn with(detail: Detail) -> Self {
        let mut told = Self {
            display: RunDisplay::new(detail, sympozium_runs::TargetFlags::local()),
            now_ms: 1_000_000,
            receipts: 0,
            lines: Vec::new(),
        };
        told.emit(Event::Planned {
            run: "run-3f2a1b9c".to_owned(),
            uid: "3f2a1b9c-0000-4000-8000-000000000000".to_owned(),
            agent: "assistant".to_owned(),
            model: "anthropic/claude-sonnet".to_owned(),
            skills: vec!["k8s-ops".to_owned(), "notes".to_owned()],
            origins: origins(),
            plan: Digest::new(DIGEST),
            directory: Some("/state/runs/3f2a".into()),
            workspace: Some("/state/runs/3f2a/workspace".into()),
        });
        told
    }

    fn started() -> Self {
        let mut told = Self::new();
        for part in ["agent", "ipc-bridge", "skill-k8s-ops"] {
            told.emit(isolated_event(part));
        }
        told.wait(320).emit(Event::Phase { phase: BridgePhase::Working });
        told
    }

    fn emit(&mut self, event: Event) -> &mut Self {
        let at_ms = self.now_ms;
        let lines = self.display.handle_event(&TimedEvent { at_ms, event });
        self.lines.extend(lines);
        self
    }

    fn wait(&mut self, milliseconds: u64) -> &mut Self {
        self.now_ms += milliseconds;
        let lines = self.display.tick(self.now_ms);
        self.lines.extend(lines);
        self
    }

    fn line(&mut self, line: Value) -> &mut Self {
        self.emit(Event::Transcript { line })
    }

    fn receipt(&mut self, event: Noted) -> &mut Self {
        let number = self.receipts;
        self.receipts += 1;
        let receipt = Receipt { number, previous: Digest::new(DIGEST), at_ms: self.now_ms, event };
        self.emit(Event::Receipt { receipt: Box::new(receipt) })
    }

    fn end(&mut self, outcome: RunEnd) -> &mut Self {
        self.emit(Event::Ended {
            outcome,
            usage: Usage {
                model_requests: 3,
                input_tokens: 12_345,
                output_tokens: 678,
                estimated: false,
                tool_calls: 4,
            },
            leftovers: Vec::new(),
        })
    }

    fn text(&self, columns: Option<usize>) -> String {
        let lines = self.lines.iter();
        lines.map(|it| it.render(columns, false)).collect()
    }
}

fn isolated_event(part: &str) -> Event {
    let layers = Layer::ALL.into_iter().filter(|it| *it != Layer::SandboxKernel);
    let layers: BTreeMap<_, _> = layers.map(|layer| (layer, "v1".to_owned())).collect();
    Event::Isolated { part: part.to_owned(), report: Box::new(IsolationReport::new(Profile::HostRoot, layers)) }
}

fn calling(text: &str, calls: &[(&str, &str, Value)]) -> Value {
    let calls: Vec<_> = calls
        .iter()
        .map(|(id, tool, input)| json!({"type": "tool_use", "id": id, "name": tool, "input": input}))
        .collect();
    json!({"kind": "answer", "round": 1, "text": text, "message": {"role": "assistant", "content": calls}})
}

fn called(call: u64, tool: &str, pack: Option<&str>, arguments: &Value, decided: CallDecision) -> Noted {
    Noted::Called {
        call,
        tool: tool.to_owned(),
        pack: pack.map(str::to_owned),
        arguments: digest(ARGUMENTS_DOMAIN, arguments).unwrap(),
        gate: None,
        decided,
        reason: (decided == CallDecision::Denied).then(|| "the policy of this run denies it".to_owned()),
    }
}

fn acted(call: u64, outcome: Ended, duration_ms: u64) -> Noted {
    Noted::Acted {
        call,
        by: Actor::Skill,
        action: Digest::new(DIGEST),
        outcome,
        output: OutputSize::default(),
        duration_ms,
        isolation: None,
    }
}

fn question() -> Question {
    Question {
        approval: "ask-1".to_owned(),
        tool: "execute_command".to_owned(),
        pack: Some("k8s-ops".to_owned()),
        action: Digest::new(DIGEST),
        shown: "tool: execute_command of k8s-ops\nshell: kubectl delete pod web-0".to_owned(),
        deadline_ms: 2_000_000,
        run_scope: true,
    }
}

fn answered() -> RunEnd {
    RunEnd::Succeeded { answer: "All is well.".to_owned() }
}

/// A run with most kinds of events.
fn eventful_run() -> Harness {
    let mut told = Harness::started();
    let get = json!({"command": "kubectl", "args": ["get", "pods", "-A"], "target": "k8s-ops"});
    let delete = json!({"command": "kubectl delete pod web-0"});
    let read = json!({"path": "/workspace/notes.md"});
    let fetch = json!({"url": "https://example.com/"});
    told.line(calling(
        "I look at the pods first.\nThen at the notes.",
        &[("a", "execute_command", get.clone()), ("b", "read_file", read.clone())],
    ));
    told.receipt(called(1, "execute_command", Some("k8s-ops"), &get, CallDecision::Allowed));
    told.receipt(called(2, "read_file", None, &read, CallDecision::Allowed));
    told.wait(40).receipt(acted(2, Ended::Done, 3));
    told.wait(400).receipt(acted(1, Ended::Exited { code: 1 }, 441));
    told.line(calling("", &[("c", "fetch_url", fetch.clone()), ("d", "execute_command", delete.clone())]));
    told.receipt(called(3, "fetch_url", None, &fetch, CallDecision::Denied));
    told.receipt(called(4, "execute_command", Some("k8s-ops"), &delete, CallDecision::Waiting));
    told.emit(Event::Phase { phase: BridgePhase::Waiting });
    told.emit(Event::Asked { question: question() });
    told.wait(9_000).emit(Event::Answered {
        approval: "ask-1".to_owned(),
        decision: Some(Decision::Approved),
        by: Some("ada".to_owned()),
    });
    told.emit(Event::Phase { phase: BridgePhase::Working });
    told.wait(2_000).receipt(acted(4, Ended::TimedOut, 2_000));
    told.receipt(Noted::Model {
        request: 3,
        status: Some(429),
        sent_bytes: 1,
        received_bytes: 1,
        input_tokens: None,
        output_tokens: None,
        duration_ms: 120,
        error: None,
    });
    told.emit(Event::Warning { text: "the workspace is on a file system without quotas".to_owned() });
    told.line(json!({"kind": "answer", "round": 3, "text": "All is well.", "message": {"role": "assistant", "content": "All is well."}}));
    told.wait(1_000).end(answered());
    told
}

#[test]
fn a_run_with_most_of_what_can_happen() {
    insta::assert_snapshot!("wide", eventful_run().text(Some(100)));
    insta::assert_snapshot!("piped", eventful_run().text(None));
    insta::assert_snapshot!("narrow", eventful_run().text(Some(20)));
}

#[test]
fn programs_that_read_elsewhere_let_a_person_see_what_they_must() {
    let mut told = Harness::with(Detail::Needed);
    told.emit(Event::Asked { question: question() });
    told.emit(Event::Answered { approval: "ask-1".to_owned(), decision: Some(Decision::Expired), by: None });
    told.emit(Event::Warning { text: "weak".to_owned() });
    told.end(answered());
    insta::assert_snapshot!(told.text(Some(80)), @r"
      asks  ask-1: may execute_command in k8s-ops do this?
      ask-1 expired: not answered in time, which counts as denied
    warning: weak
    ");
}

#[test]
fn arguments_may_come_before_or_after_their_receipt() {
    let arguments = json!({"command": "id"});
    let said = || calling("", &[("a", "execute_command", arguments.clone())]);
    let receipts = |told: &mut Harness| {
        told.receipt(called(1, "execute_command", Some("p"), &arguments, CallDecision::Allowed));
        told.receipt(acted(1, Ended::Exited { code: 0 }, 12));
    };
    let expected = "  ok           12 ms  execute_command in p  id\n";
    let mut before = Harness::started();
    before.lines.clear();
    before.line(said());
    receipts(&mut before);
    assert_eq!(before.text(None), expected);
    let mut after = Harness::started();
    after.lines.clear();
    receipts(&mut after);
    assert_eq!((after.text(None).as_str(), after.display.next_tick_ms().is_some()), ("", true));
    after.line(said());
    assert_eq!(after.text(None), expected);
    // Everything at once, the result of the call before its receipts.
    let mut late = Harness::started();
    late.lines.clear();
    late.line(said());
    late.line(json!({"kind": "result", "id": "a", "tool": "execute_command", "failed": false, "text": "x"}));
    receipts(&mut late);
    late.wait(calls::ARGUMENTS_TIMEOUT_MS);
    assert_eq!(late.text(None), expected);
    let mut never = Harness::started();
    never.lines.clear();
    receipts(&mut never);
    never.wait(calls::ARGUMENTS_TIMEOUT_MS);
    assert_eq!(never.text(None), "  ok           12 ms  execute_command in p\n");
    assert_eq!(never.display.next_tick_ms(), None);
}

#[test]
fn a_call_that_the_agent_itself_refuses_is_shown_once() {
    let mut told = Harness::started();
    told.lines.clear();
    told.line(calling("", &[("a", "become_root", json!({"why": "fun"}))]));
    told.line(json!({"kind": "result", "id": "a", "tool": "become_root", "failed": true, "text": "\nthere is no such tool\nmore"}));
    assert_eq!(told.text(None), "");
    told.wait(calls::ARGUMENTS_TIMEOUT_MS);
    assert_eq!(
        told.text(None),
        "  refused             become_root  why=fun\n                      there is no such tool\n"
    );
    // A refusal by the bridge is printed from its receipt; the result adds nothing.
    let mut told = Harness::started();
    told.lines.clear();
    let arguments = json!({"command": "id"});
    told.line(calling("", &[("a", "execute_command", arguments.clone())]));
    told.receipt(called(1, "execute_command", None, &arguments, CallDecision::Refused));
    told.line(json!({"kind": "result", "id": "a", "tool": "execute_command", "failed": true, "text": "busy"}));
    told.wait(calls::ARGUMENTS_TIMEOUT_MS);
    assert_eq!(told.text(None), "  refused             execute_command  id\n");
}

#[test]
fn calls_that_never_ended_are_shown_at_the_end() {
    let mut told = Harness::started();
    told.lines.clear();
    let arguments = json!({"command": "sleep 100"});
    told.line(calling("", &[("a", "execute_command", arguments.clone())]));
    told.receipt(called(1, "execute_command", Some("p"), &arguments, CallDecision::Allowed));
    told.line(
        json!({"kind": "answer", "text": "Half of it.", "message": {"role": "assistant", "content": "Half of it."}}),
    );
    told.wait(61_000).end(RunEnd::Cancelled);
    insta::assert_snapshot!(told.text(Some(60)), @r"
      cancelled           execute_command in p  sleep 100
      > Half of it.
    cancelled after 1 min 01 s: a user ended it
      used       3 model requests, 12,345 tokens in, 678 out, 4
                 tool calls
      workspace  /state/runs/3f2a/workspace
      look at it sympozium show run-3f2a1b9c
      verify it  sympozium audit verify run-3f2a1b9c
    ");
}

#[test]
fn why_a_run_was_refused_is_shown_with_its_hint() {
    let mut told = Harness::new();
    told.lines.clear();
    told.emit(isolated_event("agent"));
    told.wait(5).emit(Event::Ended {
        outcome: RunEnd::Refused { why: "user namespaces are blocked\nhint: sysctl -w kernel.x=1\u{1b}[2J".to_owned() },
        usage: Usage::default(),
        leftovers: vec!["process 7".to_owned()],
    });
    insta::assert_snapshot!(told.text(Some(80)), @r"
      isolated by: namespaces, landlock, seccomp, cgroup v1
    refused after 5 ms: user namespaces are blocked
      hint: sysctl -w kernel.x=1\u{1b}[2J
      used       0 model requests, 0 tokens in, 0 out, 0 tool calls
      workspace  /state/runs/3f2a/workspace
      look at it sympozium show run-3f2a1b9c
      verify it  sympozium audit verify run-3f2a1b9c
    warning: not removed at the end of the run: process 7
    ");
}

#[test]
fn the_status_says_what_is_going_on() {
    let status = |told: &Harness| {
        let line = told.display.status_line(told.now_ms);
        line.map(|it| it.render(Some(60), false)).unwrap_or_default()
    };
    let mut told = Harness::new();
    assert_eq!(status(told.wait(2_100)), "2 s  starting\n");
    told.emit(Event::Phase { phase: BridgePhase::Working });
    assert_eq!(status(&told), "2 s  working\n");
    told.emit(Event::Progress { text: "thinking\u{1b}[31m hard".to_owned() });
    told.emit(Event::Usage { usage: Usage { input_tokens: 1_000, output_tokens: 1, ..Usage::default() } });
    assert_eq!(status(&told), "2 s  thinking\\u{1b}[31m hard  (1,001 tokens)\n");
    let arguments = json!({"command": "make"});
    told.line(calling("", &[("a", "execute_command", arguments.clone())]));
    told.receipt(called(1, "execute_command", Some("p"), &arguments, CallDecision::Waiting));
    told.wait(3_000);
    assert_eq!(status(&told), "3 s  execute_command in p make  (1,001 tokens)\n");
    told.emit(Event::Asked { question: question() });
    assert_eq!(status(&told), "5 s  waiting for an answer to ask-1  (1,001 tokens)\n");
    told.display.set_ending();
    assert_eq!(status(&told), "5 s  ending  (1,001 tokens)\n");
    told.end(answered());
    assert_eq!(status(&told), "");
}

#[test]
fn nothing_of_a_model_is_a_line_of_ours_or_moves_the_cursor() {
    let hostile = "x\u{1b}[2J\r\n  ok 1 ms  forged\u{202e}\u{9b}A\u{2028}y\tz\u{8}";
    let mut told = Harness::started();
    let from = told.lines.len();
    let arguments = json!({"command": hostile, hostile: hostile});
    told.line(calling(hostile, &[(hostile, hostile, arguments.clone())]));
    told.receipt(called(1, hostile, Some(hostile), &arguments, CallDecision::Allowed));
    told.receipt(acted(1, Ended::Failed { why: hostile.to_owned() }, 1));
    told.line(json!({"kind": "note", "text": hostile}));
    told.line(json!({"kind": "result", "id": hostile, "failed": true, "text": hostile}));
    told.emit(Event::Progress { text: hostile.to_owned() });
    told.emit(Event::Warning { text: hostile.to_owned() });
    told.emit(Event::Answered { approval: hostile.to_owned(), decision: None, by: Some(hostile.to_owned()) });
    told.end(RunEnd::Failed { why: hostile.to_owned() });
    for columns in [None, Some(20), Some(80)] {
        let texts = told.lines[from..].iter().map(|it| it.render(columns, false));
        for text in texts {
            let shown = text.strip_suffix('\n').unwrap();
            let is_fine = |it: char| it == '\n' || is_visible(it);
            assert!(shown.chars().all(is_fine), "{shown:?}");
            let is_forged = |it: &str| it.starts_with("  ok ") && it.contains("forged");
            assert!(!shown.lines().any(is_forged), "{shown:?}");
        }
    }
}

#[test]
fn what_the_model_says_is_cut() {
    let long = "line\n".repeat(100);
    assert_eq!(model_text_lines(&long).len(), MAX_TEXT_ROWS + 1);
    let text: String = model_text_lines(&"word ".repeat(10_000)).iter().map(|it| it.render(Some(40), false)).collect();
    assert_eq!(text.lines().count(), MAX_TEXT_ROWS + 1, "{text}");
}
