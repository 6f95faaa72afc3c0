//! Prepares a run for this machine: admits and plans it, and finds what the plan names here. Nothing has started yet.

mod data_objects;
mod floor;
mod image_directory;
mod prices;
mod privileged_files;
mod roots;
mod system_namespace;
#[cfg(test)]
mod tests;
mod unsupported;
mod workspace;

use std::collections::BTreeMap;

use anyhow::anyhow;
use sympozium_api::RunPlan;
use sympozium_api::names::Digest;
use sympozium_api::origin::ObjectOrigin;
use sympozium_api::provider::Provider;
use sympozium_api::run_plan::VolumeName;
use sympozium_api::skill_pack::Skill;
use sympozium_api::text::printable;
use sympozium_local::keys::{self, KeySources};
use sympozium_local::prepared_run::PreparedRun;
use sympozium_local::secrets::SecretStore;
use sympozium_local::state::{self, StateDirectory};
use sympozium_manifests::planning::{RunResult, plan_session};
use sympozium_manifests::validate::{Finding, FindingSeverity, ObjectName, Schemas, Session, ValidationStage};
use sympozium_plan::admit::Violation;
use sympozium_plan::host::Host;
use sympozium_plan::plan::Planned;

use super::arguments::RunArguments;
use super::assemble::{AssembledRun, HostEnvironment, Machine, Target, assemble, denial, model, unusable_manifests};
use crate::failure::Failure;
use data_objects::{DataObjects, PlanData};
use system_namespace::NamespaceClaims;

/// Assembles the one run that the arguments mean, admits and plans it, and finds everything that it needs on this
/// machine. A denial has exit code 3.
pub fn prepare(arguments: &RunArguments, state: &StateDirectory) -> Result<PreparedRun, Failure> {
    // A directory that others can write to is refused, not skipped: a floor in it would be missing without a notice.
    let hint = "make it yours alone: chmod go-w";
    let host = HostEnvironment {
        configuration: state::config_directory().map_err(|error| Failure::new(error, hint))?,
        data: state::data_directory().map_err(|error| Failure::new(error, hint))?,
        environment: &|name| std::env::var_os(name),
    };
    let uid = uuid::Uuid::new_v4().to_string();
    prepare_on(&host, arguments, state, &uid)
}

/// The same, with everything that it depends on as arguments.
fn prepare_on(
    host: &HostEnvironment<'_>,
    arguments: &RunArguments,
    state: &StateDirectory,
    uid: &str,
) -> Result<PreparedRun, Failure> {
    let workspace = arguments.workspace.as_deref().map(|it| workspace::check(it, state, host)).transpose()?;
    let floor = floor::find(arguments.floor.as_deref(), host)?;
    let prices = prices::read(host.configuration.as_deref())?;
    let machine = Machine {
        host,
        floor: floor.as_deref(),
        has_secret: &|session, namespace, name| has_secret(session, state, namespace, name),
        uid,
    };
    let AssembledRun { mut session, run, mut warnings } = assemble(arguments, Target::Machine(machine))?;
    let run = session.objects()[run].name.clone();
    let data = DataObjects::from_objects(session.objects(), &run.namespace);
    let claims = system_namespace::check(&mut session, &run);
    let planned = plan_run(session, &run, uid, claims, &mut warnings)?;
    let plan = &planned.plan;
    unsupported::check(plan)?;
    let PlanData { config_maps, secrets } = data.resolve_for_plan(plan, state)?;
    let roots = roots::find_roots(plan, &planned.texts, host, &mut warnings)?;
    if workspace.is_some() && plan.volume(&VolumeName("workspace".to_owned())).is_none() {
        warnings.push("--workspace has no effect: no part of the run may see files".to_owned());
    }
    privileged_files::check(plan, state, workspace.as_deref(), &mut warnings)?;
    if !plan.placement.node_selector.is_empty() {
        warnings.push("`nodeSelector` has no effect on one machine".to_owned());
    }
    // Last, because its command may prompt the user.
    let sources = KeySources {
        file: arguments.key_file.as_deref(),
        command: arguments.key_command.as_deref(),
        secret: &|name| data.find_secret(state, &run.namespace, name),
        environment: may_use_env_key(plan).then_some(host.environment),
    };
    let model_key = keys::find_key(&plan.model.keys, &sources)?;
    Ok(PreparedRun {
        plan: planned.plan,
        plan_bytes: planned.bytes,
        plan_digest: planned.digest,
        skill_texts: planned.texts,
        config_maps,
        secrets,
        model_key,
        roots,
        workspace,
        approve: arguments.approve,
        // No run names the floor, but each is bounded by it.
        origins: planned.origins.into_iter().chain([floor::origin(floor.as_deref())]).collect(),
        prices,
        warnings,
    })
}

