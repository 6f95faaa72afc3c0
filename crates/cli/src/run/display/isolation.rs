//! The isolation of the parts of a run, as lines.

use std::collections::BTreeMap;

use sympozium_exec::IsolationReport;
use sympozium_exec::guarantee::Layer;
use sympozium_exec::report::GuaranteeState;

use super::line::{Line, Style};

/// One line for all parts with the same isolation.
pub fn isolation_lines(parts: &BTreeMap<String, IsolationReport>) -> Vec<Line> {
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for (part, report) in parts {
        let by = summarize_layers(report);
        match groups.iter_mut().find(|(known, _)| *known == by) {
            Some((_, names)) => names.push(part),
            None => groups.push((by, vec![part])),
        }
    }
    let mut lines = Vec::new();
    let is_alone = groups.len() == 1;
    for (by, names) in groups {
        let line = Line::wrapped(4).plain("  isolated by: ").plain(&by);
        lines.push(match is_alone {
            true => line,
            false => line.add(Style::Faint, &format!(" ({})", names.join(", "))),
        });
    }
    let missing = missing_guarantees(parts);
    if !missing.is_empty() {
        let text = format!("not held on this machine: {}", missing.join(", "));
        lines.push(Line::wrapped(4).plain("  ").add(Style::Attention, &text));
    }
    lines
}

/// The live layers, by their common names.
pub fn summarize_layers(report: &IsolationReport) -> String {
    let layers = &report.layers;
    let has = |all: &[Layer]| all.iter().any(|layer| layers.contains_key(layer));
    let mut names: Vec<String> = Vec::new();
    if has(&[Layer::UserNamespace, Layer::MountNamespace, Layer::PidNamespace, Layer::NetworkNamespace]) {
        names.push("namespaces".to_owned());
    }
    if has(&[Layer::LandlockFilesystem]) {
        names.push("landlock".to_owned());
    }
    if has(&[Layer::Seccomp, Layer::SeccompUnixOnly]) {
        names.push("seccomp".to_owned());
    }
    let groups = [Layer::CgroupMemory, Layer::CgroupPids, Layer::CgroupCpu];
    if let Some(detail) = groups.iter().find_map(|layer| layers.get(layer)) {
        // `v1: 134217728 bytes, no swap`: only the version is printed.
        let version = detail.split(':').next().unwrap_or_default();
        names.push(format!("cgroup {version}").trim_end().to_owned());
    }
    if let Some(kernel) = layers.get(&Layer::SandboxKernel) {
        names.push(kernel.clone());
    }
    match names.is_empty() {
        true => summarize_guarantees(report),
        false => names.join(", "),
    }
}

/// For reports without layers, as from a cluster: the guarantees that hold, or who provides them.
fn summarize_guarantees(report: &IsolationReport) -> String {
    let standings = || report.guarantees.iter();
    let enforced: Vec<&str> = standings()
        .filter(|(_, standing)| matches!(standing, GuaranteeState::Enforced { .. }))
        .map(|(guarantee, _)| guarantee.as_str())
        .collect();
    let delegated = standings().find_map(|(_, standing)| match standing {
        GuaranteeState::Delegated { to } => Some(to.as_str()),
        _ => None,
    });
    match (enforced.is_empty(), delegated) {
        (false, _) if report.layers.is_empty() => {
            format!("{} ({})", report.profile, enforced.join(", "))
        }
        (true, Some(to)) if report.layers.is_empty() => to.to_owned(),
        _ => "nothing".to_owned(),
    }
}

/// The guarantees that a part lacks and another machine could provide, each once.
fn missing_guarantees(parts: &BTreeMap<String, IsolationReport>) -> Vec<String> {
    let mut missing: Vec<String> = Vec::new();
    for report in parts.values() {
        for (guarantee, standing) in &report.guarantees {
            let name = guarantee.to_string();
            let is_missing = matches!(standing, GuaranteeState::NotHeld { missing, .. } if !missing.is_empty());
            if is_missing && !missing.contains(&name) {
                missing.push(name);
            }
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use sympozium_exec::guarantee::Profile;

    use super::*;

    fn report(layers: &[(Layer, &str)]) -> IsolationReport {
        let layers = layers.iter().map(|(layer, it)| (*layer, (*it).to_owned()));
        IsolationReport::new(Profile::HostUser, layers.collect())
    }

    fn text(parts: &[(&str, IsolationReport)]) -> String {
        let parts = parts.iter().map(|(name, report)| ((*name).to_owned(), report.clone()));
        let lines = isolation_lines(&parts.collect());
        lines.iter().map(|it| it.render(None, false)).collect()
    }

    #[test]
    fn parts_that_are_held_alike_are_told_together() {
        let strong = report(&Layer::ALL.map(|layer| match layer {
            Layer::CgroupMemory => (layer, "v2: 100 bytes, no swap"),
            Layer::SandboxKernel => (layer, "gVisor"),
            _ => (layer, ""),
        }));
        assert_eq!(
            text(&[("agent", strong.clone()), ("skill-a", strong.clone())]),
            "  isolated by: namespaces, landlock, seccomp, cgroup v2, gVisor\n"
        );
        let weak = report(&[(Layer::LandlockFilesystem, "ABI 7"), (Layer::Seccomp, "")]);
        let both = text(&[("agent", strong), ("skill-a", weak)]);
        assert!(
            both.starts_with(
                "  isolated by: namespaces, landlock, seccomp, cgroup v2, gVisor (agent)\n  \
             isolated by: landlock, seccomp (skill-a)\n  not held on this machine: "
            ),
            "{both}"
        );
        assert!(text(&[("agent", report(&[]))]).starts_with("  isolated by: nothing\n"));
    }
}
