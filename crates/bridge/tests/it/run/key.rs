//! The provider's key, the gateway's credentials and the run's token: used in every way, then searched for everywhere that
//! another part, a person or a file could have them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt as _;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use sympozium_harness::executor::Executor;
use sympozium_harness::{Agent, KEY, POLL_INTERVAL, RunHarness};
use sympozium_testkit::as_user;
use sympozium_testkit::model_server::{Cut, HttpAnswer, ProviderError, Reply};
use tokio::time::sleep;

use super::start;

/// A secret, and its encoded forms.
struct Secret {
    name: String,
    forms: Vec<Vec<u8>>,
}

impl Secret {
    fn new(name: &str, value: &str) -> Self {
        let hex: String = value.bytes().map(|byte| format!("{byte:02x}")).collect();
        let forms = vec![
            value.as_bytes().to_vec(),
            STANDARD.encode(value).trim_end_matches('=').as_bytes().to_vec(),
            hex.into_bytes(),
        ];
        Self { name: name.to_owned(), forms }
    }

    fn is_in(&self, bytes: &[u8]) -> bool {
        (self.forms.iter()).any(|form| bytes.windows(form.len()).any(|window| window == form))
    }
}

/// Everything that other parts could read, by where it was found.
#[derive(Default)]
struct Found(BTreeMap<String, Vec<u8>>);

impl Found {
    fn add(&mut self, place: &str, bytes: impl Into<Vec<u8>>) {
        self.0.entry(place.to_owned()).or_default().extend(bytes.into());
    }

    fn add_below(&mut self, directory: &Path, skip: &str) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            self.add("names of files", path.to_string_lossy().into_owned());
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && entry.file_name() != skip => self.add_below(&path, skip),
                Ok(kind) if kind.is_file() => self.add(&path.to_string_lossy(), fs::read(&path).unwrap_or_default()),
                _ => {}
            }
        }
    }

    /// What every user may read of a process, and what root may without attaching to it.
    fn add_process(&mut self, run: &RunHarness) {
        let process = format!("/proc/{}", run.bridge.id());
        for name in ["environ", "cmdline", "status", "maps", "smaps", "stat", "comm", "limits", "mountinfo", "auxv"] {
            self.add(&format!("{process}/{name}"), fs::read(format!("{process}/{name}")).unwrap_or_default());
        }
        for entry in fs::read_dir(format!("{process}/fd")).into_iter().flatten().flatten() {
            let target = fs::read_link(entry.path()).unwrap_or_default();
            self.add("descriptors", target.to_string_lossy().into_owned());
        }
    }

    fn assert_without(&self, secret: &Secret) {
        for (place, bytes) in &self.0 {
            assert!(!secret.is_in(bytes), "{} is in {place}", secret.name);
        }
    }
}

/// The secrets of a run besides the provider's key: what is in its files, and the part that must not be known.
fn credentials(run: &RunHarness) -> Vec<Secret> {
    let mut secrets = Vec::new();
    for entry in fs::read_dir(run.at("input")).expect("inputs").flatten() {
        let name = entry.file_name().into_string().expect("a name");
        if name.starts_with("credential-") || name == "token" {
            let text = fs::read_to_string(entry.path()).expect("a credential");
            let (_, password) = text.split_once(':').expect("a password");
            secrets.push(Secret::new(&name, password));
        }
    }
    assert!(secrets.len() >= 3, "{}", secrets.len());
    secrets
}

/// One request to the model, with everything of the answer.
async fn ask(agent: &Agent, found: &mut Found, body: &str) {
    let Ok(answer) = agent.send("/v1/model", body.to_owned()).await else {
        return;
    };
    let (head, mut body) = answer.into_parts();
    found.add("heads of answers at the door", format!("{} {:?}", head.status, head.headers));
    while let Some(Ok(frame)) = body.frame().await {
        if let Ok(data) = frame.into_data() {
            found.add("answers at the door", data);
        }
    }
}

