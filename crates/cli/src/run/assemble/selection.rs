//! Selects the run that is meant, and applies the flags to it.
//!
//! Flags change the objects of the files, or add objects if there are none; then everything is validated together, as
//! if it had been written so.

mod model;
mod policy;

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use serde_json::{Value, json};
use sympozium_api::labels::API_VERSION;
use sympozium_api::origin::COMMAND_LINE;
use sympozium_api::text::quote;
use sympozium_manifests::agent_skill::FILE_NAME;
use sympozium_manifests::built_in;
use sympozium_manifests::kinds::Kind;
use sympozium_manifests::load::LoadedFile;
use sympozium_manifests::sources::Reader;
use sympozium_manifests::tree::{Mark, Node};
use sympozium_manifests::validate::{Object, ObjectName, Session, closest};

use super::HostEnvironment;
use super::inputs::RunInputs;
use crate::failure::Failure;
use crate::run::arguments::RunArguments;

/// The name of the agent that is built from flags alone.
const DEFAULT_AGENT: &str = "assistant";
/// The policy of that agent: commands need approval.
const DEFAULT_POLICY: &str = "default";

/// The selected run. Everything that decides about it is in the session.
#[derive(Debug)]
pub struct ChosenRun {
    pub run: ObjectName,
    /// What the user should know about the choice.
    pub warnings: Vec<String>,
}

/// The inputs of the selection.
pub struct Assembler<'c> {
    pub arguments: &'c RunArguments,
    pub inputs: &'c RunInputs,
    pub host: &'c HostEnvironment<'c>,
    /// Whether the run's namespace has a Secret of this name. Arguments: session, namespace, name.
    pub has_secret: &'c dyn Fn(&Session<'_>, &str, &str) -> bool,
    pub uid: &'c str,
    /// The index of the first object that comes from the file of `--policy`.
    pub policy_file_start: usize,
}

/// What the run is made from. Numbers are indices of objects in the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunSource {
    /// An AgentRun of the files.
    Run(usize),
    /// An agent of the files; the AgentRun is built.
    Agent(usize),
    /// Flags alone: agent and AgentRun are built.
    FlagsOnly,
}

