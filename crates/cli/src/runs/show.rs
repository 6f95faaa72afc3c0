//! `sympozium show`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

use sympozium_api::origin;
use sympozium_exec::IsolationReport;
use sympozium_exec::report::GuaranteeState;
use sympozium_runs::time::{format_timestamp, now_ms};
use sympozium_runs::{RunDetails, RunEnd, short_uid};

use super::arguments::ShowArguments;
use super::duration::format_age;
use super::table::indent_lines;
use super::view::{format_cost, format_duration};
use crate::arguments::OutputFormat;
use crate::backend;
use crate::failure::Failure;
use crate::output::{print_stdout, to_json};
use crate::page::Page;
use sympozium_api::text::printable;

pub fn show(arguments: &ShowArguments) -> Result<ExitCode, Failure> {
    let details = backend::open_store(&arguments.cluster)?.show(&arguments.run)?;
    match arguments.output {
        OutputFormat::Json => print_stdout(&to_json(&details)?)?,
        OutputFormat::Text => print_stdout(&format_details(&details, now_ms()))?,
    }
    Ok(ExitCode::SUCCESS)
}

pub fn format_details(details: &RunDetails, now_ms: u64) -> String {
    let view = &details.view;
    let mut text = String::new();
    let mut field = |name: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<11}{}", printable(value));
    };
    field("run", &view.name);
    field("uid", &view.uid);
    field("state", &describe_state(details));
    field("agent", &format!("{} in namespace {}", view.agent, view.namespace));
    field("model", &view.model);
    field(
        "skills",
        &match (origin::format_origins(&details.origins, origin::PACK_KIND), &view.skills) {
            (_, skills) if skills.is_empty() => "none".to_owned(),
            (packs, skills) if packs.is_empty() => skills.join(", "),
            (packs, _) => packs,
        },
    );
    let policies = origin::format_origins(&details.origins, origin::POLICY_KIND);
    if !policies.is_empty() {
        field("policy", &policies);
    }
    let since = format_age(now_ms.saturating_sub(view.started_ms));
    field("started", &format!("{}, {since} ago", format_timestamp(view.started_ms)));
    match (view.ended_ms, view.alive) {
        (Some(ended), _) => {
            field("ended", &format!("{}, after {}", format_timestamp(ended), format_duration(view, now_ms)))
        }
        (None, true) => {}
        (None, false) => field("ended", "unknown: its process was killed"),
    }
    if let Some(pid) = details.pid.filter(|_| view.alive) {
        field("process", &pid.to_string());
    }
    if let Some(pod) = &details.pod {
        field("pod", pod);
    }
    let usage = &view.usage;
    let estimated = if usage.estimated { " (estimated)" } else { "" };
    field(
        "used",
        &format!(
            "{}, {} input tokens, {} output tokens{estimated}, {}",
            format_count(usage.model_requests, "model request"),
            usage.input_tokens,
            usage.output_tokens,
            format_count(usage.tool_calls, "tool call")
        ),
    );
    if let Some(cost) = format_cost(view) {
        field("cost", &cost);
    }
    if let Some(plan) = &details.plan {
        field("plan", plan.as_ref());
    }
    if let Some(workspace) = &view.workspace {
        field("workspace", &workspace.display().to_string());
    }

    let section = |text: &mut String, title: &str, content: &str| {
        let _ = write!(text, "\n{title}\n{content}");
    };
    section(&mut text, "TASK", &indent_lines("  ", &details.task));
    if !details.waits_for.is_empty() {
        let waits_for: String = details.waits_for.iter().map(|it| indent_lines("  ", it)).collect();
        section(&mut text, "WAITING FOR", &waits_for);
    }
    if !details.questions.is_empty() {
        let mut questions = String::new();
        for question in &details.questions {
            let _ = writeln!(questions, "  {}:", printable(&question.approval));
            questions.push_str(&indent_lines("    ", &question.shown));
        }
        section(&mut text, "PENDING QUESTIONS", &questions);
    }
    match &details.outcome {
        Some(RunEnd::Succeeded { answer }) => section(&mut text, "ANSWER", &indent_lines("  ", answer)),
        Some(RunEnd::Failed { why }) => section(&mut text, "WHY IT FAILED", &indent_lines("  ", why)),
        Some(RunEnd::Denied { why }) => section(&mut text, "WHY IT WAS DENIED", &indent_lines("  ", why)),
        Some(RunEnd::Refused { why }) => section(&mut text, "WHY IT COULD NOT BE STARTED", &indent_lines("  ", why)),
        _ => {}
    }
    section(&mut text, "ISOLATION", &format_isolation(&details.isolation));
    if let Some(directory) = &view.directory {
        let directory = printable(directory.display().to_string());
        let mut files = format!("  {:<11}{directory}\n", "directory");
        for (name, path) in &details.files {
            let name_in = path.file_name().unwrap_or_default().to_string_lossy();
            let _ = writeln!(files, "  {name:<11}{name_in}");
        }
        section(&mut text, "FILES", &files);
    }
    if let Some(left) = details.leftovers.as_ref().filter(|left| !left.is_empty()) {
        let left: String = left.iter().map(|it| indent_lines("  ", it)).collect();
        section(&mut text, "NOT REMOVED BY THE TEARDOWN", &left);
    }
    section(&mut text, "NEXT", &next_commands(details));
    text
}

