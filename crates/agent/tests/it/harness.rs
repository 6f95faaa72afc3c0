//! A run with everything but the agent: gateway, bridge and model server are real, and the agent's own view is of
//! directories of the test.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sympozium_api::RunPlan;
use sympozium_api::run_plan::{AgentView, Root, SkillContents, SkillPlan, SkillSource, WireFormat};
use sympozium_gateway::run_api::Scheduler;
use sympozium_gateway::run_api::local::{NoScheduler, files};
use sympozium_harness::plan::{open_only, open_plan};
use sympozium_harness::{RunHarness, wait_until};
use sympozium_ipc::receipt::Event;
use sympozium_ipc::run_api::AgentEnd;
use sympozium_plan::plan::agent_view;
use sympozium_testkit::model_server::{Answer, ToolCall};
use sympozium_testkit::{command, static_build};

use crate::model_requests::ModelRequest;

const PROGRAM: &str = env!("CARGO_BIN_EXE_agent-runner");
pub const WIRES: [WireFormat; 2] = [WireFormat::OpenAi, WireFormat::Anthropic];
pub const WEB_HOST: &str = "web.test";
const UNLIMITED: u32 = 100_000;

/// A run, from its plan to its records.
pub struct Harness {
    run: RunHarness,
    pub view: AgentView,
    agents: Vec<Child>,
}

impl Deref for Harness {
    type Target = RunHarness;

    fn deref(&self) -> &RunHarness {
        &self.run
    }
}

impl DerefMut for Harness {
    fn deref_mut(&mut self) -> &mut RunHarness {
        &mut self.run
    }
}

/// The end of a run.
#[derive(Debug)]
pub struct End {
    /// The agent's exit code.
    pub code: Option<i32>,
    pub ending: AgentEnd,
    pub log: String,
}

impl End {
    #[track_caller]
    pub fn answer(&self) -> &str {
        match &self.ending {
            AgentEnd::Answered { text } if self.code == Some(0) => text,
            _ => panic!("no answer: {self:?}"),
        }
    }

    /// The error of a failed run.
    #[track_caller]
    pub fn failure(&self) -> &str {
        match &self.ending {
            AgentEnd::Failed { error } if self.code == Some(1) => error,
            _ => panic!("no failure: {self:?}"),
        }
    }
}

pub fn call(tool: &str, arguments: Value) -> ToolCall {
    ToolCall::new(tool, &arguments)
}

/// A response with a single call.
pub fn calling(tool: &str, arguments: Value) -> Answer {
    Answer::tools([call(tool, arguments)])
}

impl Harness {
    /// Starts everything but the agent, for the permissive plan.
    pub fn new(wire: WireFormat) -> Self {
        Self::with(wire, |_| ())
    }

    /// As [`new`](Self::new), with changes of the plan.
    pub fn with(wire: WireFormat, change: impl FnOnce(&mut RunPlan)) -> Self {
        let mut plan = permissive_plan(wire);
        change(&mut plan);
        Self::of(plan, NoScheduler)
    }

    /// Starts everything but the agent.
    pub fn of(plan: RunPlan, scheduler: impl Scheduler) -> Self {
        // Before the run: it may have to be built.
        let bridge = static_build::program("ipc-bridge").expect("it is built");
        let run = RunHarness::setup(plan).scheduler(scheduler).start(bridge);
        let view = write_skills(&run.plan, run.directory.path());
        Self { run, view, agents: Vec::new() }
    }

    /// A path in the workspace, for tool calls.
    pub fn path(&self, name: &str) -> String {
        self.at("workspace").join(name).display().to_string()
    }

