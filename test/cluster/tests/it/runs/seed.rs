//! The guide for custom sidecars, "Test it", as it is written; image names and the address of the model apart.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sympozium_ipc::receipt::{Actor, Outcome};
use sympozium_testkit::cluster::{Exclusivity, Image, Kubectl};
use sympozium_testkit::model_server::{Answer, ModelServer, Settings, ToolCall};
use sympozium_testkit::{command, static_build};

use super::harness::{Harness, PATIENCE};

pub const ECHO: &str = "echo 'Hello from sidecar!'";
const KEY: &str = "sk-test-of-the-seed";

/// Whether the sidecar is built the documented way, or on our own image.
#[derive(Clone, Copy)]
enum Sidecar {
    /// bash, jq and coreutils, with `images/tool-executor.sh` as its entrypoint.
    Documented,
    /// The image that we ship as a base.
    Ours,
}

/// An image built as the guide says: Debian's bash, jq and coreutils with the libraries that they load, and a script.
pub fn documented_image(name: &str, script: &Path) -> Result<Image> {
    const PROGRAMS: [&str; 25] = [
        "base64", "basename", "bash", "cat", "chmod", "dd", "echo", "env", "head", "id", "jq", "mkdir", "mkfifo",
        "mktemp", "mv", "od", "rm", "setsid", "sleep", "stat", "tail", "timeout", "touch", "tr", "wc",
    ];
    let entrypoint = ["/bin/bash", "/usr/local/bin/tool-executor.sh"];
    let mut image = Image::of_files(name, &entrypoint);
    let mut libraries = BTreeSet::new();
    for program in PROGRAMS {
        let file = Path::new("/usr/bin").join(program).canonicalize()?;
        let listed = command("ldd").arg(&file).output().context("starting ldd")?;
        for line in String::from_utf8_lossy(&listed.stdout).lines() {
            let path = line.split_whitespace().find(|word| word.starts_with('/'));
            libraries.extend(path.map(PathBuf::from));
        }
        image = image.with_file(&format!("bin/{program}"), &file);
    }
    for library in &libraries {
        let inside = library.to_string_lossy();
        image = image.with_file(inside.trim_start_matches('/'), &library.canonicalize()?);
    }
    Ok(image.with_file("usr/local/bin/tool-executor.sh", script))
}

/// The model of the seed: it runs what the task says, and tells what it read.
fn model(harness: &Harness) -> Result<Option<ModelServer>> {
    let Some(host) = harness.cluster.host_address() else {
        return Ok(None);
    };
    let server = Settings::new().listen((host, 0).into()).key(KEY).start()?;
    let call = ToolCall::new("execute_command", &json!({ "command": ECHO, "timeout": 120 }));
    server.push(Answer::tools([call]).usage(100, 20));
    server.push(Answer::text("The sidecar said: Hello from sidecar!").usage(150, 10));
    Ok(Some(server))
}

/// Waits until the controller has seen an agent as it is now. Its watches are not in step: a run that it sees first
/// would be planned with the agent as it was.
pub fn wait_until_seen(kubectl: &Kubectl, kind: &str, agent: &str) -> Result<()> {
    let is_seen = |it: &Value| it["status"]["observedGeneration"] == it["metadata"]["generation"];
    kubectl.until(kind, agent, PATIENCE, is_seen).map(drop)
}

/// A manifest of the seeds, as it is written.
pub fn seed(file: &str) -> Result<Value> {
    let path = static_build::workspace_root().join("config/samples/seeds").join(file);
    let text = std::fs::read_to_string(&path)?;
    serde_saphyr::from_str(&text).with_context(|| format!("reading {}", path.display()))
}

