//! The sidecar tool of the guide: `lookup_order`, in the real executor, in a root in which everything is where the image of the
//! guide has it.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use sympozium_exec::layout::{Bind, BindAccess};
use sympozium_exec::{Cancel, Config, Executor, Outcome, Profile, Request, RunError, StageProgram};
use sympozium_gateway::run_api::local::NoScheduler;
use sympozium_ipc::receipt::Event;
use sympozium_testkit::as_user::is_root;
use sympozium_testkit::model_server::{Answer, Reply, ToolCall};
use sympozium_testkit::static_build::{self, workspace_root};
use sympozium_testkit::{command, copy_program};

use super::run::{RUNNER, answer, call_lines, planned};
use crate::harness::Harness;

const PACK: &str = include_str!("../../../../../examples/tool-authoring/orders-pack.yaml");
const RUN: &str = include_str!("../../../../../examples/tool-authoring/run.yaml");
const PROGRAM: &str = "examples/tool-authoring/orders";
/// Where the base image has the executor.
const SIDECAR: &str = "/opt/sympozium/bin/skill-sidecar";

/// The pack's container: UID 1000, a read-only root, the program in `/usr/local/bin`.
struct Sidecar {
    cancel: Cancel,
    running: Option<JoinHandle<Result<Outcome, RunError>>>,
}

impl Sidecar {
    fn start(run: &Harness) -> Self {
        let binary = static_build::program("skill-sidecar").expect("a sidecar");
        for name in ["image", "image/bin", "image/skills"] {
            fs::create_dir(run.at(name)).expect("a directory");
            fs::set_permissions(run.at(name), PermissionsExt::from_mode(0o755)).expect("a mode");
        }
        copy_program(&binary, &run.at("image/bin/skill-sidecar")).expect("a copy");
        let program = run.at("image/skills/orders");
        copy_program(&workspace_root().join(PROGRAM), &program).expect("a copy");
        fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("a mode");
        let (profile, identity) = if is_root() { (Profile::HostRoot, Some(1000)) } else { (Profile::HostUser, None) };
        let mut config = Config::new(profile);
        config.layout.identity = identity;
        config.stage = StageProgram::At(binary);
        for (name, target, access) in [
            ("ipc/orders", "/ipc", BindAccess::ReadWrite),
            ("image/bin", "/opt/sympozium/bin", BindAccess::ReadOnly),
            ("image/skills", "/usr/local/bin", BindAccess::ReadOnly),
        ] {
            config = config.with_bind(Bind { source: run.at(name), target: target.into(), access });
        }
        let executor = Executor::new(config).expect("a private root");
        let mut request = Request::argv([SIDECAR, "ipc", "--pack", "orders"]);
        request.timeout = Duration::from_secs(300);
        let cancel = Cancel::new().expect("a descriptor");
        let handle = cancel.clone();
        let running = std::thread::spawn(move || executor.run(&request, Some(&handle)));
        Self { cancel, running: Some(running) }
    }