    /// Writes a file in the workspace and returns its path.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        fs::write(&path, content).expect("a file");
        path
    }

    /// Starts the agent with environment variables.
    pub fn start(&mut self, variables: &[(&str, &str)]) -> i32 {
        let view = serde_json::to_vec(&self.view).expect("JSON");
        fs::write(self.at("agent/agent.json"), view).expect("a file");
        self.spawn(variables)
    }

    /// Starts the agent before its input exists.
    pub fn start_without_input(&mut self) -> i32 {
        self.spawn(&[])
    }

    /// Starts another program with the agent's command line.
    pub fn start_program(&mut self, program: Command) -> i32 {
        let view = serde_json::to_vec(&self.view).expect("JSON");
        fs::write(self.at("agent/agent.json"), view).expect("a file");
        self.spawn_program(program, &[])
    }

    fn spawn(&mut self, variables: &[(&str, &str)]) -> i32 {
        self.spawn_program(command(PROGRAM), variables)
    }

    fn spawn_program(&mut self, mut program: Command, variables: &[(&str, &str)]) -> i32 {
        let log = fs::File::create(self.at("agent.log")).expect("a log");
        let child = program
            .arg(format!("--input={}", self.at("agent").display()))
            .arg(format!("--door={}", self.at("door").display()))
            .env_clear()
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::from(log))
            .spawn()
            .expect("it starts");
        let pid = i32::try_from(child.id()).expect("a pid");
        self.agents.push(child);
        pid
    }

    /// From the agent's start to the last report.
    pub async fn run(&mut self, variables: &[(&str, &str)]) -> End {
        self.start(variables);
        self.wait_for_end().await
    }

    /// Waits for the agent and the bridge. Also checks the invariants of all requests and receipts.
    pub async fn wait_for_end(&mut self) -> End {
        let code = self.wait_for_agent().await;
        assert_eq!(self.wait_exit().await, 0, "{}", self.logs());
        for request in self.model_requests() {
            request.check();
        }
        End { code, ending: self.ending(), log: self.agent_log() }
    }

    /// Returns the agent's exit code.
    pub async fn wait_for_agent(&mut self) -> Option<i32> {
        let agent = self.agents.last_mut().expect("an agent");
        let mut status = None;
        let ended = wait_until(|| {
            status = agent.try_wait().expect("a child");
            status.is_some()
        });
        assert!(ended.await, "the agent does not end\n{}", self.logs());
        self.agents.pop();
        status.and_then(|status| status.code())
    }

    /// Waits for this many requests to the model.
    pub async fn requests(&self, count: u64) -> Vec<ModelRequest> {
        self.wait_until("so many requests", || self.model.request_count() >= count).await;
        self.model_requests()
    }

    pub fn model_requests(&self) -> Vec<ModelRequest> {
        self.model.requests().iter().map(|request| ModelRequest::of(request)).collect()
    }

    pub fn last(&self) -> ModelRequest {
        self.model_requests().pop().expect("a request")
    }

    /// A line for each event, without model requests.
    pub fn receipt_lines(&self) -> Vec<String> {
        let events = self.events();
        let events = events.iter().filter(|event| !matches!(event, Event::Model { .. }));
        events.map(short).collect()
    }

    pub fn transcript(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.record(files::TRANSCRIPT)).unwrap_or_default();
        let read = |line: &str| serde_json::from_str(line).expect("a line is JSON");
        text.lines().map(read).collect()
    }

    pub fn agent_log(&self) -> String {
        fs::read_to_string(self.at("agent.log")).unwrap_or_default()
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        for agent in &mut self.agents {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

/// Sends SIGTERM.
pub fn terminate(pid: i32) {
    let pid = Pid::from_raw(pid).expect("a process");
    kill_process(pid, Signal::TERM).expect("a signal");
}

/// The open plan without rate limits, with one host for the web and one approver.
pub fn permissive_plan(wire: WireFormat) -> RunPlan {
    let mut plan = open_plan(wire);
    for tool in &mut plan.tools {
        tool.limits.per_minute = UNLIMITED;
    }
    plan.limits.model_requests = UNLIMITED;
    plan.limits.model_requests_per_minute = UNLIMITED;
    open_only(&mut plan, "web", &[&format!("{WEB_HOST} 80")]);
    plan.approval.approvers = None;
    plan.approval.required = 1;
    plan
}

/// Writes the skills, and returns the agent's view with its directories below `directory`.
fn write_skills(plan: &RunPlan, directory: &Path) -> AgentView {
    let mut view = agent_view(plan);
    let moved = |path: &str| format!("{}{path}", directory.display());
    for skill in &mut view.skills {
        skill.directory = moved(&skill.directory);
        fs::create_dir_all(&skill.directory).expect("a directory");
        write_skill(skill);
    }
    view.roots =
        ["/workspace", "/tmp", "/skills"].map(|path| Root { path: moved(path), writable: path != "/skills" }).into();
    view
}

/// Writes a skill as if the run was planned with it.
fn write_skill(skill: &mut SkillPlan) {
    const TEXT: &[u8] = b"# Look\nFirst look, then act.\n";
    let directory = Path::new(&skill.directory);
    fs::write(directory.join(SkillPlan::TEXT_FILE), TEXT).expect("a text");
    let mut contents = SkillContents::new(TEXT);
    for file in &skill.files {
        let path = directory.join(file.path.as_str());
        fs::create_dir_all(path.parent().expect("it is below")).expect("a directory");
        let content = vec![b'#'; usize::try_from(file.bytes).expect("few bytes")];
        fs::write(path, &content).expect("a file");
        contents.add(&file.path, file.executable, &content);
    }
    if let SkillSource::Pack { digest, bytes, .. } = &mut skill.source {
        *bytes = TEXT.len() as u64;
        *digest = contents.digest().expect("it has JSON");
    }
}

fn short(event: &Event) -> String {
    match event {
        Event::Started { .. } => "started".to_owned(),
        Event::Called { tool, pack, decided, .. } => format!("{tool} {} {decided:?}", pack.as_deref().unwrap_or("-")),
        Event::Asked { .. } => "asked".to_owned(),
        Event::Answered { decided, by, .. } => {
            format!("answered {decided:?} by {}", by.as_deref().unwrap_or("-"))
        }
        Event::Acted { by, outcome, .. } => format!("{by:?} {outcome:?}"),
        Event::Model { request, status, .. } => format!("model {request} {status:?}"),
        Event::Foreign { pack, what, .. } => format!("foreign {what:?} of {pack}"),
        Event::Ended { outcome, .. } => format!("ended {outcome:?}"),
    }
}
