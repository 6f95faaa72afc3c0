//! Assembles a run from files and flags, and resolves everything that it needs on this machine.
//!
//! The stages are those of the cluster: files are read, flags change or add objects, all of them are validated, the run
//! is admitted and planned. Then what the plan names is looked up on this machine. Nothing has started yet.

mod data_objects;
mod image_directory;
pub mod inputs;
mod model;
mod prices;
mod privileged_files;
mod roots;
pub mod selection;
mod system_namespace;
#[cfg(test)]
mod tests;
mod unsupported;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use sympozium_api::RunPlan;
use sympozium_api::labels::{FLOOR_POLICY, SYSTEM_NAMESPACE};
use sympozium_api::names::Digest;
use sympozium_api::origin::{ObjectOrigin, Origin, POLICY_KIND};
use sympozium_api::provider::Provider;
use sympozium_api::run_plan::VolumeName;
use sympozium_api::skill_pack::Skill;
use sympozium_api::text::printable;
use sympozium_manifests::built_in;
use sympozium_manifests::kinds::Kind;
use sympozium_manifests::planning::{RunResult, plan_session};
use sympozium_manifests::sources::Reader;
use sympozium_manifests::validate::{Completeness, FindingSeverity, ObjectName, Schemas, Session, ValidationStage};
use sympozium_plan::host::Host;
use sympozium_plan::plan::Planned;

use crate::failure::Failure;
use crate::run::arguments::{PolicyChoice, RunArguments};
use data_objects::{DataObjects, PlanData};
use inputs::RunInputs;
use selection::Assembler;
use sympozium_local::keys::{self, EnvLookup, KeySources};
use sympozium_local::prepared_run::PreparedRun;
use sympozium_local::secrets::SecretStore;
use sympozium_local::state::{self, StateDirectory, is_exclusively_ours};
use system_namespace::NamespaceClaims;

/// Stands in for the file name of the floor that comes with this program.
const BUILT_IN_FLOOR: &str = "<built-in floor>";

/// The host environment: what of this machine decides about a run, besides its state.
pub struct HostEnvironment<'s> {
    /// The directory CONFIG, if the environment names one.
    pub configuration: Option<PathBuf>,
    /// The directory DATA, if the environment names one.
    pub data: Option<PathBuf>,
    pub environment: &'s EnvLookup<'s>,
}

/// Reads, assembles, admits and plans the one run that the arguments mean, and finds everything that it needs on this
/// machine. A denial has exit code 3.
pub fn assemble(arguments: &RunArguments, state: &StateDirectory) -> Result<PreparedRun, Failure> {
    // A directory that others can write to is refused, not skipped: a floor in it would be missing without a notice.
    let place = |found: anyhow::Result<Option<PathBuf>>| {
        found.map_err(|error| Failure::new(error, "make it yours alone: chmod go-w"))
    };
    let surroundings = HostEnvironment {
        configuration: place(state::config_directory())?,
        data: place(state::data_directory())?,
        environment: &|name| std::env::var_os(name),
    };
    let uid = uuid::Uuid::new_v4().to_string();
    assemble_in(arguments, state, &surroundings, &uid)
}

/// The same, with everything that it depends on as arguments.
fn assemble_in(
    arguments: &RunArguments,
    state: &StateDirectory,
    surroundings: &HostEnvironment<'_>,
    uid: &str,
) -> Result<PreparedRun, Failure> {
    let inputs = RunInputs::from_arguments(arguments)?;
    let workspace = arguments.workspace.as_deref();
    let workspace = workspace.map(|it| check_workspace(it, state, surroundings)).transpose()?;
    let mut warnings = Vec::new();
    let mut reader = Reader::default();
    let mut session = Session::for_machine(arguments.cluster.local_namespace());
    // First: of two objects with one name the first counts, and no file of a run decides about its floor.
    let floor = floor_file(arguments, surroundings)?;
    match &floor {
        Some(path) => session.add_floor(&mut reader, path),
        None => {
            let text = built_in::policy_text(FLOOR_POLICY).unwrap_or_default();
            session.add_floor_text(BUILT_IN_FLOOR, text);
        }
    }
    let prices = prices::read(surroundings.configuration.as_deref())?;
    let of_floor = session.objects().len();
    session.add_inputs(&inputs.files, &mut reader);
    drop_file_floors(&mut session, of_floor, floor.as_deref(), &mut warnings);
    let first_of_policy_file = session.objects().len();
    if let Some(PolicyChoice::InFile(path)) = &arguments.policy {
        session.add_inputs(std::slice::from_ref(path), &mut reader);
    }
    if !session.is_readable() {
        let report = session.finish(&mut Schemas::default(), Completeness::Partial);
        return Err(unusable_manifests(report.failures_text()));
    }

    let composing = Assembler {
        arguments,
        inputs: &inputs,
        host: surroundings,
        has_secret: &|session, namespace, name| {
            DataObjects::has_secret(session.objects(), namespace, name)
                || SecretStore::open(state, namespace)
                    .and_then(|store| store.get(name))
                    // One that cannot be read is there: reading it for the run gives the error.
                    .map_or(true, |it| it.is_some())
        },
        uid,
        policy_file_start: first_of_policy_file,
    };
    let chosen = composing.choose(&mut session, &mut reader)?;
    let run = chosen.run;
    warnings.extend(chosen.warnings);
    let data = DataObjects::from_objects(session.objects(), &run.namespace);
    let claims = system_namespace::check(&mut session, &run);
    let made = plan_run(session, &run, uid, claims, &mut warnings)?;
    let plan = &made.plan;
    unsupported::check(plan)?;
    let PlanData { config_maps, secrets } = data.resolve_for_plan(plan, state)?;
    let sources = KeySources {
        file: arguments.key_file.as_deref(),
        command: arguments.key_command.as_deref(),
        secret: &|name| data.find_secret(state, &run.namespace, name),
        environment: may_use_env_key(plan).then_some(surroundings.environment),
    };
    let roots = roots::find_roots(plan, &made.texts, surroundings, &mut warnings)?;
    if workspace.is_some() && plan.volume(&VolumeName("workspace".to_owned())).is_none() {
        warnings.push("--workspace is of no use: no part of the run may see files".to_owned());
    }
    privileged_files::check(plan, state, workspace.as_deref(), &mut warnings)?;
    if !plan.placement.node_selector.is_empty() {
        warnings.push("`nodeSelector` means nothing on one machine".to_owned());
    }
    // Last, because its command may prompt the user.
    let model_key = keys::find_key(&plan.model.keys, &sources)?;
    Ok(PreparedRun {
        plan: made.plan,
        plan_bytes: made.bytes,
        plan_digest: made.digest,
        skill_texts: made.texts,
        config_maps,
        secrets,
        model_key,
        roots,
        workspace,
        approve: arguments.approve,
        origins: add_floor_origin(made.origins, floor.as_deref()),
        prices,
        warnings,
    })
}

