//! Serves one run, from the agent's first request to the last receipt.
//!
//! However the run ends, the shutdown is the same: running calls are cancelled or finish, the run end is reported, and
//! the last act is to write `done` for the skills. The order matters: a part that exits before the bridge would be
//! restarted. Skills with commands whose result is no longer needed get `done` earlier, which ends those commands.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use http::HeaderName;
use sympozium_api::digest::of_canonical;
use sympozium_exec::lockdown::stop_listening;
use sympozium_ipc::door::RunResult;
use sympozium_ipc::receipt::{Event, Outcome, shortened};
use sympozium_ipc::run_api::{Ending, Phase};
use sympozium_program::Failure;
use tokio::net::UnixStream;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, timeout, timeout_at};
use zeroize::Zeroizing;

use crate::door::{self, Door};
use crate::inputs::{self, Inputs};
use crate::key::secret_header;
use crate::model::{Model, ModelParts};
use crate::outward::Outward;
use crate::program::Started;
use crate::reporter::{Reported, report};
use crate::session::{Over, Session, SessionParts};
use crate::upward::Upward;

/// How long an agent that has sent its result may take to close its connection.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);
/// How far apart the parts of a run may receive the signal to terminate.
const SIGNALS_APART: Duration = Duration::from_secs(2);
/// How long a command whose result is no longer needed may take to end by itself.
const END_BY_ITSELF: Duration = Duration::from_millis(200);
/// How far the agent's clock may be ahead of the bridge's: the time that a message takes on a busy machine.
const CLOCKS_APART: Duration = Duration::from_millis(500);
/// How long the last report is retried if the bridge was not told to terminate.
const LAST_REPORT_PATIENCE: Duration = Duration::from_secs(60);
/// After SIGTERM: the tenths of the grace period until running calls must have ended, and until everything must be
/// reported. The rest is for writing `done`.
const SETTLED_TENTHS: u32 = 5;
const REPORTED_TENTHS: u32 = 9;
/// The domain of the hash of a result.
const RESULT_DOMAIN: &str = "sympozium.ai/result/v1";
/// The names of the credentials for web pages and for the model.
const WEB: &str = "web";
const MODEL: &str = "model";

/// Serves the run of the inputs until it has ended.
pub async fn run(started: Started) -> ExitCode {
    let served = serve(started).await;
    served.unwrap_or_else(|failure: Failure| failure.report())
}

