//! The bridge together with the script that the guide for custom sidecars prints. It reads `command` and nothing else.

use std::fs;
use std::process::{Child, Stdio};

use serde_json::json;
use sympozium_api::run_plan::{Acts, PartName};
use sympozium_api::skill_pack::InputMode;
use sympozium_ipc::door::ToolAnswer;
use sympozium_testkit::ipc_cases::has_program;
use sympozium_testkit::{command, skip};

use super::world::{World, tool};

const SCRIPT: &str = include_str!("../../../../ipc/tests/fixtures/seed-tool-executor.sh");

/// The script while it runs.
struct SeedExecutor(Child);

impl SeedExecutor {
    fn start(world: &World) -> Self {
        let volume = world.volume("cluster");
        let volume = volume.to_str().expect("it is text");
        let script = world.at("tool-executor.sh");
        fs::write(&script, SCRIPT.replace("/ipc/", &format!("{volume}/"))).expect("a script");
        let child = command("bash")
            .arg(script)
            .env("SYMPOZIUM_SKILL_PACK", "cluster")
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
        let world = World::start(|plan| {
            let declared = tool(plan, "list_unhealthy_pods", Some("cluster"));
            declared.parameters = serde_json::from_value(json!({ "type": "object" })).expect("a schema");
            declared.acts = Acts::Program {
                part: PartName("skill-cluster".to_owned()),
                exec: ["sh", "-c", SHOW, "show"].map(str::to_owned).to_vec(),
                input_mode,
                positional_args: vec!["what".to_owned()],
            };
        })
        .await;
        let _executor = SeedExecutor::start(&world);
        let agent = world.agent().await;
        let arguments = json!({ "what": hostile, "note": "a 'b' $(c)" });
        let answer = agent.call("list_unhealthy_pods", arguments).await;
        let expected = ToolAnswer::Command {
            exit_code: 7,
            stdout: format!("<--><{hostile}>|{read}"),
            stderr: String::new(),
            timed_out: false,
            truncated: false,
        };
        assert_eq!(answer, Ok(expected), "{}", world.log());
    }
}
