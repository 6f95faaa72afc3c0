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

pub fn format_details(shown: &RunDetails, now_ms: u64) -> String {
    let view = &shown.view;
    let mut text = String::new();
    let mut field = |name: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<11}{}", printable(value));
    };
    field("run", &view.name);
    field("uid", &view.uid);
    field("state", &describe_state(shown));
    field("agent", &format!("{} in namespace {}", view.agent, view.namespace));
    field("model", &view.model);
    field(
        "skills",
        &match (origin::format_origins(&shown.origins, origin::PACK_KIND), &view.skills) {
            (_, skills) if skills.is_empty() => "none".to_owned(),
            (packs, skills) if packs.is_empty() => skills.join(", "),
            (packs, _) => packs,
        },
    );
    let policies = origin::format_origins(&shown.origins, origin::POLICY_KIND);
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
        (None, false) => field("ended", "it was killed, and nobody knows when"),
    }
    if let Some(pid) = shown.pid.filter(|_| view.alive) {
        field("process", &pid.to_string());
    }
    if let Some(pod) = &shown.pod {
        field("pod", pod);
    }
    let usage = &view.usage;
    let estimated = if usage.estimated { " (estimated)" } else { "" };
    field(
        "used",
        &format!(
            "{}, {} tokens read, {} written{estimated}, {}",
            format_count(usage.model_requests, "model request"),
            usage.input_tokens,
            usage.output_tokens,
            format_count(usage.tool_calls, "tool call")
        ),
    );
    if let Some(cost) = format_cost(view) {
        field("cost", &cost);
    }
    if let Some(plan) = &shown.plan {
        field("plan", plan.as_ref());
    }
    if let Some(workspace) = &view.workspace {
        field("workspace", &workspace.display().to_string());
    }

    let section = |text: &mut String, title: &str, content: &str| {
        let _ = write!(text, "\n{title}\n{content}");
    };
    section(&mut text, "TASK", &indent_lines("  ", &shown.task));
    if !shown.waits_for.is_empty() {
        let waits: String = shown.waits_for.iter().map(|it| indent_lines("  ", it)).collect();
        section(&mut text, "WHAT IT WAITS FOR", &waits);
    }
    if !shown.questions.is_empty() {
        let mut asked = String::new();
        for question in &shown.questions {
            let _ = writeln!(asked, "  {} wants an answer:", printable(&question.approval));
            asked.push_str(&indent_lines("    ", &question.shown));
        }
        section(&mut text, "QUESTIONS", &asked);
    }
    match &shown.outcome {
        Some(RunEnd::Succeeded { answer }) => section(&mut text, "ANSWER", &indent_lines("  ", answer)),
        Some(RunEnd::Failed { why }) => section(&mut text, "WHY IT FAILED", &indent_lines("  ", why)),
        Some(RunEnd::Denied { why }) => section(&mut text, "WHY IT IS DENIED", &indent_lines("  ", why)),
        Some(RunEnd::Refused { why }) => section(&mut text, "WHY IT COULD NOT BE STARTED", &indent_lines("  ", why)),
        _ => {}
    }
    section(&mut text, "ISOLATION", &format_isolation(&shown.isolation));
    if let Some(directory) = &view.directory {
        let directory = printable(directory.display().to_string());
        let mut files = format!("  {:<11}{directory}\n", "all");
        for (name, path) in &shown.files {
            let name_in = path.file_name().unwrap_or_default().to_string_lossy();
            let _ = writeln!(files, "  {name:<11}{name_in}");
        }
        section(&mut text, "FILES", &files);
    }
    if let Some(left) = shown.leftovers.as_ref().filter(|left| !left.is_empty()) {
        let left: String = left.iter().map(|it| indent_lines("  ", it)).collect();
        section(&mut text, "STILL THERE, THOUGH IT SHOULD NOT BE", &left);
    }
    section(&mut text, "NEXT", &next_commands(shown));
    text
}

fn format_count(number: u64, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}

fn describe_state(shown: &RunDetails) -> String {
    let what = match &shown.outcome {
        Some(RunEnd::Succeeded { .. }) => "it has an answer",
        Some(RunEnd::Failed { .. }) => "it has no answer",
        Some(RunEnd::Refused { .. }) => "it could not be started here",
        Some(RunEnd::Denied { .. }) => "a policy does not let it exist",
        Some(RunEnd::TimedOut) => "its time was up",
        Some(RunEnd::Cancelled) => "a person ended it",
        Some(RunEnd::Interrupted) => "whoever ran it died without a word",
        None => "it goes on",
    };
    format!("{}: {what}", shown.view.state)
}

/// The isolation of each part, as text.
fn format_isolation(parts: &BTreeMap<String, IsolationReport>) -> String {
    let mut page = Page::default();
    if parts.is_empty() {
        page.paragraph(2, "no part of it was started");
    }
    for (part, report) in parts {
        let mut enforced = Vec::new();
        let mut others = Vec::new();
        for (guarantee, standing) in &report.guarantees {
            match standing {
                GuaranteeState::Enforced { .. } => enforced.push(guarantee.as_str()),
                other => others.push(format!("{guarantee}: {other}")),
            }
        }
        let held = match enforced.is_empty() {
            true => "nothing is enforced".to_owned(),
            false => format!("enforced: {}", enforced.join(", ")),
        };
        page.paragraph(2, &format!("{part} ({}): {held}", report.profile));
        others.iter().for_each(|other| page.list_item(4, "- ", other));
    }
    page.finish()
}

/// Commands to use next.
fn next_commands(shown: &RunDetails) -> String {
    let mut page = Page::default();
    // By UID: a newer run may have the same name.
    let place = shown.view.target.as_str();
    let run = match shown.view.directory {
        Some(_) => short_uid(&shown.view.uid),
        // In a cluster names are unique, and looked up faster.
        None => shown.view.name.clone(),
    };
    let mut say = |what: &str, command: &str| {
        page.paragraph(2, &format!("{what}: sympozium {command} {run}{place}"));
    };
    if shown.view.alive {
        if !shown.questions.is_empty() {
            say("answer its question", "approve");
        }
        say("follow it", "logs -f");
        say("end and remove it", "rm --force");
    } else {
        say("what was said", "logs");
        say("what was done", "audit");
        say("that nothing of that was changed", "audit verify");
        say("remove it", "rm");
    }
    page.finish()
}
