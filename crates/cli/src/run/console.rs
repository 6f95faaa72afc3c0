//! What a run is followed with: the signals, the standard streams and the terminal of this process.

use std::io;
use std::os::fd::AsFd as _;

use anyhow::Context as _;
use sympozium_runs::{ApprovalMode, EventLog, HintedError, TargetFlags};

use super::arguments::RunArguments;
use super::follow::{FollowEnd, FollowOptions, RunControl, Streams, follow};
use super::prompt::Terminal;
use super::screen::TerminalEnv;
use super::signals::Signals;

/// To be opened before the run exists: then no signal is missed, and nothing starts that cannot be followed.
#[derive(Debug)]
pub struct Console {
    pub signals: Signals,
    streams: Streams,
    options: FollowOptions,
}

impl Console {
    pub fn open(arguments: &RunArguments, target: TargetFlags) -> Result<Self, HintedError> {
        let signals = Signals::listen()?;
        let streams = open_streams(arguments.approve)
            .context("cannot use the terminal")
            .map_err(|error| HintedError::new(error, "try again in another terminal, and report this"))?;
        let options = FollowOptions {
            target,
            output: arguments.output,
            approve: arguments.approve,
            color: arguments.color,
            environment: TerminalEnv::read(),
        };
        Ok(Self { signals, streams, options })
    }

    /// [Follows](follow) a run.
    pub async fn follow(
        mut self,
        events: &EventLog,
        control: &impl RunControl,
        lost: impl Future<Output = ()>,
    ) -> anyhow::Result<FollowEnd> {
        let reader = events.reader();
        follow(events, reader, control, self.options, self.streams, &mut self.signals, lost)
            .await
            .context("cannot show what happened in the run")
    }
}

/// The standard streams of this process, and its terminal if the user may be asked.
fn open_streams(approve: ApprovalMode) -> io::Result<Streams> {
    let terminal = match approve {
        ApprovalMode::Ask => Terminal::open(),
        ApprovalMode::All | ApprovalMode::None => None,
    };
    let stdout = io::stdout().as_fd().try_clone_to_owned()?;
    let stderr = io::stderr().as_fd().try_clone_to_owned()?;
    Ok(Streams { stdout, stderr, terminal })
}