/// The file with the floor; `None` for the floor that comes with this program.
fn floor_file(arguments: &RunArguments, surroundings: &HostEnvironment<'_>) -> Result<Option<PathBuf>, Failure> {
    let of_machine = surroundings.configuration.as_ref().map(|it| it.join("floor.yaml"));
    let Some(path) = of_machine else {
        return Ok(arguments.floor.clone());
    };
    let found = match fs::metadata(&path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.symlink_metadata().is_err() => {
            return Ok(arguments.floor.clone());
        }
        // A dangling link is a floor that cannot be read.
        Err(error) => {
            let error = anyhow::Error::from(error).context(format!("cannot read {}", path.display()));
            return Err(Failure::new(error, "every run here is held to it: make it readable, or remove it"));
        }
    };
    if !found.is_file() || !is_exclusively_ours(&found) {
        let error = anyhow!("{} belongs to somebody else, or others may write to it", path.display());
        return Err(Failure::new(error, "every run here is held to it: chmod 600, and make it yours"));
    }
    if arguments.floor.is_some() {
        let error = anyhow!("the floor of this machine is {}", path.display());
        return Err(Failure::usage(error, "leave --floor out, or change that file"));
    }
    Ok(Some(path))
}

/// Removes objects of the files that would replace the floor: a run does not bring its own.
fn drop_file_floors(session: &mut Session<'_>, of_floor: usize, floor: Option<&Path>, warnings: &mut Vec<String>) {
    let mut held: Vec<ObjectName> = session.objects()[..of_floor].iter().map(|it| it.name.clone()).collect();
    held.push(ObjectName {
        kind: Kind::SympoziumPolicy.name().to_owned(),
        namespace: SYSTEM_NAMESPACE.to_owned(),
        name: FLOOR_POLICY.to_owned(),
    });
    let mut index = 0;
    let mut left_out = 0;
    session.retain(|object| {
        let is_kept = index < of_floor || !held.contains(&object.name);
        index += 1;
        left_out += usize::from(!is_kept);
        is_kept
    });
    if left_out > 0 && floor.is_none() {
        warnings.push(
            "the floor among the files does not count: put it into CONFIG/floor.yaml, or name it with --floor"
                .to_owned(),
        );
    }
}

/// Adds the floor, which no run names.
fn add_floor_origin(mut origins: Vec<ObjectOrigin>, floor: Option<&Path>) -> Vec<ObjectOrigin> {
    let from = match floor {
        Some(path) => Origin::File { path: printable(path.display().to_string()).into_owned() },
        None => Origin::Shipped,
    };
    origins.push(ObjectOrigin { kind: POLICY_KIND.to_owned(), name: FLOOR_POLICY.to_owned(), from });
    origins
}

/// The parts of a plan that outlive the session.
struct OwnedPlan {
    plan: RunPlan,
    bytes: Vec<u8>,
    digest: Digest,
    texts: BTreeMap<String, Vec<Skill>>,
    origins: Vec<ObjectOrigin>,
}

