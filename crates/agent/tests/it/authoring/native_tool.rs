//! The native tool of the guide, `count_words`, in a custom runner.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::json;
use sympozium_api::RunPlan;
use sympozium_gateway::run_api::local::NoScheduler;
use sympozium_testkit::model_server::{Answer, Reply, ToolCall};
use sympozium_testkit::static_build;

use super::bridge_tool::PLAIN;
use super::run::{RUNNER, answer, call_lines, planned};
use crate::harness::Harness;

/// The tool as the planner would write it.
const TOOL: &str = include_str!("count_words.json");

/// To be called before a run starts: it may have to be built, and the bridge does not wait for an agent that long.
fn example() -> PathBuf {
    static_build::program("agent-with-count-words").expect("the example is built")
}

fn plan() -> RunPlan {
    let mut plan = planned(PLAIN);
    plan.tools.push(serde_json::from_str(TOOL).expect("a tool"));
    plan
}

async fn counted(run: &mut Harness, program: impl AsRef<Path>, paths: &[PathBuf]) -> Vec<String> {
    for path in paths {
        let arguments = json!({ "path": path });
        run.model.push(Answer::tools([ToolCall::new("count_words", &arguments)]));
    }
    run.model.push(Reply::text("Counted."));
    assert_eq!(answer(run, program).await, "Counted.");
    run.last().result_texts()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_with_one_more_tool_counts_words_in_its_roots_only() {
    let example = example();
    let mut run = Harness::of(plan(), NoScheduler);
    let [notes, large, fifo] = ["notes.txt", "large", "fifo"].map(|name| run.at("workspace").join(name));
    fs::write(&notes, "the quick\nbrown fox\n\n jumps").expect("a file");
    let file = File::create(&large).expect("a file");
    file.set_len((64 << 20) + 1).expect("a sparse file");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).expect("a FIFO");
    std::os::unix::fs::symlink("/etc/passwd", run.at("workspace/link")).expect("a link");
    let link = run.at("workspace/link");
    let outside = PathBuf::from("/etc/passwd");
    let paths = [notes, large, fifo.clone(), link, outside];
    let shown = counted(&mut run, example, &paths).await;
    assert_eq!(shown[0], "3 lines, 5 words, 27 bytes");
    assert_eq!(shown[1], "Error: the file has more than 64 MiB; count a part of it with a command of a skill");
    let fifo = fifo.display();
    assert_eq!(shown[2], format!("Error: {fifo} is a FIFO, not a regular file"));
    for text in &shown[3..] {
        assert!(text.starts_with("Error: ") && !text.contains("root:"), "{text}");
    }
    let receipts = call_lines(&run);
    assert_eq!(receipts[..2], ["count_words - Allowed", "Agent Done"]);
    assert_eq!(receipts.len(), 10);
    for receipt in receipts[2..].chunks(2) {
        assert_eq!(receipt[0], "count_words - Allowed");
        assert!(receipt[1].starts_with("Agent Failed"), "{receipt:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_that_do_not_fit_get_no_permit() {
    let example = example();
    let mut run = Harness::of(plan(), NoScheduler);
    let bad = json!({ "path": "notes.txt", "unit": "pages" });
    run.model.push(Answer::tools([ToolCall::new("count_words", &bad)]));
    run.model.push(Reply::text("No."));
    answer(&mut run, example).await;
    let shown = run.last().result_texts().remove(0);
    assert!(shown.starts_with("Error: the arguments do not fit: ") && shown.contains("unit"), "{shown}");
    assert_eq!(call_lines(&run).len(), 1, "{:?}", call_lines(&run));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_native_tool_is_an_error() {
    let mut run = Harness::of(plan(), NoScheduler);
    let notes = run.at("workspace/notes.txt");
    let shown = counted(&mut run, RUNNER, &[notes]).await;
    assert_eq!(shown, ["Error: this release does not know how to act on `count_words`"]);
}