/// Whether the files or this machine have a Secret of this name.
fn has_secret(session: &Session<'_>, state: &StateDirectory, namespace: &str, name: &str) -> bool {
    DataObjects::has_secret(session.objects(), namespace, name)
        || SecretStore::open(state, namespace)
            .and_then(|store| store.get(name))
            // One that cannot be read exists: reading it for the run gives the error.
            .map_or(true, |it| it.is_some())
}

/// What outlives the session of a planned run.
struct OwnedPlan {
    plan: RunPlan,
    bytes: Vec<u8>,
    digest: Digest,
    texts: BTreeMap<String, Vec<Skill>>,
    origins: Vec<ObjectOrigin>,
}

impl OwnedPlan {
    fn new(planned: &Planned<'_>) -> Self {
        let texts = planned.texts.iter();
        Self {
            plan: planned.plan.clone(),
            bytes: planned.bytes.clone(),
            digest: planned.digest.clone(),
            texts: texts.map(|it| (it.pack.clone(), it.skills.to_vec())).collect(),
            origins: Vec::new(),
        }
    }
}

fn plan_run(
    session: Session<'_>,
    run: &ObjectName,
    uid: &str,
    claims: NamespaceClaims,
    warnings: &mut Vec<String>,
) -> Result<OwnedPlan, Failure> {
    let schemas = &mut Schemas::default();
    let planning = plan_session(session, schemas, Some(&run.name), uid, |planned| Ok(OwnedPlan::new(planned)));
    let report = &planning.report;
    let findings = report.failures_text();
    let planned = planning.runs.into_iter().find(|it| it.name == *run);
    // A misspelt field may be a restriction.
    let Some(planned) = planned.filter(|_| !report.has_unreadable()) else {
        return Err(unusable_manifests(findings));
    };
    match planned.result {
        // Admission trusts namespaces, because the API server guards them in a cluster. On one machine nothing guards
        // them.
        RunResult::Admitted(_) if claims == NamespaceClaims::Denied => Err(denial(findings)),
        RunResult::Admitted(plan) => {
            let is_warning =
                |it: &&Finding| it.stage == ValidationStage::Admission && it.severity == FindingSeverity::Warning;
            warnings.extend(report.findings().iter().filter(is_warning).map(|it| it.message.clone()));
            Ok(OwnedPlan { origins: planned.origins, ..plan })
        }
        RunResult::Denied(violations) if findings.is_empty() => Err(denial(describe_violations(&violations))),
        RunResult::Denied(_) => Err(denial(findings)),
        RunResult::Undecided => {
            let error = anyhow!("an object that decides about the run is missing");
            Err(Failure::new(error, "name the files with it too").with_findings(findings))
        }
        RunResult::Failed(error) => {
            let error = error.context("the run cannot be planned");
            Err(Failure::new(error, "use fewer packs, or make texts shorter").with_findings(findings))
        }
    }
}

fn describe_violations(violations: &[Violation]) -> String {
    let describe = |it: &Violation| {
        let namespace = it.subject.namespace.as_deref().unwrap_or_default();
        let object = format!("{} {namespace}/{}", it.subject.kind, printable(&it.subject.name));
        format!("denied[{}]: {object}: {}: {}\n  hint: {}\n", it.rule, it.field, it.message, it.hint)
    };
    violations.iter().map(describe).collect()
}

/// Whether a key of the user's environment may be sent to the model's endpoint: it was set for the provider, and a
/// manifest can name any address.
fn may_use_env_key(plan: &RunPlan) -> bool {
    let Some(endpoint) = &plan.model.endpoint else {
        return false;
    };
    let provider = Provider::find(&plan.model.provider);
    provider.owns_endpoint(&endpoint.host, endpoint.port, endpoint.encrypted)
        || Host::parse(&endpoint.host).is_ok_and(|host| model::is_local_host(&host))
}
