//! The bounds of a run: limits, isolation, lifetime.

use sympozium_api::agent_run::Cleanup;
use sympozium_api::guarantee::Guarantee;
use sympozium_plan::explain::{Explanation, format_seconds};

use crate::page::Page;

pub fn limits(page: &mut Page, it: &Explanation) {
    page.section("Limits");
    let run = &it.limits.run;
    let tokens = run.model_tokens.map_or_else(|| "no limit of tokens".to_owned(), |it| format!("{it} tokens"));
    page.paragraph(
        2,
        &format!(
            "{} rounds; {} requests to the model, {} in a minute, {tokens}; {} calls of tools, {} at a time",
            run.iterations,
            run.model_requests,
            run.model_requests_per_minute,
            run.tool_calls,
            run.concurrent_tool_calls
        ),
    );
    let rows: Vec<Vec<String>> = it
        .limits
        .parts
        .iter()
        .map(|part| {
            let time =
                part.timeout_seconds.map_or_else(|| "as long as the run".to_owned(), |seconds| format!("{seconds} s"));
            vec![part.part.clone(), part.amounts.cpu_limit.to_string(), part.amounts.memory_limit.to_string(), time]
        })
        .collect();
    page.table(&["PART", "CPU", "MEMORY", "TIME"], &rows);
    match &it.limits.sub_runs {
        None => page.paragraph(2, "It starts no other runs."),
        Some(sub) => page.paragraph(
            2,
            &format!(
                "It may start {} other runs, {} at a time in the whole tree, {} levels deep.",
                sub.children, sub.concurrent, sub.levels
            ),
        ),
    }
}

pub fn isolation(page: &mut Page, it: &Explanation) {
    page.section("Isolation");
    let list = |all: &[Guarantee]| -> String {
        let names: Vec<&str> = all.iter().map(|it| it.as_str()).collect();
        match names.is_empty() {
            true => "nothing".to_owned(),
            false => names.join(", "),
        }
    };
    let isolation = &it.isolation;
    page.list_item(2, "refused without  ", &list(&isolation.floor));
    page.list_item(2, "not required     ", &list(&isolation.not_required));
    page.list_item(2, "seccomp          ", &isolation.seccomp);
    let class = isolation.runtime_class.as_deref();
    page.list_item(2, "RuntimeClass     ", class.unwrap_or("the cluster's default"));
    if !isolation.node_selector.is_empty() {
        let labels = isolation.node_selector.iter();
        let labels: Vec<String> = labels.map(|(key, value)| format!("{key}={value}")).collect();
        page.list_item(2, "nodes with       ", &labels.join(", "));
    }
}

pub fn lifetime(page: &mut Page, it: &Explanation) {
    page.section("Lifetime");
    let life = &it.lifetime;
    let times = &life.deadlines;
    let mut works = format!("{} at most", format_seconds(times.run_seconds));
    if it.approval.is_asked {
        works.push_str(&format!(
            ", and {} more while people are asked ({} a question)",
            format_seconds(times.waiting_seconds),
            format_seconds(times.approval_seconds)
        ));
    }
    page.list_item(2, "the agent works  ", &works);
    page.list_item(2, "everything ends  ", &format!("after {} in any case", format_seconds(times.ceiling_seconds)));
    if let Some(seconds) = life.after_run_seconds {
        let words = format!("then, for {} at most", format_seconds(seconds));
        page.list_item(2, "hooks after it   ", &words);
    }
    for (number, words) in life.rights_end.iter().enumerate() {
        let mark = match number {
            0 => "rights end       ",
            _ => "                 ",
        };
        page.list_item(2, mark, words);
    }
    let cleanup = match life.cleanup {
        Cleanup::Delete => "is deleted",
        Cleanup::Keep => "stays to be looked at, without any rights",
    };
    page.list_item(2, "the pod          ", cleanup);
    for what in &life.outlasts {
        page.list_item(2, "outlasts the run ", what);
    }
}
