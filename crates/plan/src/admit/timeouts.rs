//! Timeouts of runs and hooks.

use std::time::Duration;

use sympozium_api::duration::DurationText;

use super::violation::{Findings, violation};
use super::{RuleContext, Subject};
use crate::duration::{MAX_RUN_TIMEOUT, MIN_TIMEOUT, format_duration};

/// Checks the timeout of the run.
pub fn check(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    if let Some(timeout) = &case.run.spec.timeout {
        check_timeout(&case.subject, "spec.timeout", timeout, MAX_RUN_TIMEOUT, findings);
    }
}

/// Checks that a timeout is valid and within its bounds.
pub fn check_timeout(subject: &Subject, field: &str, timeout: &DurationText, most: Duration, findings: &mut Findings) {
    let range =
        format!("write a time from {} to {}, such as `10m`", format_duration(MIN_TIMEOUT), format_duration(most));
    match timeout.to_duration() {
        Ok(span) if (MIN_TIMEOUT..=most).contains(&span) => {}
        Ok(span) => {
            let message = format!("`{}` is too {}", format_duration(span), if span < most { "short" } else { "long" });
            findings.deny(subject, violation(field, "timeout-out-of-range", message, range));
        }
        Err(error) => findings.deny(subject, violation(field, "timeout-invalid", error.to_string(), range)),
    }
}
