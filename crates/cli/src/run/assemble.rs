//! Assembles a run from files and flags: the AgentRun, and the objects that it needs. Both backends take the result.
//!
//! Files are read; flags select the run that is meant, and change or add objects. Nothing is validated yet, so that the
//! result is judged as if it had been written that way. Nothing has started, and nothing was sent to a cluster.

mod flags;
pub mod inputs;
pub mod model;
mod model_flags;
mod policy;
mod skills;
mod source;

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use serde_json::{Value, json};
use sympozium_api::labels::{self, API_VERSION, FLOOR_POLICY, SYSTEM_NAMESPACE};
use sympozium_api::origin::COMMAND_LINE;
use sympozium_local::keys::EnvLookup;
use sympozium_manifests::built_in;
use sympozium_manifests::kinds::Kind;
use sympozium_manifests::load::LoadedFile;
use sympozium_manifests::sources::Reader;
use sympozium_manifests::tree::{Mark, Node};
use sympozium_manifests::validate::{Completeness, Object, ObjectName, Schemas, Session};

use crate::failure::Failure;
use crate::run::arguments::{PolicyChoice, RunArguments};
use inputs::RunInputs;
use source::RunSource;

/// Stands in for the file name of the floor that comes with this program.
const BUILT_IN_FLOOR: &str = "<built-in floor>";
/// The name of the agent that is built from flags alone.
const DEFAULT_AGENT: &str = "assistant";
/// The policy of that agent: commands need approval.
const DEFAULT_POLICY: &str = "default";
/// The `generateName` of a run without a name.
const GENERATE_NAME: &str = "run-";

/// Where the run is to be realised.
#[derive(Clone, Copy)]
pub enum Target<'t> {
    /// This machine. Every object is known here: flags change any of them, and objects that are missing are built.
    Machine(Machine<'t>),
    /// A cluster. It may have objects that are not known here: flags change the AgentRun only.
    Cluster {
        /// The namespace of objects that name none.
        namespace: &'t str,
    },
}

impl Target<'_> {
    const fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster { .. })
    }
}

/// What of this machine a run is assembled from, in addition to files and flags.
#[derive(Clone, Copy)]
pub struct Machine<'m> {
    pub host: &'m HostEnvironment<'m>,
    /// The file with the floor; `None` for the floor that comes with this program.
    pub floor: Option<&'m Path>,
    /// Whether the files or this machine have a Secret. Arguments: session, namespace, name.
    pub has_secret: &'m dyn Fn(&Session<'_>, &str, &str) -> bool,
    pub uid: &'m str,
}

/// The host environment: what of this machine decides about a run, in addition to its state.
pub struct HostEnvironment<'s> {
    /// The directory CONFIG, if the environment names one.
    pub configuration: Option<PathBuf>,
    /// The directory DATA, if the environment names one.
    pub data: Option<PathBuf>,
    pub environment: &'s EnvLookup<'s>,
}

/// An AgentRun, and everything that decides about it.
pub struct AssembledRun<'a> {
    /// All objects, which are not validated yet.
    pub session: Session<'a>,
    /// The index of the AgentRun among them.
    pub run: usize,
    /// What the user should know about the selection.
    pub warnings: Vec<String>,
}

/// Reads the files, and applies the flags to the run that is meant.
///
/// # Errors
///
/// When a file cannot be read, it is ambiguous which run is meant, or a flag names something that does not exist or has
/// no meaning for the target.
pub fn assemble<'a>(arguments: &'a RunArguments, target: Target<'a>) -> Result<AssembledRun<'a>, Failure> {
    if target.is_cluster() {
        flags::check_for_cluster(arguments)?;
    }
    let mut assembler = Assembler::new(arguments, target)?;
    let policy_file_start = assembler.read_files();
    if !assembler.session.is_readable() {
        let report = assembler.session.finish(&mut Schemas::default(), Completeness::Partial);
        return Err(unusable_manifests(report.failures_text()));
    }
    assembler.keep_policy_of_file(policy_file_start)?;
    let run = assembler.select_run()?;
    Ok(AssembledRun { session: assembler.session, run, warnings: assembler.warnings })
}

/// The failure for manifests with these findings.
pub fn unusable_manifests(findings: String) -> Failure {
    let error = anyhow!("the manifests cannot be used as they are");
    let hint = "correct what the lines above name; `sympozium validate` checks manifests";
    Failure::new(error, hint).with_findings(findings)
}

/// The failure for a run that is denied for the reasons in these findings.
pub fn denial(findings: String) -> Failure {
    let hint = "change what the lines above name; `sympozium explain` shows what a run could touch";
    Failure::denied(anyhow!("the run is denied"), hint).with_findings(findings)
}

struct Assembler<'a> {
    arguments: &'a RunArguments,
    target: Target<'a>,
    inputs: RunInputs,
    session: Session<'a>,
    reader: Reader,
    warnings: Vec<String>,
}

