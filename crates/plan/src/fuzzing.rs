//! Bodies of the fuzz targets for texts of manifests and for plans.
//!
//! Three callers share them: coverage-guided fuzzing (`make fuzz`), the replay of the corpora on stable in `make test`,
//! and a developer who debugs a finding. Each body states a property and panics when it does not hold.

#![expect(clippy::expect_used, reason = "a broken property panics, as in a test")]

use std::collections::BTreeSet;

use sympozium_api::RunPlan;
use sympozium_api::duration::DurationText;
use sympozium_api::run_plan::Gate;

use crate::duration::format_duration;
use crate::image::{Image, InvalidImage, InvalidRegistryPattern, MAX_NAME_BYTES, MAX_REFERENCE_BYTES, RegistryPattern};
use crate::plan::agent_view;
use crate::quantity::{ExactQuantity, MAX_QUANTITY_BYTES};
use crate::render::{RenderSettings, render};

/// A body: it returns when every property holds for `data`, and panics otherwise.
pub type Target = fn(data: &[u8]);

/// Every target by its name, which is also the name of its corpus and of its program in `fuzz/`.
pub const TARGETS: &[(&str, Target)] =
    &[("duration", duration), ("image_reference", image_reference), ("quantity", quantity), ("run_plan", run_plan)];

/// A parsed reference has one full form, of printable ASCII, that parses to the same value. A registry entry allows the
/// reference exactly if the host is the same.
pub fn image_reference(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(image) = Image::parse(text) else {
        return;
    };
    assert!(text.len() <= MAX_REFERENCE_BYTES);
    let full = image.to_string();
    assert!(full.bytes().all(|byte| byte.is_ascii_graphic()), "{full:?}");
    assert_eq!(Image::parse(&full).as_ref(), Ok(&image), "{full}");

    let host = image.host().to_string();
    assert!(full.starts_with(&format!("{host}/")), "{full}");
    if let Ok(registry) = RegistryPattern::parse(&host) {
        assert!(registry.allows(&image), "{host} {full}");
    }
    let place = format!("{host}/{}", image.repository());
    if let Ok(registry) = RegistryPattern::parse(&place) {
        assert!(registry.allows(&image), "{place} {full}");
        if let Some(below) = parse_longer_entry(&format!("{place}/*")) {
            assert!(registry.covers(&below) && !below.allows(&image), "{place}");
        }
        if let Some(longer) = parse_longer_entry(&format!("{place}x")) {
            assert!(!longer.allows(&image), "{place}");
        }
    }
}

/// Parses an entry that is longer than one that was parsed, so that only its length can make it invalid.
fn parse_longer_entry(text: &str) -> Option<RegistryPattern> {
    match RegistryPattern::parse(text) {
        Ok(entry) => Some(entry),
        Err(error) => {
            let too_long = InvalidImage::TooLong(MAX_NAME_BYTES);
            assert_eq!(error, InvalidRegistryPattern::Malformed(too_long));
            assert!(text.len() > MAX_NAME_BYTES, "{text}");
            None
        }
    }
}

/// A parsed quantity is not negative and prints as a text with the same value; sums do not decrease.
pub fn quantity(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(amount) = ExactQuantity::parse(text) else {
        return;
    };
    assert!(text.len() <= MAX_QUANTITY_BYTES);
    assert!(amount <= ExactQuantity::MAX);
    let printed = amount.to_string();
    assert_eq!(ExactQuantity::parse(&printed), Ok(amount), "{text:?} {printed:?}");
    assert!(amount.saturating_add(amount) >= amount);
}

/// A parsed duration prints as a text with the same value.
pub fn duration(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(span) = DurationText::new(text).to_duration() else {
        return;
    };
    // The printed text may need more digits than are accepted; then the duration is beyond every bound anyway.
    let printed = format_duration(span);
    if let Ok(again) = DurationText::new(printed.as_str()).to_duration() {
        assert_eq!(again, span, "{text:?} {printed:?}");
    } else {
        assert!(span > crate::duration::MAX_RUN_TIMEOUT, "{printed:?}");
    }
}

/// A plan that is read serialises to the same bytes, its agent sees no denied tool, and it is rendered or refused.
pub fn run_plan(data: &[u8]) {
    let Ok(plan) = RunPlan::read(data) else {
        return;
    };
    assert_eq!(plan.to_bytes().expect("what was JSON has JSON"), data);
    let digest = RunPlan::digest_of(data);
    let again = RunPlan::read_verified(data, &digest).expect("its own digest");
    assert_eq!(again, plan);
    let offered = agent_view(&plan).tools;
    for tool in &offered {
        let mut named = plan.tools.iter().filter(|other| other.name == tool.name);
        assert!(named.any(|other| other.gate != Gate::Deny), "{}", tool.name);
    }
    // Without the skill texts most plans are refused; one that is rendered has no object twice.
    if let Ok(rendered) = render(&plan, &[], &RenderSettings::default()) {
        let names: BTreeSet<_> =
            rendered.objects.iter().map(|object| (object.object.kind(), object.object.name())).collect();
        assert_eq!(names.len(), rendered.objects.len());
    }
}

#[cfg(test)]
mod tests;