impl Assembler<'_> {
    /// Finds or builds the run that is meant, and changes it as the flags say. Fails if it is ambiguous which run is
    /// meant, or a flag names something that does not exist.
    pub fn choose(&self, session: &mut Session<'_>, reader: &mut Reader) -> Result<ChosenRun, Failure> {
        self.keep_policy_of_file(session)?;
        let place = self.find_run_source(session.objects())?;
        let namespace = match place {
            RunSource::Run(index) | RunSource::Agent(index) => session.objects()[index].name.namespace.clone(),
            RunSource::FlagsOnly => self.arguments.cluster.local_namespace().to_owned(),
        };
        // Before any index is kept: it can remove objects.
        let policy = self.choose_policy(session, place, &namespace)?;
        let place = self.find_run_source(session.objects())?;
        let objects = session.objects();
        let (run, agent) = match place {
            RunSource::Run(run) => (Some(run), find_agent(objects, run)),
            RunSource::Agent(agent) => (None, Some(agent)),
            RunSource::FlagsOnly => (None, None),
        };
        self.check_task(objects, run)?;
        let skills = self.resolve_skills(session, reader, &namespace)?;
        let agent = match (agent, run) {
            (None, None) => Some(self.make_agent(session, &namespace)?),
            (agent, _) => agent,
        };
        let run = match run {
            Some(run) => run,
            None => self.make_run(session, &namespace, agent),
        };
        apply_to_agent(session, agent, &skills, policy.name.as_deref());
        self.apply_to_run(session, run, agent, &skills, &namespace);
        if place == RunSource::FlagsOnly {
            self.set_default_model(session, run, agent, &namespace)?;
        } else {
            self.set_model(session, run, agent, &namespace);
        }
        if place == RunSource::FlagsOnly || self.arguments.base_url.is_some() || self.arguments.model.is_some() {
            self.allow_model_egress(session, run, agent, place, &namespace);
        }
        let run = session.objects()[run].name.clone();
        Ok(ChosenRun { run, warnings: policy.warnings })
    }

    fn find_run_source(&self, objects: &[Object]) -> Result<RunSource, Failure> {
        let runs: Vec<usize> = find_indices(objects, |it| it.is_kind(Kind::AgentRun));
        let agents: Vec<usize> = find_indices(objects, is_agent);
        let arguments = self.arguments;
        for (flag, named) in [("--run", &arguments.run), ("--agent", &arguments.agent)] {
            if let (Some(name), true) = (named, self.inputs.files.is_empty()) {
                let error = anyhow!("{flag} {name} is for files, and none is named");
                return Err(Failure::usage(error, "name the files with the manifests"));
            }
        }
        if let Some(name) = &arguments.run {
            let run = find_one(objects, &runs, name, "AgentRun")?;
            if let Some(agent) = &arguments.agent
                && agent_name(&objects[run].node) != Some(agent)
            {
                let error = anyhow!("AgentRun {name} is not of agent {agent}");
                return Err(Failure::usage(error, "leave one of --run and --agent out"));
            }
            return Ok(RunSource::Run(run));
        }
        if let Some(name) = &arguments.agent {
            return find_one(objects, &agents, name, "agent").map(RunSource::Agent);
        }
        match (runs.as_slice(), agents.as_slice()) {
            ([run], _) => Ok(RunSource::Run(*run)),
            ([], [agent]) => Ok(RunSource::Agent(*agent)),
            ([], []) => Ok(RunSource::FlagsOnly),
            ([], agents) => Err(ambiguous(objects, agents, "agents", "--agent")),
            (runs, _) => Err(ambiguous(objects, runs, "runs", "--run")),
        }
    }

    fn check_task(&self, objects: &[Object], run: Option<usize>) -> Result<(), Failure> {
        let node = run.map(|index| &objects[index].node);
        if let Some(node) = node {
            let is_true = |field: &str| {
                let value = node.get_path(&["spec", field]);
                value.is_some_and(|it| it.to_json() == Value::Bool(true))
            };
            if is_true("dryRun") {
                let error = anyhow!("the run has `dryRun: true`: it is to be planned and to go no further");
                return Err(Failure::new(error, "`sympozium explain` shows its plan"));
            }
            if is_true("cancel") {
                let error = anyhow!("the run has `cancel: true`: it is over before it begins");
                return Err(Failure::new(error, "remove `cancel`"));
            }
        }
        let is_there = node.is_some_and(|node| node.get_path(&["spec", "task"]).is_some());
        if self.inputs.task.is_none() && !is_there {
            let error = anyhow!("there is no task");
            let hint = "say what the agent is to do: sympozium run [FILE…] \"TASK\"";
            return Err(Failure::usage(error, hint));
        }
        Ok(())
    }

    /// Resolves the packs that `--skill` names. Directories become packs of the run's namespace.
    fn resolve_skills(
        &self,
        session: &mut Session<'_>,
        reader: &mut Reader,
        namespace: &str,
    ) -> Result<Vec<String>, Failure> {
        let mut names: Vec<String> = Vec::new();
        for skill in &self.arguments.skills {
            let is_known = |session: &Session<'_>| {
                built_in::pack_text(skill).is_some() || packs(session.objects()).any(|it| it.name.name == *skill)
            };
            let found = match skill_directory(skill) {
                Some(path) if skill.contains('/') || !is_known(session) => {
                    let before = session.objects().len();
                    session.add_inputs(&[path], reader);
                    adopt_packs(session, before, namespace)
                }
                _ if is_known(session) => vec![skill.clone()],
                _ => return Err(unknown_skill(session.objects(), skill)),
            };
            // A directory that cannot be read has findings, which are reported later.
            for name in found {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        Ok(names)
    }

    fn make_agent(&self, session: &mut Session<'_>, namespace: &str) -> Result<usize, Failure> {
        let model = self.default_model()?;
        let agent = json!({
            "apiVersion": API_VERSION,
            "kind": "Agent",
            "metadata": {"name": DEFAULT_AGENT, "namespace": namespace},
            "spec": {
                "agents": {"default": {"model": model.model}},
                "policyRef": DEFAULT_POLICY,
            },
        });
        Ok(add_object(session, agent))
    }

    fn make_run(&self, session: &mut Session<'_>, namespace: &str, agent: Option<usize>) -> usize {
        let agent = agent.map(|index| session.objects()[index].name.name.clone());
        let short = self.uid.get(..8).unwrap_or(self.uid);
        let run = json!({
            "apiVersion": API_VERSION,
            "kind": "AgentRun",
            "metadata": {"name": format!("run-{short}"), "namespace": namespace},
            "spec": {"agentRef": agent.unwrap_or_default()},
        });
        add_object(session, run)
    }

    fn apply_to_run(
        &self,
        session: &mut Session<'_>,
        run: usize,
        agent: Option<usize>,
        skills: &[String],
        namespace: &str,
    ) {
        let agent = agent.map(|index| session.objects()[index].node.clone());
        let Some(object) = session.object_mut(run) else {
            return;
        };
        let node = &mut object.node;
        // A UID in the manifest is that of another run.
        node.set(&["metadata", "uid"], json!(self.uid));
        if object.name.name.is_empty() {
            let start = node.get_path(&["metadata", "generateName"]).and_then(Node::as_text);
            let end = self.uid.get(..8).unwrap_or(self.uid);
            object.name.name = format!("{}{end}", start.unwrap_or("run-"));
            node.set(&["metadata", "name"], json!(object.name.name));
        }
        node.set(&["metadata", "namespace"], json!(namespace));
        if let Some(task) = &self.inputs.task {
            node.set(&["spec", "task"], json!(task));
        }
        if let Some(timeout) = &self.arguments.timeout {
            node.set(&["spec", "timeout"], json!(timeout));
        }
        if !skills.is_empty() {
            let own = node.clone();
            let mut from = vec![&own];
            from.extend(agent.as_ref());
            node.set(&["spec", "skills"], skill_references(skills, &from));
        }
    }
}