/// The run that is meant. Numbers are indices of objects in the session.
#[derive(Debug)]
struct SelectedRun {
    source: RunSource,
    namespace: String,
    run: usize,
    /// The agent, if flags may change it.
    agent: Option<usize>,
}

impl<'a> Assembler<'a> {
    fn new(arguments: &'a RunArguments, target: Target<'a>) -> Result<Self, Failure> {
        let session = match target {
            Target::Machine(_) => Session::for_machine(arguments.cluster.local_namespace()),
            Target::Cluster { namespace } => Session::for_cluster(namespace),
        };
        let inputs = RunInputs::from_arguments(arguments)?;
        Ok(Self { arguments, target, inputs, session, reader: Reader::default(), warnings: Vec::new() })
    }

    /// Reads the floor, the files, and the file of `--policy`. Returns the index of the first object of the latter.
    fn read_files(&mut self) -> usize {
        // First: of two objects with one name the first counts, and no file of a run decides about its floor.
        if let Target::Machine(machine) = self.target {
            match machine.floor {
                Some(path) => self.session.add_floor(&mut self.reader, path),
                None => {
                    let text = built_in::policy_text(FLOOR_POLICY).unwrap_or_default();
                    self.session.add_floor_text(BUILT_IN_FLOOR, text);
                }
            }
        }
        let floor_end = self.session.objects().len();
        self.session.add_inputs(&self.inputs.files, &mut self.reader);
        if let Target::Machine(machine) = self.target {
            self.drop_file_floors(floor_end, machine.floor);
        }
        let policy_file_start = self.session.objects().len();
        if let Some(PolicyChoice::InFile(path)) = &self.arguments.policy {
            self.session.add_inputs(std::slice::from_ref(path), &mut self.reader);
        }
        policy_file_start
    }

    /// Removes objects of the files that would replace the floor: a run does not bring its own.
    fn drop_file_floors(&mut self, floor_end: usize, floor: Option<&Path>) {
        let mut reserved: Vec<ObjectName> =
            self.session.objects()[..floor_end].iter().map(|it| it.name.clone()).collect();
        reserved.push(ObjectName {
            kind: Kind::SympoziumPolicy.name().to_owned(),
            namespace: SYSTEM_NAMESPACE.to_owned(),
            name: FLOOR_POLICY.to_owned(),
        });
        let before = self.session.objects().len();
        let mut index = 0;
        self.session.retain(|object| {
            let is_retained = index < floor_end || !reserved.contains(&object.name);
            index += 1;
            is_retained
        });
        if self.session.objects().len() < before && floor.is_none() {
            self.warnings.push(
                "the floor among the files does not count: put it into CONFIG/floor.yaml, or name it with --floor"
                    .to_owned(),
            );
        }
    }

    /// Finds or builds the run that is meant, and changes it as the flags say. Returns its index.
    fn select_run(&mut self) -> Result<usize, Failure> {
        let source = self.find_source()?;
        let namespace = self.namespace_of(source);
        // Before any index is stored: it can remove objects.
        let policy = self.choose_policy(source, &namespace)?;
        let source = self.find_source()?;
        self.check_task(source)?;
        let skills = self.resolve_skills(&namespace)?;
        let selected = self.find_or_build(source, namespace)?;
        self.apply_to_agent(selected.agent, &skills, policy.as_deref());
        self.apply_to_run(&selected, &skills);
        self.apply_model(&selected)?;
        Ok(selected.run)
    }

    fn namespace_of(&self, source: RunSource) -> String {
        let namespace = match (source, self.target) {
            (RunSource::Run(index) | RunSource::Agent(index), _) => {
                self.session.objects()[index].name.namespace.as_str()
            }
            (RunSource::ClusterAgent | RunSource::FlagsOnly, Target::Cluster { namespace }) => namespace,
            (RunSource::ClusterAgent | RunSource::FlagsOnly, Target::Machine(_)) => {
                self.arguments.cluster.local_namespace()
            }
        };
        namespace.to_owned()
    }

    fn check_task(&self, source: RunSource) -> Result<(), Failure> {
        let field = |name: &str| match source {
            RunSource::Run(run) => {
                let value = self.session.objects()[run].node.get_path(&["spec", name]);
                value.map(Node::to_json).unwrap_or_default()
            }
            RunSource::Agent(_) | RunSource::ClusterAgent | RunSource::FlagsOnly => Value::Null,
        };
        if field("dryRun") == true && !self.target.is_cluster() {
            let error = anyhow!("the run has `dryRun: true`: it is to be planned only");
            return Err(Failure::new(error, "`sympozium explain` shows its plan"));
        }
        if field("cancel") == true {
            let error = anyhow!("the run has `cancel: true`: it would end before it starts");
            return Err(Failure::new(error, "remove `cancel`"));
        }
        if self.inputs.task.is_none() && field("task").is_null() {
            let error = anyhow!("there is no task");
            let hint = "say what the agent is to do: sympozium run [FILE…] \"TASK\"";
            return Err(Failure::usage(error, hint));
        }
        Ok(())
    }

