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
        page.field("container", "no sign of one");
    } else {
        let hints = features.container_hints.join(", ");
        page.field("container", format_args!("signs of one: {hints}"));
    }
    if features.under_seccomp_filter {
        page.field("seccomp", "this process is under a filter already");
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
    page.section("Layers (missing: a profile for this machine rests on it; no: none does)");
    for LayerStatus { layer, needed, support, .. } in &diagnosis.layers {
        match support {
            Support::Present { detail } => page.add(format_args!("  ok       {layer:<21}{detail}")),
            Support::Absent { why } if *needed => {
                // One cause often takes several layers away: its hint is printed once, with the fix.
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
    let ending = if features.cgroups.kill_at_once { "a whole cgroup at once" } else { "process by process" };
    page.field("ending", ending);
    let shown = |value: Option<u64>| value.map_or_else(|| "unlimited".to_owned(), |value| value.to_string());
    for (name, Rlimit { soft, hard }) in &features.rlimits {
        let (soft, hard) = (shown(*soft), shown(*hard));
        page.field(name, format_args!("{soft}, at most {hard}"));
    }
}

fn write_profile(page: &mut Page, diagnosis: &Diagnosis<'_>) {
    let profile = diagnosis.profile;
    page.section(format_args!("Profile: {profile}"));
    page.add(format_args!("  Chosen because {}.", diagnosis.because));
    if diagnosis.floor_holds() {
        page.add("  Every guarantee of its default floor can be held.");
    } else {
        page.add("  Its default floor cannot be held: runs would be refused.");
    }
    if diagnosis.suited_profile != profile {
        page.add(format_args!(
            "  This does not look like a pod, where others hold what {profile} leaves to them; {} is meant for it.",
            diagnosis.suited_profile
        ));
    }
    for (guarantee, holding) in guarantees_of(diagnosis, profile) {
        page.field(guarantee.as_str(), &holding.here);
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
            let mut holdings = guarantees_of(diagnosis, profile);
            if let Some((_, holding)) = holdings.find(|(it, _)| **it == guarantee) {
                let _ = write!(row, "{:<12}", cell_label(&holding.cell, &holding.here));
            }
        }
        page.add(row);
    }
    page.add("  holds: enforced by us; delegated: left to somebody outside; MISSING: in the floor, but not here;");
    page.add("  absent: held where the machine offers it, not here; none: nobody holds it");
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
        let need = if *required { "needed for" } else { "would add" };
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