fn apply_to_agent(session: &mut Session<'_>, agent: Option<usize>, skills: &[String], policy: Option<&str>) {
    let Some(agent) = agent.and_then(|index| session.object_mut(index)) else {
        return;
    };
    if !skills.is_empty() {
        let all = skill_references(skills, &[&agent.node]);
        agent.node.set(&["spec", "skills"], all);
    }
    if let Some(policy) = policy {
        agent.node.set(&["spec", "policyRef"], json!(policy));
    }
}

/// Adds an object as if a file contained it, and returns its index.
pub fn add_object(session: &mut Session<'_>, object: Value) -> usize {
    let index = session.objects().len();
    let loaded = LoadedFile { documents: vec![Node::from_json(object, Mark::START)], ..LoadedFile::default() };
    session.add_loaded(COMMAND_LINE.to_owned(), loaded);
    index
}

pub fn find_indices(objects: &[Object], is: impl Fn(&Object) -> bool) -> Vec<usize> {
    let all = objects.iter().enumerate();
    all.filter(|(_, it)| is(it)).map(|(index, _)| index).collect()
}

/// Whether it is an Agent, or a SympoziumInstance, its older name.
pub fn is_agent(object: &Object) -> bool {
    object.is_kind(Kind::Agent) || object.is_kind(Kind::SympoziumInstance)
}

fn packs(objects: &[Object]) -> impl Iterator<Item = &Object> {
    objects.iter().filter(|it| it.is_kind(Kind::SkillPack))
}

/// The name of the agent that a run refers to.
fn agent_name(run: &Node) -> Option<&str> {
    let named = |field: &str| run.get_path(&["spec", field]).and_then(Node::as_text);
    named("agentRef").or_else(|| named("instanceRef"))
}

fn find_agent(objects: &[Object], run: usize) -> Option<usize> {
    let run = &objects[run];
    let name = agent_name(&run.node)?;
    objects.iter().position(|it| is_agent(it) && it.name.name == name && it.name.namespace == run.name.namespace)
}