fn format_count(number: u64, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}

fn describe_state(details: &RunDetails) -> String {
    let explanation = match &details.outcome {
        Some(RunEnd::Succeeded { .. }) => "the run has an answer",
        Some(RunEnd::Failed { .. }) => "the run has no answer",
        Some(RunEnd::Refused { .. }) => "the run could not be started",
        Some(RunEnd::Denied { .. }) => "a policy denies the run",
        Some(RunEnd::TimedOut) => "the run reached its timeout",
        Some(RunEnd::Cancelled) => "a user ended the run",
        Some(RunEnd::Interrupted) => "the process of the run was killed",
        None => return details.view.state.to_owned(),
    };
    format!("{}: {explanation}", details.view.state)
}

/// The isolation of each part, as text.
fn format_isolation(parts: &BTreeMap<String, IsolationReport>) -> String {
    let mut page = Page::default();
    if parts.is_empty() {
        page.paragraph(2, "no part was started");
    }
    for (part, report) in parts {
        let mut enforced = Vec::new();
        let mut others = Vec::new();
        for (guarantee, state) in &report.guarantees {
            match state {
                GuaranteeState::Enforced { .. } => enforced.push(guarantee.as_str()),
                other => others.push(format!("{guarantee}: {other}")),
            }
        }
        let summary = match enforced.is_empty() {
            true => "nothing is enforced".to_owned(),
            false => format!("enforced: {}", enforced.join(", ")),
        };
        page.paragraph(2, &format!("{part} ({}): {summary}", report.profile));
        others.iter().for_each(|other| page.list_item(4, "- ", other));
    }
    page.finish()
}

/// The commands that are useful next.
fn next_commands(details: &RunDetails) -> String {
    let mut page = Page::default();
    // By UID: a newer run may have the same name.
    let target = details.view.target.as_str();
    let run = match details.view.directory {
        Some(_) => short_uid(&details.view.uid),
        // In a cluster names are unique, and looked up faster.
        None => details.view.name.clone(),
    };
    let mut add = |what: &str, command: &str| {
        page.paragraph(2, &format!("{what}: sympozium {command} {run}{target}"));
    };
    if details.view.alive {
        if !details.questions.is_empty() {
            add("approve its pending question", "approve");
        }
        add("follow it", "logs -f");
        add("end and remove it", "rm --force");
    } else {
        add("print the transcript", "logs");
        add("print the receipts", "audit");
        add("verify the receipts", "audit verify");
        add("remove it", "rm");
    }
    page.finish()
}
