//! The file protocol of skill sidecars as cases that any executor can be driven with.
//!
//! Requests are written and results are read as plain files with plain JSON: nothing here shares code with our own
//! `ipc` crate, so that a mistake in it cannot hide in its tests. An executor is whatever a function from [`Volume`] to
//! a [`Command`](std::process::Command) starts:
//!
//! ```text
//! sympozium_testkit::ipc_conformance!(|volume| {
//!     let mut command = sympozium_testkit::command("skill-sidecar");
//!     command.arg("ipc").arg("--ipc-dir").arg(&volume.ipc).arg("--workspace").arg(&volume.workspace);
//!     command
//! });
//! ```
//!
//! - [`table`]: one request, one expected result; all of them in one volume at once.
//! - [`scenarios`]: what takes more than one file, or an executor that ends.
//! - [`volume`]: the volume, the executor, the outcome.

#![expect(clippy::expect_used, reason = "all of this is tests, which clippy does not see")]

mod cases;
pub mod scenarios;
pub mod table;
pub mod volume;

pub use volume::{Executor, Outcome, Settings, Volume};

/// Whether a program is on the search path.
pub fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

/// One test per part of the protocol, each against an executor of its own that the function or closure starts. Skipped
/// where a program is missing that it `needs`.
#[macro_export]
macro_rules! ipc_conformance {
    ($start:expr $(, needs $program:literal)*) => {
        $crate::ipc_conformance!(@tests $start, [$($program),*],
            table: every_request_of_the_table_gets_its_result,
            scenarios: files_with_impossible_ids_are_left_alone,
            scenarios: done_ends_commands_and_executor,
            scenarios: a_link_called_done_ends_nothing,
            scenarios: the_term_signal_ends_commands_and_executor,
            scenarios: a_half_written_request_is_never_run_as_it_is,
            scenarios: no_more_commands_than_allowed_run_at_once,
            scenarios: a_claim_of_another_executor_is_respected,
            scenarios: a_claim_whose_lease_is_over_is_answered_and_not_run,
            scenarios: without_a_workspace_commands_start_at_the_root,
            scenarios: timeouts_are_cut_to_the_allowed_most,
            scenarios: without_a_pack_every_target_is_served,
            scenarios: requests_from_before_the_start_are_served,
            scenarios: two_executors_run_each_request_once,
            scenarios: a_killed_executor_s_command_is_not_run_again,
            scenarios: planted_links_are_replaced_and_not_followed,
            scenarios: a_linked_tools_directory_is_refused,
            scenarios: on_a_full_volume_the_exit_code_still_comes,
        );
    };
    (@tests $start:expr, $programs:tt, $($module:ident: $name:ident,)+) => {
        $(
            #[test]
            fn $name() {
                let programs: &[&str] = &$programs;
                for program in programs {
                    if !$crate::ipc_cases::has_program(program) {
                        $crate::skip!("no {program}");
                    }
                }
                $crate::ipc_cases::$module::$name(&$start);
            }
        )+
    };
}
