//! `sympozium render`: the Kubernetes objects of a run.

use std::process::ExitCode;

use serde_json::{Value, json};
use sympozium_plan::render::{RenderSettings, SandboxVersion, render};

use crate::arguments::{HostUsers, ObjectFormat, RenderArguments, SandboxVersionArgument};
use crate::failure::{DENIED, FAILED, Failure};
use crate::output::{answer, json, note, yaml};
use crate::planning::{self, NIL_UID, Request, plan_runs};
use crate::validate::Verdict;

/// Renders what the arguments name.
pub fn run(arguments: &RenderArguments) -> Result<ExitCode, Failure> {
    let settings = settings(arguments);
    let request = Request {
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
        objects
            .map(|item| Ok(item.object.to_value()?))
            .collect::<anyhow::Result<Vec<Value>>>()
    })?;
    let objects: Vec<&Value> = planning.made().flat_map(|(_, objects)| objects).collect();
    answer(&match arguments.output {
        ObjectFormat::Json => json(&json!({"apiVersion": "v1", "kind": "List", "items": objects}))?,
        ObjectFormat::Yaml => documents(&objects)?,
    })?;
    planning::tell(&planning);
    if has_nil && !objects.is_empty() {
        note(
            "note: names and owners are those of a run without a UID; --uid takes the one that the cluster gave it",
        );
    }
    if arguments.host_users == HostUsers::Auto && !objects.is_empty() {
        note(
            "note: `hostUsers` is left out, because only the cluster knows whether its nodes have user namespaces; --host-users sets it",
        );
    }
    Ok(match planning.verdict() {
        None | Some(Verdict::Warning) => ExitCode::SUCCESS,
        Some(Verdict::Denied) => ExitCode::from(DENIED),
        Some(Verdict::Error) => ExitCode::from(FAILED),
    })
}

fn settings(arguments: &RenderArguments) -> RenderSettings {
    let mut settings = RenderSettings::default();
    if let Some(gateway) = arguments.gateway {
        settings.gateway.ip = gateway.ip();
        settings.gateway.port = gateway.port();
    }
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
    settings
}

fn documents(objects: &[&Value]) -> Result<String, Failure> {
    let mut text = String::new();
    for object in objects {
        text.push_str("---\n");
        text.push_str(&yaml(object)?);
    }
    Ok(text)
}
