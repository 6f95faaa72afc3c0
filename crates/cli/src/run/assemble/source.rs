//! Selects the run that is meant: an AgentRun of the files, one for an agent, or one that flags alone describe.

use anyhow::anyhow;
use sympozium_api::text::quote;
use sympozium_manifests::kinds::Kind;
use sympozium_manifests::tree::Node;
use sympozium_manifests::validate::{Object, closest};

use super::Assembler;
use crate::failure::Failure;

/// Names listed in a hint.
const MAX_LISTED: usize = 20;

/// What the run is made from. Numbers are indices of objects in the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunSource {
    /// An AgentRun of the files.
    Run(usize),
    /// An agent of the files; the AgentRun is built.
    Agent(usize),
    /// The agent of the cluster that `--agent` names; the AgentRun is built.
    ClusterAgent,
    /// Flags alone: agent and AgentRun are built.
    FlagsOnly,
}

impl Assembler<'_> {
    /// Finds what the run is made from. Fails if that is ambiguous, or a flag names what does not exist.
    pub(super) fn find_source(&self) -> Result<RunSource, Failure> {
        let objects = self.session.objects();
        let runs = find_indices(objects, |it| it.is_kind(Kind::AgentRun));
        let agents = find_indices(objects, is_agent);
        let in_cluster = self.target.is_cluster();
        let (run, agent) = (self.arguments.run.as_ref(), self.arguments.agent.as_ref());
        for (flag, name) in [("--run", run), ("--agent", agent.filter(|_| !in_cluster))] {
            if let (Some(name), true) = (name, self.inputs.files.is_empty()) {
                let error = anyhow!("{flag} {name} is for files, and none is named");
                return Err(Failure::usage(error, "name the files with the manifests"));
            }
        }
        if let Some(name) = run {
            let run = find_one(objects, &runs, name, "AgentRun")?;
            if let Some(agent) = agent
                && agent_name(&objects[run].node) != Some(agent)
            {
                let error = anyhow!("AgentRun {name} is not of agent {agent}");
                return Err(Failure::usage(error, "leave one of --run and --agent out"));
            }
            return Ok(RunSource::Run(run));
        }
        if let Some(name) = agent {
            // One that the files do not have is in the cluster, or the run's conditions will say that it is missing.
            let is_elsewhere = in_cluster && !agents.iter().any(|it| objects[*it].name.name == *name);
            return match is_elsewhere {
                true => Ok(RunSource::ClusterAgent),
                false => find_one(objects, &agents, name, "agent").map(RunSource::Agent),
            };
        }
        match (runs.as_slice(), agents.as_slice()) {
            ([run], _) => Ok(RunSource::Run(*run)),
            ([], [agent]) => Ok(RunSource::Agent(*agent)),
            ([], []) if in_cluster => Err(Failure::usage(
                anyhow!("neither a run nor an agent is named"),
                "name an agent of the cluster with --agent, or files with manifests",
            )),
            ([], []) => Ok(RunSource::FlagsOnly),
            ([], agents) => Err(ambiguous(objects, agents, "agents", "--agent")),
            (runs, _) => Err(ambiguous(objects, runs, "runs", "--run")),
        }
    }

    /// The agent of a run, if the files have it.
    pub(super) fn find_agent(&self, run: usize) -> Option<usize> {
        let objects = self.session.objects();
        let (run, namespace) = (&objects[run].node, &objects[run].name.namespace);
        let name = agent_name(run)?;
        objects.iter().position(|it| is_agent(it) && it.name.name == name && it.name.namespace == *namespace)
    }
}

fn find_indices(objects: &[Object], is_wanted: impl Fn(&Object) -> bool) -> Vec<usize> {
    let all = objects.iter().enumerate();
    all.filter(|(_, it)| is_wanted(it)).map(|(index, _)| index).collect()
}

/// Whether it is an Agent, or a SympoziumInstance, its older name.
fn is_agent(object: &Object) -> bool {
    object.is_kind(Kind::Agent) || object.is_kind(Kind::SympoziumInstance)
}

/// The name of the agent that a run refers to.
fn agent_name(run: &Node) -> Option<&str> {
    let field = |name: &str| run.get_path(&["spec", name]).and_then(Node::as_text);
    field("agentRef").or_else(|| field("instanceRef"))
}

/// Finds the one object of this name among `candidates`.
fn find_one(objects: &[Object], candidates: &[usize], name: &str, what: &str) -> Result<usize, Failure> {
    let mut found = candidates.iter().filter(|index| objects[**index].name.name == name);
    match (found.next(), found.next()) {
        (Some(only), None) => Ok(*only),
        (Some(_), Some(_)) => Err(Failure::usage(
            anyhow!("several objects among the files have the name {name}"),
            "name the file with the one that is meant",
        )),
        (None, _) => Err(not_found(what, name, &names(objects, candidates))),
    }
}

/// The failure if several objects match and none is named.
fn ambiguous(objects: &[Object], candidates: &[usize], what: &str, flag: &str) -> Failure {
    Failure::usage(
        anyhow!("there are several {what} among the files"),
        format!("choose one with {flag}: {}", list_names(&names(objects, candidates))),
    )
}

fn names<'o>(objects: &'o [Object], indices: &[usize]) -> Vec<&'o str> {
    indices.iter().map(|it| objects[*it].name.name.as_str()).collect()
}

/// The failure if there is no object of this name.
pub fn not_found(what: &str, name: &str, known: &[&str]) -> Failure {
    let error = anyhow!("there is no {what} {}", quote(name));
    let hint = match closest(name, known.iter().copied()) {
        Some(meant) => format!("did you mean {}?", quote(meant)),
        None if known.is_empty() => "name the file with it".to_owned(),
        None => format!("name the file with it, or one of {}", list_names(known)),
    };
    Failure::usage(error, hint)
}

fn list_names(names: &[&str]) -> String {
    let listed: Vec<String> = names.iter().take(MAX_LISTED).map(|it| quote(it)).collect();
    let more = match names.len() > MAX_LISTED {
        true => ", …",
        false => "",
    };
    format!("{}{more}", listed.join(", "))
}