fn test_it(label: &str, agent_kind: &str, sidecar: Sidecar) -> Result<()> {
    let Some(harness) = Harness::new(label, Exclusivity::shared())? else {
        return Ok(());
    };
    let Some(server) = model(&harness)? else {
        return Ok(());
    };
    let image = match sidecar {
        Sidecar::Documented => {
            let script = static_build::workspace_root().join("images/tool-executor.sh");
            documented_image("sympozium.test/echo-sidecar:1", &script)?
        }
        Sidecar::Ours => Image::of_ours("skill-sidecar"),
    };
    ensure!(harness.cluster.import(&image)?, "the image cannot be loaded");
    let kubectl = harness.kubectl();
    let mut pack = seed("004-skillpack-echo-demo.yaml")?;
    pack["spec"]["sidecar"]["image"] = json!(image.name());
    harness.namespace.create(&pack)?;
    harness.namespace.create(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "my-agent-openai-key"},
        "stringData": {"OPENAI_API_KEY": KEY},
    }))?;
    harness.namespace.create(&json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": agent_kind, "metadata": {"name": "my-agent"},
        "spec": {"agents": {"default": {"model": "gpt-4o-mini"}}, "policyRef": "own-model"},
    }))?;
    // The floor of an installation lets a run send its key to its provider, and elsewhere only where a policy says so.
    // A key goes in plain to a Service only.
    let (host, port) = (format!("model.{}.svc", harness.namespace.name()), 8080);
    harness.namespace.lead("model", port, server.address(), None)?;
    harness.namespace.create(&json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "SympoziumPolicy", "metadata": {"name": "own-model"},
        "spec": {"networkPolicy": {"allowedEgress": [{"host": host, "port": port}]}},
    }))?;

    let resource = agent_kind.to_lowercase();
    let patch = r#"{"spec":{"skills":[{"skillPackRef":"echo-demo"}]}}"#;
    kubectl.run(&["patch", &resource, "my-agent", "--type=merge", "-p", patch])?;
    wait_until_seen(kubectl, &resource, "my-agent")?;
    let mut run = seed("004-agentrun-test-echo.yaml")?;
    run["spec"]["model"]["baseURL"] = json!(format!("http://{host}:{port}/v1"));
    if agent_kind == "SympoziumInstance" {
        let agent = run["spec"]["agentRef"].take();
        run["spec"]["instanceRef"] = agent;
        if let Some(spec) = run["spec"].as_object_mut() {
            spec.remove("agentRef");
        }
    }
    let applied = kubectl.feed(&["apply", "-f", "-"], &run)?;
    ensure!(applied.success, "{}", applied.stderr);

    let run = harness.ended("test-echo")?;
    let result = ["get", "agentrun", "test-echo", "-o", "jsonpath={.status.result}"];
    let result = kubectl.run(&result)?;
    assert!(result.contains("Hello from sidecar!"), "{run}");
    assert_eq!(run["status"]["phase"], "Succeeded");
    let usage = &run["status"]["tokenUsage"];
    assert_eq!(
        (&usage["inputTokens"], &usage["outputTokens"], &usage["toolCalls"]),
        (&json!(250), &json!(30), &json!(1)),
        "{run}"
    );
    assert_eq!(harness.left_of(&run)?, Vec::<String>::new());
    // What the model was told is what the sidecar wrote. The task and the call have these words too, so only the message
    // with the result counts.
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(results(&requests[0].json()), Vec::<String>::new());
    let told = results(&requests[1].json());
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].lines().next(), Some("Hello from sidecar!"));
    assert_eq!(harness.acts(&run)?, [(Actor::Skill, Outcome::Exited { code: 0 })]);
    Ok(())
}

/// What a request tells the model of its calls.
pub fn results(request: &Value) -> Vec<String> {
    let messages = request["messages"].as_array().into_iter().flatten();
    messages
        .filter(|message| message["role"] == "tool")
        .map(|message| message["content"].as_str().unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn test_it_with_an_agent_and_the_documented_image() -> Result<()> {
    test_it("seed", "Agent", Sidecar::Documented)
}

#[test]
fn test_it_with_an_instance_and_our_base_image() -> Result<()> {
    test_it("seed-instance", "SympoziumInstance", Sidecar::Ours)
}
