//! The executor in a skill container: two front ends over [`sympozium_exec`].
//!
//! [`ipc`] takes requests as files on a volume that it shares with the run's bridge; [`serve`] takes them over HTTP
//! from any agent in the same pod. Both hand each request to one [`Executor`](sympozium_exec::Executor), which alone
//! starts programs. This crate never decides *whether* a command may run: the bridge does, before the request arrives.
//!
//! Start reading at [`arguments`] for the command line and at `sandbox.rs` for what commands can see.

pub mod arguments;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod healthcheck;
pub mod ipc;
mod isolation;
mod required_isolation;
mod sandbox;
pub mod serve;

use std::ffi::OsStr;
use std::io;
use std::process::ExitCode;

use clap::CommandFactory as _;
use sympozium_program::Failure;

use arguments::{Arguments, Command, PACK_VARIABLE};

/// The stack of a thread that runs a command: it holds no output, only the bookkeeping.
const COMMAND_STACK_BYTES: usize = 256 * 1024;

/// The whole program but the stage check, which must come first in `main`.
pub fn main() -> ExitCode {
    let mut arguments = std::env::args_os().collect::<Vec<_>>();
    if arguments.len() == 1 {
        arguments.push(default_subcommand(std::env::var_os(PACK_VARIABLE).as_deref()).into());
    }
    let arguments = match Arguments::parse_command_line(&arguments) {
        Ok(arguments) => arguments,
        Err(error) => error.exit(),
    };
    let result = match arguments.command {
        Command::Ipc(arguments) => ipc::run(&arguments),
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Healthcheck(arguments) => healthcheck::run(&arguments),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Arguments::command(), "skill-sidecar", &mut io::stdout());
            Ok(())
        }
        Command::Man => write_manual(&mut io::stdout()).map_err(|error| anyhow::Error::from(error).into()),
    };
    result.map_or_else(|failure: Failure| failure.print(), |()| ExitCode::SUCCESS)
}

/// One page for the program, with a section for each of its commands.
fn write_manual(out: &mut dyn io::Write) -> io::Result<()> {
    let program = Arguments::command();
    clap_mangen::Man::new(program.clone()).render(out)?;
    for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = format!("skill-sidecar {}", command.get_name());
        writeln!(out, ".SH \"{}\"", name.to_uppercase())?;
        let page = clap_mangen::Man::new(command.clone().bin_name(name));
        page.render_synopsis_section(out)?;
        page.render_description_section(out)?;
        page.render_options_section(out)?;
    }
    Ok(())
}

/// The front end of a container that names none: files when the run has set the pack, else HTTP.
fn default_subcommand(pack: Option<&OsStr>) -> &'static str {
    match pack {
        Some(pack) if !pack.is_empty() => "ipc",
        _ => "serve",
    }
}

/// One thread for all asynchronous work, and at most `blocking` more that run commands and exit when idle.
fn build_runtime(blocking: usize) -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(blocking)
        .thread_stack_size(COMMAND_STACK_BYTES)
        .build()
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;
    use clap_complete::Shell;

    use super::*;

    #[test]
    fn the_manual_has_every_command_and_option() {
        let mut page = Vec::new();
        write_manual(&mut page).unwrap();
        let page = String::from_utf8(page).unwrap().replace("\\-", "-");
        let program = Arguments::command();
        for command in program.get_subcommands() {
            assert!(page.contains(command.get_name()), "{page}");
            // Hidden options are for `sympozium run` alone.
            let documented = command.get_arguments().filter(|argument| !argument.is_hide_set());
            for long in documented.filter_map(clap::Arg::get_long) {
                assert!(page.contains(&format!("--{long}")), "{long}: {page}");
            }
        }
    }

    #[test]
    fn every_shell_gets_completions_for_every_command() {
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Arguments::command(), "skill-sidecar", &mut script);
            let script = String::from_utf8(script).unwrap();
            for command in Arguments::command().get_subcommands() {
                assert!(script.contains(command.get_name()), "{shell}: {script}");
            }
        }
    }

    #[test]
    fn a_container_of_a_run_takes_files_and_any_other_serves() {
        assert_eq!(default_subcommand(Some("k8s-ops".as_ref())), "ipc");
        assert_eq!(default_subcommand(Some("".as_ref())), "serve");
        assert_eq!(default_subcommand(None), "serve");
    }
}