/// Finds the one object of this name among `among`.
pub fn find_one(objects: &[Object], among: &[usize], name: &str, what: &'static str) -> Result<usize, Failure> {
    let mut called = among.iter().filter(|index| objects[**index].name.name == name);
    match (called.next(), called.next()) {
        (Some(only), None) => Ok(*only),
        (Some(_), Some(_)) => Err(Failure::usage(
            anyhow!("several objects among the files are called {name}"),
            "name the file with the one that is meant",
        )),
        (None, _) => {
            let names: Vec<&str> = among.iter().map(|it| objects[*it].name.name.as_str()).collect();
            Err(not_found(what, name, &names))
        }
    }
}

/// The failure if several objects match and none is named.
pub fn ambiguous(objects: &[Object], all: &[usize], what: &str, flag: &str) -> Failure {
    let names: Vec<&str> = all.iter().map(|it| objects[*it].name.name.as_str()).collect();
    Failure::usage(
        anyhow!("there are several {what} among the files"),
        format!("choose one with {flag}: {}", list_names(&names)),
    )
}

fn not_found(what: &str, name: &str, known: &[&str]) -> Failure {
    let error = anyhow!("there is no {what} {}", quote(name));
    let hint = match closest(name, known.iter().copied()) {
        Some(meant) => format!("did you mean {}?", quote(meant)),
        None if known.is_empty() => "name the file with it".to_owned(),
        None => format!("name the file with it, or one of {}", list_names(known)),
    };
    Failure::usage(error, hint)
}

fn unknown_skill(objects: &[Object], skill: &str) -> Failure {
    let built_in = built_in::PACKS.iter().map(|(name, _)| *name);
    let known: Vec<&str> = packs(objects).map(|it| it.name.name.as_str()).chain(built_in).collect();
    let path = Path::new(skill);
    if path.exists() {
        let error = anyhow!("{} is no skill: it has no {FILE_NAME}", quote(skill));
        return Failure::usage(error, "`sympozium skill new` begins one");
    }
    not_found("skill", skill, &known)
}

/// Names listed in a hint.
const MAX_LISTED: usize = 20;

fn list_names(names: &[&str]) -> String {
    let shown: Vec<String> = names.iter().take(MAX_LISTED).map(|it| quote(it)).collect();
    let more = match names.len() > MAX_LISTED {
        true => ", …",
        false => "",
    };
    format!("{}{more}", shown.join(", "))
}

/// The directory of a skill, if `skill` is one or the `SKILL.md` in it.
pub fn skill_directory(skill: &str) -> Option<PathBuf> {
    let path = Path::new(skill);
    let path = match path.file_name() {
        Some(name) if name == FILE_NAME && path.is_file() => path.parent()?,
        _ => path,
    };
    let path = match path.as_os_str().is_empty() {
        true => Path::new("."),
        false => path,
    };
    path.join(FILE_NAME).is_file().then(|| path.to_owned())
}

/// Moves the packs from index `before` on into the run's namespace, and returns their names.
fn adopt_packs(session: &mut Session<'_>, before: usize, namespace: &str) -> Vec<String> {
    let mut names = Vec::new();
    for index in before..session.objects().len() {
        let Some(pack) = session.object_mut(index) else {
            continue;
        };
        if pack.is_kind(Kind::SkillPack) {
            pack.name.namespace = namespace.to_owned();
            pack.node.set(&["metadata", "namespace"], json!(namespace));
            names.push(pack.name.name.clone());
        }
    }
    names
}

/// A `skills` list for these packs, with the settings that the manifests have for them.
pub fn skill_references(skills: &[String], from: &[&Node]) -> Value {
    let written = |name: &String| {
        let lists = from.iter().filter_map(|it| it.get_path(&["spec", "skills"])?.as_list());
        let mut all = lists.flatten();
        let is = |it: &&Node| it.get("skillPackRef").and_then(Node::as_text) == Some(name);
        let found = all.find(is).map(Node::to_json);
        found.unwrap_or_else(|| json!({"skillPackRef": name}))
    };
    skills.iter().map(written).collect()
}
