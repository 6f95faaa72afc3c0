//! The diagnosis as text. It must be understandable without colour, so there is none.

use std::fmt::{Display, Write};

use sympozium_api::Guarantee;
use sympozium_exec::features::{Features, Rlimit, Support};
use sympozium_exec::guarantee::{Cell, Layer, Profile};
use sympozium_exec::report::GuaranteeState;

use super::diagnosis::{CellStatus, Diagnosis, Fix, LayerStatus};

pub fn render(diagnosis: &Diagnosis<'_>) -> String {
    let mut page = Page::default();
    write_machine(&mut page, diagnosis.features);
    write_layers(&mut page, diagnosis);
    write_limits(&mut page, diagnosis.features);
    write_profile(&mut page, diagnosis);
    write_matrix(&mut page, diagnosis);
    write_fixes(&mut page, diagnosis);
    write_notes(&mut page, &diagnosis.notes);
    page.text
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn section(&mut self, title: impl Display) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.add(title);
    }

    /// Adds one line, without trailing blanks.
    fn add(&mut self, line: impl Display) {
        let start = self.text.len();
        // Writing to a String cannot fail.
        let _ = write!(self.text, "{line}");
        let end = self.text.trim_end().len().max(start);
        self.text.truncate(end);
        self.text.push('\n');
    }

    fn field(&mut self, name: &str, value: impl Display) {
        self.add(format_args!("  {name:<13}{value}"));
    }
}

fn write_machine(page: &mut Page, features: &Features) {
    page.section("Machine");
    let Features { kernel_release, architecture, .. } = features;
    page.field("kernel", format_args!("{kernel_release} ({architecture})"));
    let user = if features.is_root { "root" } else { "not root" };
    if features.capabilities.is_empty() {
        page.field("user", format_args!("{user}, no capabilities"));
    } else {
        let capabilities = features.capabilities.join(" ");
        page.field("user", format_args!("{user}, {capabilities}"));
    }
    if features.container_hints.is_empty() {
        page.field("container", "not detected");
    } else {
        let hints = features.container_hints.join(", ");
        page.field("container", format_args!("detected: {hints}"));
    }
    if features.under_seccomp_filter {
        page.field("seccomp", "this process already has a filter");
    }
    let cgroups = &features.cgroups;
    page.field("cgroups", cgroups.version);
    let calls = &features.system_calls;
    let calls = [
        ("openat2", &calls.openat2),
        ("pidfd", &calls.pidfd),
        ("close_range", &calls.close_range),
        ("clone3", &calls.clone3),
    ];
    let listed = calls.map(|(name, support)| if support.is_present() { name.to_owned() } else { format!("no {name}") });
    page.field("calls", listed.join(", "));
    match features.yama_ptrace_scope {
        Some(scope) => page.field("ptrace", format_args!("kernel.yama.ptrace_scope is {scope}")),
        None => page.field("ptrace", "not restricted by Yama"),
    }
}

fn write_layers(page: &mut Page, diagnosis: &Diagnosis<'_>) {
    page.section("Layers (missing: used by a profile for this machine; no: not used)");
    for LayerStatus { layer, needed, support, .. } in &diagnosis.layers {
        match support {
            Support::Present { detail } => page.add(format_args!("  ok       {layer:<21}{detail}")),
            Support::Absent { why } if *needed => {
                // One cause often disables several layers: its hint is printed once, with the fix.
                let fixes = (1..).zip(&diagnosis.fixes);
                let mut numbers = fixes.filter(|(_, fix)| fix.layers.contains(layer));
                let see = numbers.next().map(|(number, _)| number).unwrap_or_default();
                page.add(format_args!("  missing  {layer:<21}{why}; see fix {see}"));
            }
            Support::Absent { why } => page.add(format_args!("  no       {layer:<21}{why}")),
        }
    }
}