fn plan_run(
    session: Session<'_>,
    run: &ObjectName,
    uid: &str,
    claims: NamespaceClaims,
    warnings: &mut Vec<String>,
) -> Result<OwnedPlan, Failure> {
    let make = |planned: &Planned<'_>| {
        let texts = planned.texts.iter();
        Ok(OwnedPlan {
            plan: planned.plan.clone(),
            bytes: planned.bytes.clone(),
            digest: planned.digest.clone(),
            texts: texts.map(|it| (it.pack.clone(), it.skills.to_vec())).collect(),
            origins: Vec::new(),
        })
    };
    let mut planning = plan_session(session, &mut Schemas::default(), Some(&run.name), uid, make);
    let findings = planning.report.failures_text();
    let judged = planning.runs.iter().position(|it| it.name == *run);
    let judged = judged.map(|it| planning.runs.swap_remove(it));
    let (outcome, origins) = judged.map(|it| (it.result, it.origins)).unzip();
    // A misspelt field may be a restriction.
    let outcome = outcome.filter(|_| !planning.report.has_unreadable());
    match outcome {
        // Admission trusts namespaces, because the API server guards them in a cluster. On one machine nothing guards
        // them.
        Some(RunResult::Admitted(_)) if claims == NamespaceClaims::Denied => Err(denial(findings)),
        Some(RunResult::Admitted(made)) => {
            let of_admission = planning.report.findings().iter();
            let of_admission = of_admission
                .filter(|it| it.stage == ValidationStage::Admission && it.severity == FindingSeverity::Warning);
            warnings.extend(of_admission.map(|it| it.message.clone()));
            Ok(OwnedPlan { origins: origins.unwrap_or_default(), ..made })
        }
        Some(RunResult::Denied(denials)) => {
            let findings = match findings.is_empty() {
                true => denials
                    .iter()
                    .map(|it| {
                        let namespace = it.subject.namespace.as_deref().unwrap_or_default();
                        let object = format!("{} {namespace}/{}", it.subject.kind, printable(&it.subject.name));
                        format!("denied[{}]: {object}: {}: {}\n  hint: {}\n", it.rule, it.field, it.message, it.hint)
                    })
                    .collect(),
                false => findings,
            };
            Err(denial(findings))
        }
        Some(RunResult::Undecided) => {
            let error = anyhow!("something that decides about the run is missing");
            Err(Failure::new(error, "name the files with it too").with_findings(findings))
        }
        Some(RunResult::Failed(error)) => {
            let error = error.context("the run cannot be planned");
            Err(Failure::new(error, "use fewer packs, or make texts shorter").with_findings(findings))
        }
        None => Err(unusable_manifests(findings)),
    }
}

fn denial(findings: String) -> Failure {
    let hint = "change what the lines above name; `sympozium explain` shows what a run could touch";
    Failure::denied(anyhow!("the run is denied"), hint).with_findings(findings)
}

/// The failure for manifests with these findings.
pub fn unusable_manifests(findings: String) -> Failure {
    let error = anyhow!("the manifests cannot be used as they are");
    let hint = "correct what the lines above name; `sympozium validate` checks manifests";
    Failure::new(error, hint).with_findings(findings)
}

/// Whether a key of the user's environment may be sent to the model's endpoint: it was set for the provider, and a
/// manifest can name any address.
fn may_use_env_key(plan: &RunPlan) -> bool {
    let Some(endpoint) = &plan.model.endpoint else {
        return false;
    };
    let provider = Provider::find(&plan.model.provider);
    let is_own = provider.owns_endpoint(&endpoint.host, endpoint.port, endpoint.encrypted);
    is_own || Host::parse(&endpoint.host).is_ok_and(|host| model::is_local_host(&host))
}

/// Checks the directory of `--workspace`: it must not contain, or be in, directories that decide about runs.
fn check_workspace(
    path: &Path,
    state: &StateDirectory,
    surroundings: &HostEnvironment<'_>,
) -> Result<PathBuf, Failure> {
    let hint = "give --workspace a directory of the project that the agent works on";
    let real = fs::canonicalize(path).with_context(|| format!("cannot use {}", path.display()));
    let real = real.map_err(|error| Failure::new(error, hint))?;
    if !real.is_dir() {
        let error = anyhow!("{} is not a directory", real.display());
        return Err(Failure::new(error, hint));
    }
    let runs = state.runs_directory();
    let of_state = runs.parent().unwrap_or(&runs);
    let ours = [Some(of_state), surroundings.configuration.as_deref(), surroundings.data.as_deref()];
    for ours in ours.into_iter().flatten() {
        // A directory that does not exist yet has no other name.
        let ours = fs::canonicalize(ours).unwrap_or_else(|_| ours.to_owned());
        if ours.starts_with(&real) || (real.starts_with(&ours) && !is_run_workspace(&real, &ours)) {
            let error =
                anyhow!("the agent could write to {}, where secrets and rules of this machine are", ours.display());
            return Err(Failure::new(error, hint));
        }
    }
    Ok(real)
}

/// Whether this is the workspace of an earlier run.
fn is_run_workspace(path: &Path, state: &Path) -> bool {
    let below: Vec<_> = path.strip_prefix(state).into_iter().flatten().collect();
    matches!(below.as_slice(), [runs, _, workspace, ..] if *runs == "runs" && *workspace == "workspace")
}