/// Uses the key in every way that there is.
async fn use_everywhere(run: &RunHarness, agent: &Agent, found: &mut Found) {
    let plain = json!({ "model": "test-model", "messages": [{ "role": "user", "content": "hello" }] }).to_string();
    let mut streamed: serde_json::Value = serde_json::from_str(&plain).expect("JSON");
    streamed["stream"] = json!(true);
    let streamed = streamed.to_string();
    let told = format!("Bearer {KEY} is not a key; authorization: Bearer {KEY}");
    let replies: Vec<Reply> = vec![
        Reply::text("fine"),
        // The whole request with its headers, as the answer.
        Reply::Echo,
        Reply::error(401, told.clone()),
        Reply::error(400, told.clone()),
        Reply::error(500, told.clone()),
        Reply::Error(ProviderError::new(429, told.clone()).retry_after(KEY).code(KEY).kind(KEY)),
        Reply::Error(ProviderError::new(403, "").body(told.clone())),
        Reply::redirect(302, format!("http://evil.example/?key={KEY}")),
        Reply::Http(HttpAnswer {
            status: 200,
            headers: vec![
                ("content-type".into(), "application/json".into()),
                ("x-request-id".into(), KEY.into()),
                ("x-echo".into(), told.clone()),
                ("set-cookie".into(), KEY.into()),
            ],
            pieces: vec![told[..20].to_owned().into(), told[20..].to_owned().into()],
        }),
        Reply::Http(HttpAnswer::events([format!("data: {{\"error\":\"{told}\"}}\n\n")])),
        Reply::Echo.cut(Cut::AfterBytes(400)),
        Reply::raw(format!("HTTP/1.1 200 {KEY}\r\n{KEY}: {KEY}\r\nContent-Length: nonsense\r\n\r\n{told}")),
        Reply::raw(told.clone()),
    ];
    for reply in replies {
        for body in [&plain, &streamed] {
            run.model.push(reply.clone());
            ask(agent, found, body).await;
        }
    }
    // Refused by the bridge, and a provider that is not there.
    for body in [
        "",
        "{}",
        "[]",
        "{\"model\":\"other\",\"messages\":[]}",
        "{\"model\":\"test-model\",\"messages\":[],\"tools\":[{\"type\":\"web_search\"}]}",
    ] {
        ask(agent, found, body).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_anywhere_after_a_run_that_used_it() {
    let mut run = start(|plan| {
        plan.limits.model_requests_per_minute = 1_000;
        plan.limits.model_requests = 1_000;
    });
    let _cluster = Executor::echo(run.volume("cluster"));
    let _tickets = Executor::echo(run.volume("tickets"));
    let agent = run.agent().await;
    let mut found = Found::default();
    use_everywhere(&run, &agent, &mut found).await;
    let requests = run.model.requests();
    let used = requests.iter().filter(|it| it.header("authorization") == Some(&format!("Bearer {KEY}"))).count();
    assert!(used > 20, "the key was used {used} times");
    for answer in [
        agent.execute("cluster", "env").await,
        agent.execute("nobody", "env").await,
        agent.call("fetch_url", json!({ "url": "http://no.example/" })).await,
        agent.call("fetch_url", json!({ "url": "http://127.0.0.1/" })).await,
        agent.call("send_channel_message", json!({ "channel": "slack", "text": "a" })).await,
        agent.call("no_such_tool", json!({})).await,
    ] {
        found.add("answers at the door", format!("{answer:?}"));
    }
    found.add_process(&run);
    let secrets = credentials(&run);
    let key = Secret::new("the key", KEY);
    agent.finish("done").await;
    drop(agent);
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());

    let mut watcher = run.gateway.events().subscribe(1);
    while let Some(event) = watcher.try_next() {
        found.add("events of the gateway", format!("{event:?}"));
    }
    found.add("the last report", format!("{:?}", run.report()));
    // Volumes, door, records (receipts, transcript, reports), log; not the run's inputs, which are the credentials.
    found.add_below(run.directory.path(), "input");
    for place in ["events of the gateway", "answers at the door", "heads of answers at the door", "the last report"] {
        assert!(found.0.contains_key(place), "nothing was found in {place}");
    }
    assert!(found.0.keys().any(|place| place.ends_with("receipts.jsonl")));
    found.assert_without(&key);
    for secret in &secrets {
        found.assert_without(secret);
    }
    // The inputs hold credentials, and no key.
    let mut inputs = Found::default();
    inputs.add_below(&run.at("input"), "");
    inputs.assert_without(&key);
    assert!(secrets.iter().all(|secret| inputs.0.values().any(|bytes| secret.is_in(bytes))), "the search works");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_other_user_reads_the_bridge() {
    let run = start(|_| ());
    let agent = run.agent().await;
    let mut found = Found::default();
    run.model.push(Reply::text("fine"));
    let body = json!({ "model": "test-model", "messages": [{ "role": "user", "content": "hello" }] });
    ask(&agent, &mut found, &body.to_string()).await;
    let process = format!("/proc/{}", run.bridge.id());
    for name in ["environ", "maps", "mem", "auxv", "io", "stack", "syscall"] {
        let read = as_user::command(as_user::ORDINARY, "cat").arg(format!("{process}/{name}")).output().expect("cat");
        assert!(!read.status.success() && read.stdout.is_empty(), "{name}: {}", String::from_utf8_lossy(&read.stdout));
    }
    for name in ["fd", "task/../fd", "cwd/", "root/", "map_files"] {
        let listed = as_user::command(as_user::ORDINARY, "ls").arg(format!("{process}/{name}")).output().expect("ls");
        assert!(listed.stdout.is_empty(), "{name}: {}", String::from_utf8_lossy(&listed.stdout));
    }
    // World-readable files contain none of it.
    for name in ["cmdline", "status", "stat", "comm", "limits"] {
        let read = as_user::command(as_user::ORDINARY, "cat").arg(format!("{process}/{name}")).output().expect("cat");
        found.add(name, read.stdout);
    }
    found.add_process(&run);
    found.assert_without(&Secret::new("the key", KEY));
    for secret in credentials(&run) {
        found.assert_without(&secret);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_leaves_no_secret_behind() {
    let mut run = start(|_| ());
    let agent = run.agent().await;
    let mut found = Found::default();
    run.model.push(Reply::Silence);
    let body = json!({ "model": "test-model", "messages": [{ "role": "user", "content": "hello" }] }).to_string();
    let crash = async {
        while run.model.request_count() == 0 {
            sleep(POLL_INTERVAL).await;
        }
        let limits = fs::read_to_string(format!("/proc/{}/limits", run.bridge.id())).expect("limits");
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a line");
        let words: Vec<&str> = core.split_ascii_whitespace().collect();
        assert_eq!(words[4..6], ["0", "0"], "{core}");
        // With the key in use.
        kill_process(Pid::from_child(&run.bridge), Signal::ABORT).expect("a signal");
    };
    tokio::join!(ask(&agent, &mut found, &body), crash);
    assert_eq!(run.wait_exit().await, -1);
    found.add_below(run.directory.path(), "input");
    found.assert_without(&Secret::new("the key", KEY));
    for secret in credentials(&run) {
        found.assert_without(&secret);
    }
}