    fn find_or_build(&mut self, source: RunSource, namespace: String) -> Result<SelectedRun, Failure> {
        let (run, agent) = match source {
            RunSource::Run(run) => (Some(run), self.find_agent(run)),
            RunSource::Agent(agent) => (None, Some(agent)),
            RunSource::ClusterAgent => (None, None),
            RunSource::FlagsOnly => (None, Some(self.build_agent(&namespace)?)),
        };
        let run = run.unwrap_or_else(|| self.build_run(agent, &namespace));
        // In a cluster, the agent of the files is created as it is, or exists already.
        let agent = agent.filter(|_| !self.target.is_cluster());
        Ok(SelectedRun { source, namespace, run, agent })
    }

    fn build_agent(&mut self, namespace: &str) -> Result<usize, Failure> {
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
        Ok(self.add_object(agent))
    }

    fn build_run(&mut self, agent: Option<usize>, namespace: &str) -> usize {
        let agent = match agent {
            Some(agent) => Some(&self.session.objects()[agent].name.name),
            None => self.arguments.agent.as_ref(),
        };
        let run = json!({
            "apiVersion": API_VERSION,
            "kind": "AgentRun",
            "metadata": {"generateName": GENERATE_NAME, "namespace": namespace},
            "spec": {"agentRef": agent},
        });
        self.add_object(run)
    }

    /// Adds an object as if a file contained it, and returns its index.
    fn add_object(&mut self, object: Value) -> usize {
        let index = self.session.objects().len();
        let loaded = LoadedFile { documents: vec![Node::from_json(object, Mark::START)], ..LoadedFile::default() };
        self.session.add_loaded(COMMAND_LINE.to_owned(), loaded);
        index
    }

    fn apply_to_agent(&mut self, agent: Option<usize>, skills: &[String], policy: Option<&str>) {
        let Some(agent) = agent.and_then(|index| self.session.object_mut(index)) else {
            return;
        };
        if !skills.is_empty() {
            let references = skills::references(skills, &[&agent.node]);
            agent.node.set(&["spec", "skills"], references);
        }
        if let Some(policy) = policy {
            agent.node.set(&["spec", "policyRef"], json!(policy));
        }
    }

    fn apply_to_run(&mut self, selected: &SelectedRun, skills: &[String]) {
        let agent = selected.agent.map(|index| self.session.objects()[index].node.clone());
        let Some(object) = self.session.object_mut(selected.run) else {
            return;
        };
        match self.target {
            Target::Machine(machine) => identify(object, machine.uid, &selected.namespace),
            Target::Cluster { .. } => make_new(&mut object.node, &selected.namespace),
        }
        let node = &mut object.node;
        if let Some(task) = &self.inputs.task {
            node.set(&["spec", "task"], json!(task));
        }
        if let Some(timeout) = &self.arguments.timeout {
            node.set(&["spec", "timeout"], json!(timeout));
        }
        if !skills.is_empty() {
            let sources: Vec<&Node> = std::iter::once(&*node).chain(&agent).collect();
            let references = skills::references(skills, &sources);
            node.set(&["spec", "skills"], references);
        }
    }
}

/// Gives a run on this machine its UID and its name. A UID in the manifest is that of another run.
fn identify(run: &mut Object, uid: &str, namespace: &str) {
    let node = &mut run.node;
    node.set(&["metadata", "uid"], json!(uid));
    if run.name.name.is_empty() {
        let prefix = node.get_path(&["metadata", "generateName"]).and_then(Node::as_text).unwrap_or(GENERATE_NAME);
        run.name.name = format!("{prefix}{}", uid.get(..8).unwrap_or(uid));
        node.set(&["metadata", "name"], json!(run.name.name));
    }
    node.set(&["metadata", "namespace"], json!(namespace));
}

/// Makes the manifest one of a new run: the API server assigns the rest of its metadata, and the name if it has none.
fn make_new(run: &mut Node, namespace: &str) {
    let field = |name: &str| run.get_path(&["metadata", name]);
    let text = |name: &str| field(name).and_then(Node::as_text).filter(|it| !it.is_empty());
    let mut metadata = json!({"namespace": namespace});
    for name in ["labels", "annotations"] {
        if let Some(map) = field(name).map(Node::to_json).filter(Value::is_object) {
            metadata[name] = map;
        }
    }
    if metadata["labels"][labels::SOURCE].is_null() {
        metadata["labels"][labels::SOURCE] = json!("cli");
    }
    match text("name") {
        Some(name) => metadata["name"] = json!(name),
        None => metadata["generateName"] = json!(text("generateName").unwrap_or(GENERATE_NAME)),
    }
    run.set(&["metadata"], metadata);
    run.remove(&["status"]);
}