fn write_limits(page: &mut Page, features: &Features) {
    page.section("Limits");
    for (name, layer) in [("memory", Layer::CgroupMemory), ("pids", Layer::CgroupPids), ("cpu", Layer::CgroupCpu)] {
        let by_cgroup = match features.cgroups.limits.get(&layer) {
            Some(Support::Present { detail }) => format!("cgroup {detail}"),
            Some(Support::Absent { .. }) | None => "no cgroup limit".to_owned(),
        };
        let by_user_namespace = features.process_limit_in_user_namespace.is_present();
        if layer == Layer::CgroupPids && by_user_namespace {
            page.field(name, format_args!("{by_cgroup}, RLIMIT_NPROC in a user namespace"));
        } else {
            page.field(name, by_cgroup);
        }
    }
    let killing = if features.cgroups.kill_at_once { "the whole cgroup at once" } else { "process by process" };
    page.field("killing", killing);
    let format_limit = |value: Option<u64>| value.map_or_else(|| "unlimited".to_owned(), |value| value.to_string());
    for (name, Rlimit { soft, hard }) in &features.rlimits {
        let (soft, hard) = (format_limit(*soft), format_limit(*hard));
        page.field(name, format_args!("{soft} (hard limit: {hard})"));
    }
}

fn write_profile(page: &mut Page, diagnosis: &Diagnosis<'_>) {
    let profile = diagnosis.profile;
    page.section(format_args!("Profile: {profile}"));
    page.add(format_args!("  Chosen because {}.", diagnosis.because));
    if diagnosis.floor_holds() {
        page.add("  It meets its default isolation floor.");
    } else {
        page.add("  It does not meet its default isolation floor: runs would be refused.");
    }
    if diagnosis.suited_profile != profile {
        page.add(format_args!(
            "  {profile} is for pods, whose platform provides its delegated guarantees. This machine should use {}.",
            diagnosis.suited_profile
        ));
    }
    for (guarantee, cell) in guarantees_of(diagnosis, profile) {
        page.field(guarantee.as_str(), &cell.here);
    }
}

fn write_matrix(page: &mut Page, diagnosis: &Diagnosis<'_>) {
    page.section("Guarantees by profile, on this machine (* = live)");
    let mut head = format!("  {:<13}", "");
    for profile in Profile::ALL {
        let mark = if profile == diagnosis.profile { "*" } else { "" };
        let _ = write!(head, "{:<12}", format!("{profile}{mark}"));
    }
    page.add(head);
    for guarantee in Guarantee::ALL {
        let mut row = format!("  {guarantee:<13}");
        for profile in Profile::ALL {
            let mut cells = guarantees_of(diagnosis, profile);
            if let Some((_, cell)) = cells.find(|(it, _)| **it == guarantee) {
                let _ = write!(row, "{:<12}", cell_label(&cell.cell, &cell.here));
            }
        }
        page.add(row);
    }
    page.add("  holds: enforced by Sympozium; delegated: provided by the platform; MISSING: required by the default");
    page.add("  floor, but not available here; absent: optional, not available here; none: not provided");
}

fn guarantees_of<'a>(
    diagnosis: &'a Diagnosis<'_>,
    profile: Profile,
) -> impl Iterator<Item = (&'a Guarantee, &'a CellStatus)> {
    diagnosis.matrix.get(&profile).into_iter().flatten()
}

fn cell_label(cell: &Cell, here: &GuaranteeState) -> &'static str {
    match (cell, here) {
        (_, GuaranteeState::Enforced { .. }) => "holds",
        (_, GuaranteeState::Delegated { .. }) => "delegated",
        (Cell::Enforced { .. }, GuaranteeState::NotHeld { .. }) => "MISSING",
        (Cell::WhereAvailable { .. }, GuaranteeState::NotHeld { .. }) => "absent",
        (_, GuaranteeState::NotHeld { .. }) => "none",
    }
}

fn write_fixes(page: &mut Page, diagnosis: &Diagnosis<'_>) {
    page.section("What to fix");
    if diagnosis.fixes.is_empty() {
        page.add("  Nothing.");
    }
    for (number, fix) in (1..).zip(&diagnosis.fixes) {
        let Fix { profile, required, guarantees, layers, why, hint } = fix;
        let need = if *required { "required for" } else { "would add" };
        page.add(format_args!("  {number}. {}: {why}", join_names(layers.iter().map(|it| it.as_str()))));
        let guarantees = join_names(guarantees.iter().map(|it| it.as_str()));
        page.add(format_args!("     {need} {guarantees} in {profile}"));
        if let Some(hint) = hint {
            page.add(format_args!("     hint: {hint}"));
        }
    }
}

fn write_notes(page: &mut Page, notes: &[String]) {
    if notes.is_empty() {
        return;
    }
    page.section("Notes");
    for note in notes {
        page.add(format_args!("  - {note}"));
    }
}

fn join_names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}
