//! `sympozium render`: prints the Kubernetes objects of a run.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::anyhow;
use serde_json::{Value, json};
use sympozium_manifests::planning::PlanResults;
use sympozium_manifests::validate::ObjectName;
use sympozium_plan::render::{RenderSettings, SandboxVersion, render};

use crate::arguments::{HostUsers, ObjectFormat, RenderArguments, SandboxVersionArgument};
use crate::failure::{Failure, exit_code};
use crate::output::{print_stderr, print_stdout, to_json, to_yaml};
use crate::planning::{self, NIL_UID, PlanRequest, plan_runs};

pub fn run(arguments: &RenderArguments) -> Result<ExitCode, Failure> {
    let settings = settings(arguments)?;
    let request = PlanRequest {
        files: &arguments.files,
        floor: arguments.floor.as_deref(),
        namespace: &arguments.namespace,
        run: arguments.run.as_deref(),
        uid: arguments.uid.as_deref().unwrap_or(NIL_UID),
    };
    let mut has_nil = false;
    let planning = plan_runs(&request, |planned| {
        has_nil |= planned.plan.run.uid.as_str() == NIL_UID;
        let rendered = render(&planned.plan, &planned.texts, &settings)?;
        let objects = rendered.objects.iter();
        objects.map(|item| Ok(item.object.to_value()?)).collect::<anyhow::Result<Vec<Value>>>()
    })?;
    check_unique_names(arguments, &planning)?;
    let objects: Vec<&Value> = planning.admitted().flat_map(|(_, objects)| objects).collect();
    print_stdout(&match arguments.output {
        ObjectFormat::Json => to_json(&json!({"apiVersion": "v1", "kind": "List", "items": objects}))?,
        ObjectFormat::Yaml => documents(&objects)?,
    })?;
    planning::print_failures(&planning);
    if has_nil && !objects.is_empty() {
        print_stderr(
            "note: names and owner references have a placeholder UID; set the UID of the run in the cluster with --uid",
        );
    }
    if arguments.host_users == HostUsers::Auto && !objects.is_empty() {
        print_stderr(
            "note: `hostUsers` is omitted, because it depends on the nodes of the cluster; set it with --host-users",
        );
    }
    Ok(exit_code(planning.conclusion()))
}

/// Names are derived from UIDs: if two runs have the same UID, the objects of one would replace those of the other.
fn check_unique_names(arguments: &RenderArguments, planning: &PlanResults<Vec<Value>>) -> Result<(), Failure> {
    const HINT: &str = "select one run with --run NAME, and set its UID with --uid";
    if arguments.uid.is_some() && planning.runs.len() > 1 {
        let error = anyhow!("--uid applies to one run, but the files have {}", planning.runs.len());
        return Err(Failure::new(error, HINT));
    }
    let mut seen: BTreeMap<String, &ObjectName> = BTreeMap::new();
    for (run, objects) in planning.admitted() {
        for object in objects {
            let metadata = &object["metadata"];
            let name = json!([object["kind"], metadata["namespace"], metadata["name"]]);
            let other = seen.insert(name.to_string(), &run.name);
            if let Some(other) = other.filter(|it| **it != run.name) {
                let error =
                    anyhow!("{other} and {} have no UID, and their objects would have the same names", run.name);
                return Err(Failure::new(error, HINT));
            }
        }
    }
    Ok(())
}

fn settings(arguments: &RenderArguments) -> Result<RenderSettings, Failure> {
    let mut settings = RenderSettings::default();
    if let Some(gateway) = arguments.gateway {
        settings.gateway.ip = gateway.ip();
        settings.gateway.port = gateway.port();
    }
    let port = settings.gateway.port;
    let canary = arguments.canary.or_else(|| port.checked_add(1));
    settings.gateway.canary_port = match canary {
        Some(canary) if canary != port => canary,
        _ => {
            let error = anyhow!(
                "the gateway and its canary cannot both use port {port}: runs must reach the gateway but not the canary"
            );
            let hint = "choose another port with --canary PORT";
            return Err(Failure::usage(error, hint));
        }
    };
    if !arguments.api_server.is_empty() {
        let servers = arguments.api_server.iter();
        settings.api_server = servers.map(|it| (it.ip(), it.port())).collect();
    }
    settings.host_users = match arguments.host_users {
        HostUsers::Auto => None,
        HostUsers::Always => Some(true),
        HostUsers::Never => Some(false),
    };
    settings.sandbox_version = match arguments.sandbox_version {
        SandboxVersionArgument::V1alpha1 => Some(SandboxVersion::V1Alpha1),
        SandboxVersionArgument::V1beta1 => Some(SandboxVersion::V1Beta1),
        SandboxVersionArgument::None => None,
    };
    Ok(settings)
}

fn documents(objects: &[&Value]) -> Result<String, Failure> {
    let mut text = String::new();
    for object in objects {
        text.push_str("---\n");
        text.push_str(&to_yaml(object)?);
    }
    Ok(text)
}