    /// Waits until the sidecar exits, as it does at the end of the run.
    fn wait(mut self) -> Outcome {
        let running = self.running.take().expect("it runs");
        running.join().expect("no panic").expect("an outcome")
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        self.cancel.cancel();
        if let Some(running) = self.running.take() {
            let outcome = running.join();
            if std::thread::panicking() {
                let _ = writeln!(std::io::stderr(), "the sidecar: {outcome:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_looks_up_an_order_and_answers() {
    // Build it before the run: the bridge's wait for an agent is shorter.
    static_build::program("skill-sidecar").expect("a sidecar");
    let mut run = Harness::of(planned(&format!("{PACK}---\n{RUN}")), NoScheduler);
    let sidecar = Sidecar::start(&run);
    for arguments in [
        json!({ "number": "A-1001", "detail": "full" }),
        json!({ "number": "A-1002" }),
        json!({ "number": "A-1002; id" }),
        json!({ "number": "A-1002", "detail": "everything" }),
        json!({ "number": "A-1002", "format": "xml" }),
        json!({ "number": "A-9999" }),
    ] {
        run.model.push(Answer::tools([ToolCall::new("lookup_order", &arguments)]));
    }
    run.model.push(Reply::text("It was shipped."));
    assert_eq!(answer(&mut run, RUNNER).await, "It was shipped.");

    // The policy denies everything else; skills can always be loaded.
    assert_eq!(run.model_requests()[0].tools(), ["lookup_order", "load_skill"]);
    let shown = run.last().result_texts();
    assert_eq!(shown[0], "A-1001: shipped on 12 November, parcel 7731\nitems: 2 lamps, 1 table");
    assert_eq!(shown[1], "A-1002: waiting for payment since 3 November");
    for (text, part) in shown[2..5].iter().zip(["/number", "/detail", "format"]) {
        assert!(text.starts_with("Error: the arguments do not fit: ") && text.contains(part), "{text}");
    }
    assert_eq!(
        shown[5..],
        ["STDERR: there is no order A-9999; ask the customer for the number on the invoice\n(exit code: 1)"]
    );
    // Calls with invalid arguments have a decision but no action: no program was started.
    let refused = "lookup_order - Refused";
    let receipts = call_lines(&run);
    let expected = [
        "lookup_order orders Allowed",
        "Skill Exited { code: 0 }",
        "lookup_order orders Allowed",
        "Skill Exited { code: 0 }",
        refused,
        refused,
        refused,
        "lookup_order orders Allowed",
        "Skill Exited { code: 1 }",
    ];
    assert_eq!(receipts, expected);
    for event in run.events() {
        if let Event::Acted { isolation, .. } = event {
            let isolation = isolation.expect("our executor says what was live");
            assert_eq!(isolation.profile, "container");
        }
    }
    let outcome = sidecar.wait();
    assert_eq!(outcome.termination.exit_code(), 0, "{outcome:?}");
}

#[test]
fn the_program_checks_its_arguments_again() {
    let cases: [(&[&str], &str, i32, &str); 8] = [
        (&["lookup", "--", "A-1002"], "{}", 0, "A-1002: waiting for payment since 3 November\n"),
        (
            &["lookup", "--", "A-1002"],
            "{\"detail\":\"full\"}",
            0,
            "A-1002: waiting for payment since 3 November\nitems: 1 chair\n",
        ),
        (&["lookup", "--", "A-1003"], "{}", 1, ""),
        (&["lookup", "--", "A-1001|x"], "{}", 2, ""),
        (&["lookup", "--", "--help"], "{}", 2, ""),
        (&["lookup", "A-1001"], "{}", 2, ""),
        (&["remove", "--", "A-1001"], "{}", 2, ""),
        (&[], "", 2, ""),
    ];
    for (arguments, input, code, stdout) in cases {
        let mut child = command(workspace_root().join(PROGRAM))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        // A program that refuses does not read.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        let output = child.wait_with_output().expect("it ends");
        let stdout_text = String::from_utf8(output.stdout).expect("text");
        assert_eq!((output.status.code(), stdout_text.as_str()), (Some(code), stdout), "{arguments:?}");
        assert_eq!(output.stderr.is_empty(), code == 0, "{arguments:?}");
    }
}

#[test]
fn the_plan_has_the_program_and_how_it_is_called() {
    let plan = planned(&format!("{PACK}---\n{RUN}"));
    let tool = plan.tools.iter().find(|it| it.name == "lookup_order");
    let acts = serde_json::to_value(&tool.expect("the tool").acts).expect("JSON");
    let expected: Value = json!({
        "by": "program",
        "part": "skill-orders",
        "exec": ["/usr/local/bin/orders", "lookup"],
        "inputMode": "stdin",
        "positionalArgs": ["number"],
    });
    assert_eq!(acts, expected);
}