async fn serve(started: Started) -> Result<ExitCode, Failure> {
    let mut told = Told::new()?;
    let (session, door) = prepare(started)?;
    let reporting = {
        let session = Arc::clone(&session);
        tokio::spawn(async move {
            let reported = report(&session.records, &session.upward, || session.usage()).await;
            if let Reported::Unwanted(why) = &reported {
                session.end(Over::Unwanted(why.clone()));
            }
            reported
        })
    };
    let end = work(&session, door, &mut told).await;
    let times = Times::new(&end, Duration::from_secs(session.plan.deadlines.grace_seconds));
    tokio::select! {
        () = settle(&session, times.settled) => {}
        () = told.stop() => session.give_up(),
    }
    let ending = ending(&session, end);
    let event = ended(&ending);
    tracing::info!(outcome = ?event, "the run is over");
    session.records.end(event, ending);
    let mut reporting = reporting;
    let reported = tokio::select! {
        reported = timeout_at(times.reported, &mut reporting) => reported,
        // A second signal shortens the report: what is left is the time that a part has to exit.
        () = told.stop() => timeout_at(Instant::now() + times.short, &mut reporting).await,
    };
    let complete = matches!(reported, Ok(Ok(Reported::Everything)));
    if !complete {
        tracing::error!("the end of the run could not be reported");
    }
    // Must be last, see the module.
    tell_skills(&session);
    Ok(match complete {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Writes `done` for every skill.
fn tell_skills(session: &Session) {
    for (pack, skill) in &session.skills {
        if let Err(error) = skill.write_done() {
            tracing::error!(pack, %error, "the skill cannot be told that the run is over");
        }
    }
}

/// Sets up everything that can fail before the run begins.
fn prepare(started: Started) -> Result<(Arc<Session>, Door), Failure> {
    let Started { inputs, key, gateway, lockdown, places, roots, platform, verifying } = started;
    let Inputs { plan, plan_digest, mut credentials, gateway_certificates, headers, script, .. } = inputs;
    let outward = Outward::new(gateway, gateway_certificates.as_deref());
    let outward =
        outward.map_err(|error| Failure::new(error, "the gateway's certificates come with the run's inputs"))?;
    let outward = match roots {
        Some(roots) => outward
            .trusting(&roots)
            .map_err(|error| Failure::new(error, "--certificates is a file of PEM certificates"))?,
        None => outward,
    };
    let outward = Arc::new(outward);
    let headers = headers.into_iter().map(|(name, value)| {
        let name = HeaderName::try_from(name).context("a header of the model has no usable name")?;
        let value = secret_header(Zeroizing::new(value.as_bytes().to_vec()))
            .with_context(|| format!("the header {name} of the model has no usable value"))?;
        Ok((name, value))
    });
    let model = Model::new(ModelParts {
        plan: &plan,
        outward: Arc::clone(&outward),
        credential: credentials.remove(MODEL),
        key,
        headers: headers.collect::<anyhow::Result<_>>()?,
        script: script.map(String::into_bytes),
    });
    let model = model.map_err(|error| Failure::new(error, "`sympozium explain` shows the plan"))?;
    let input = places.input.clone();
    let upward = Upward::new(Arc::clone(&outward), move || inputs::read_token(&input).ok());
    let logs = logs(plan.run.name.as_str());
    let by = format!(
        "ipc-bridge {} (landlock {}, missing {:?})",
        env!("CARGO_PKG_VERSION"),
        lockdown.landlock_abi,
        lockdown.missing()
    );
    let run = plan.run.uid.to_string();
    let session = Session::new(
        SessionParts {
            plan,
            plan_digest,
            model: Arc::new(model),
            outward,
            upward,
            web: credentials.remove(WEB),
            logs,
            platform,
            verifying,
        },
        &places.ipc,
    );
    let session =
        session.map_err(|error| Failure::new(error, "every skill of the plan has a directory below --ipc"))?;
    let door = Door::open(&places.door)
        .with_context(|| format!("the door cannot be opened in {}", places.door.display()))
        .map_err(|error| Failure::new(error, "--door is a directory of the bridge's own"))?;
    // The last listening socket has been created.
    stop_listening().map_err(|error| {
        let hint = "a container's seccomp profile must let it use seccomp; RuntimeDefault does";
        Failure::new(error, hint)
    })?;
    session.records.add(Event::Started { run, by: shortened(&by) });
    Ok((session, door))
}

/// The command that prints a skill's logs, with `{part}` as a placeholder.
fn logs(run: &str) -> String {
    // In a pod, the host name is the pod's name.
    let pod = rustix::system::uname().nodename().to_string_lossy().into_owned();
    match std::env::var_os("KUBERNETES_SERVICE_HOST") {
        Some(_) => format!("kubectl logs {pod} -c {{part}}"),
        None => format!("sympozium logs {run} --part {{part}}"),
    }
}

enum End {
    /// The agent never connected.
    NeverCame,
    /// The agent closed its connection.
    Left,
    /// The run's time was up.
    TimedOut,
    /// The bridge was told to terminate.
    Stopped,
    /// The agent violated the protocol, or went on after too many refusals.
    Misbehaved(&'static str),
    /// A command was less isolated than the plan requires.
    BelowFloor,
    /// The gateway takes no reports of this run.
    Unwanted(String),
    /// What a skill does can no longer be known.
    Compromised(String),
}

/// Waits for the agent, then serves it. Returns when the door is closed for good.
async fn work(session: &Arc<Session>, door: Door, told: &mut Told) -> End {
    let patience = Duration::from_secs(session.plan.deadlines.connect_seconds);
    let agent = tokio::select! {
        agent = timeout(patience, door.agent()) => match agent {
            Ok(Ok(agent)) => agent,
            Ok(Err(error)) => {
                tracing::error!(%error, "the door broke");
                return End::NeverCame;
            }
            Err(_) => return End::NeverCame,
        },
        () = told.stop() => return End::Stopped,
        over = session.over() => return of_over(over),
    };
    session.clock.start();
    session.records.phase(Phase::Working);
    listen(session, agent, told).await
}

async fn listen(session: &Arc<Session>, agent: UnixStream, told: &mut Told) -> End {
    let serving = door::serve(session, agent);
    tokio::pin!(serving);
    let over = tokio::select! {
        () = &mut serving => return stopped_or_left(session, told).await,
        () = session.clock.run_out() => return End::TimedOut,
        () = told.stop() => return End::Stopped,
        over = session.over() => over,
    };
    if over == Over::Finished {
        // The agent knows that its result was accepted, and disconnects by itself.
        tokio::select! {
            _ = timeout(LEAVE_PATIENCE, serving) => {}
            () = told.stop() => return End::Stopped,
        }
        return stopped_or_left(session, told).await;
    }
    of_over(over)
}

/// Decides why the agent disconnected. When a pod is deleted, all of its containers are signalled, and the agent
/// possibly a moment before the bridge. The agent's report alone does not turn a failure into a stop.
async fn stopped_or_left(session: &Session, told: &mut Told) -> End {
    if session.agent_was_asked_to_end() && timeout(SIGNALS_APART, told.stop()).await.is_ok() {
        return End::Stopped;
    }
    End::Left
}

fn of_over(over: Over) -> End {
    match over {
        Over::Finished => End::Left,
        Over::Misbehaved(how) => End::Misbehaved(how),
        Over::BelowFloor => End::BelowFloor,
        Over::Unwanted(why) => End::Unwanted(why),
        Over::Compromised(why) => End::Compromised(why),
    }
}

/// The deadlines of the shutdown.
struct Times {
    /// Running calls must have ended.
    settled: Instant,
    /// Everything must be reported.
    reported: Instant,
    /// The time for reporting if the bridge is told to terminate meanwhile.
    short: Duration,
}

impl Times {
    /// After SIGTERM the grace period is for everything, because the part is killed after it. Otherwise nothing limits
    /// the bridge from outside.
    fn new(end: &End, grace: Duration) -> Self {
        let now = Instant::now();
        let short = grace / 10 * REPORTED_TENTHS;
        match end {
            End::Stopped => Self {
                settled: now + grace / 10 * SETTLED_TENTHS,
                reported: now + short,
                short: grace / 10 * SETTLED_TENTHS,
            },
            _ => Self { settled: now + grace, reported: now + grace + LAST_REPORT_PATIENCE, short },
        }
    }
}

/// Waits until running calls have ended, or until the deadline. Their results are no longer needed: if a command does
/// not end shortly, `done` tells its executor to end it. The executor still reports how the command ended, and exits.
async fn settle(session: &Session, deadline: Instant) {
    session.lapse_all();
    let moment = deadline.min(Instant::now() + END_BY_ITSELF);
    if timeout_at(moment, session.quiet()).await.is_ok() {
        return;
    }
    tell_skills(session);
    if timeout_at(deadline, session.quiet()).await.is_err() {
        tracing::warn!("the run ends before some of its commands do");
    }
    session.give_up();
}

/// How the run ended. A result of the agent counts, whatever happened afterwards; but an agent that was told to
/// terminate reports a failure, and that is not a failure of the agent.
fn ending(session: &Session, end: End) -> Ending {
    // Before the agent's result, which may depend on such a command.
    if let Some(why) = session.below_floor() {
        return Ending::Failed { error: format!("the run was ended: {why}") };
    }
    if let Some(why) = session.compromised.get() {
        return Ending::Failed { error: why.clone() };
    }
    match session.take_result() {
        Some(RunResult::Answer { text }) => return Ending::Answered { text },
        Some(RunResult::Failure { .. }) if matches!(end, End::Stopped) => return Ending::Stopped,
        // The agent has a clock too, which may be slightly ahead.
        Some(RunResult::Failure { .. }) if session.clock.work_left() < CLOCKS_APART => {
            return Ending::TimedOut;
        }
        Some(RunResult::Failure { error }) => return Ending::Failed { error },
        None => {}
    }
    let usage = session.usage();
    let known = |what: &str| Ending::Crashed {
        known: format!(
            "{what}; it had asked the model {} times and called {} tools",
            usage.model_requests, usage.tool_calls
        ),
    };
    match end {
        End::NeverCame => Ending::NeverCame,
        End::TimedOut => Ending::TimedOut,
        End::Stopped => Ending::Stopped,
        End::Left => known("the agent left without a result"),
        End::Misbehaved(how) => known(&format!("the agent was cut off: {how}")),
        End::BelowFloor => known("the run was ended below its isolation floor"),
        End::Unwanted(why) => known(&format!("nothing that happens can be reported: {}", shortened(&why))),
        End::Compromised(why) => Ending::Failed { error: why },
    }
}

fn ended(ending: &Ending) -> Event {
    let failed = |why: &str| Outcome::Failed { why: shortened(why) };
    let outcome = match ending {
        Ending::Answered { .. } => Outcome::Done,
        Ending::Failed { error } => failed(error),
        Ending::Crashed { known } => failed(known),
        Ending::NeverCame => failed("the agent never came"),
        Ending::TimedOut => Outcome::TimedOut,
        Ending::Stopped => Outcome::Cancelled,
    };
    let result = match ending {
        Ending::Answered { text } => Some(of_canonical(RESULT_DOMAIN, text.as_bytes())),
        _ => None,
    };
    Event::Ended { outcome, result }
}

/// SIGTERM and SIGINT.
struct Told {
    terminate: Signal,
    interrupt: Signal,
}

impl Told {
    fn new() -> Result<Self, Failure> {
        let of = |kind| signal(kind).context("signals cannot be received");
        Ok(Self { terminate: of(SignalKind::terminate())?, interrupt: of(SignalKind::interrupt())? })
    }

    async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
