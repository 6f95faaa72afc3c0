//! The bridge together with the script that the guide for custom sidecars prints. It reads `command` and nothing else. And with the
//! one that we ship for images, which cannot verify requests either.

use std::fs;
use std::process::{Child, Stdio};

use serde_json::json;
use sympozium_api::run_plan::{PartName, ToolHandler};
use sympozium_api::skill_pack::InputMode;
use sympozium_harness::RunHarness;
use sympozium_harness::plan::tool;
use sympozium_ipc::door::ToolAnswer;
use sympozium_testkit::ipc_cases::has_program;
use sympozium_testkit::{command, skip};

use super::foreign::{answered, found};
use super::start;

const SCRIPT: &str = include_str!("../../../../ipc/tests/fixtures/seed-tool-executor.sh");
const SHIPPED: &str = include_str!("../../../../../images/tool-executor.sh");

/// A script while it runs.
struct SeedExecutor(Child);

impl SeedExecutor {
    fn start(run: &RunHarness, pack: &str, text: &str) -> Self {
        let volume = run.volume(pack);
        let volume = volume.to_str().expect("it is text");
        let script = run.at("tool-executor.sh");
        fs::write(&script, text.replace("/ipc/", &format!("{volume}/"))).expect("a script");
        let child = command("bash")
            .arg(script)
            .env("SYMPOZIUM_SKILL_PACK", pack)
            .env("SYMPOZIUM_IPC_DIR", volume)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        Self(child)
    }
}

impl Drop for SeedExecutor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program that shows its words, and what it reads, and has an exit code of its own.
const SHOW: &str = r#"printf '<%s>' "$@"; printf '|'; cat; exit 7"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_declared_tool_runs_on_the_printed_script() {
    for name in ["bash", "jq"] {
        if !has_program(name) {
            skip!("no {name}");
        }
    }
    let hostile = "it's $(id) `id` \\ \"x\" ; exit 0 #";
    for (input_mode, read) in [(InputMode::Args, ""), (InputMode::Stdin, r#"{"note":"a 'b' $(c)"}"#)] {
        let run = start(|plan| {
            let declared = tool(plan, "list_unhealthy_pods", Some("cluster"));
            declared.parameters = serde_json::from_value(json!({ "type": "object" })).expect("a schema");
            declared.acts = ToolHandler::Program {
                part: PartName("skill-cluster".to_owned()),
                exec: ["sh", "-c", SHOW, "show"].map(str::to_owned).to_vec(),
                input_mode,
                positional_args: vec!["what".to_owned()],
            };
        });
        let _executor = SeedExecutor::start(&run, "cluster", SCRIPT);
        let agent = run.agent().await;
        let arguments = json!({ "what": hostile, "note": "a 'b' $(c)" });
        let answer = agent.call("list_unhealthy_pods", arguments).await;
        let expected = ToolAnswer::Command {
            exit_code: 7,
            stdout: format!("<--><{hostile}>|{read}"),
            stderr: String::new(),
            timed_out: false,
            truncated: false,
        };
        assert_eq!(answer, Ok(expected), "{}", run.log());
    }
}

/// Neither can verify a request, so that anything foreign would end the run: nothing that they do is.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_an_honest_script_does_ends_the_run() {
    for name in ["bash", "jq"] {
        if !has_program(name) {
            skip!("no {name}");
        }
    }
    for script in [SCRIPT, SHIPPED] {
        let run = start(|_| ());
        let _executor = SeedExecutor::start(&run, "tickets", script);
        let agent = run.agent().await;
        let large = "head -c 51200 /dev/zero | tr '\\0' a";
        for _ in 0..3 {
            let answers = tokio::join!(
                agent.execute("tickets", "echo a"),
                agent.execute("tickets", large),
                agent.execute("tickets", "exit 7"),
                agent.call("execute_command", json!({ "target": "tickets", "command": "sleep 5", "timeout": 1 })),
            );
            for answer in [answers.0, answers.1, answers.2, answers.3] {
                assert!(matches!(answer, Ok(ToolAnswer::Command { .. })), "{answer:?}: {}", run.log());
            }
        }
        agent.finish("done").await;
        drop(agent);
        assert_eq!(found(&answered(run).await), []);
    }
}
