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
use sympozium_api::digest::digest_canonical;
use sympozium_exec::lockdown::stop_listening;
use sympozium_ipc::door::AgentResult;
use sympozium_ipc::receipt::{Event, Outcome, to_receipt_text};
use sympozium_ipc::run_api::{AgentEnd, BridgePhase};
use sympozium_program::{Failure, ShutdownSignals};
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout, timeout_at};
use zeroize::Zeroizing;

use crate::door::{self, Door};
use crate::egress_client::EgressClient;
use crate::inputs::{self, Inputs};
use crate::key::secret_header;
use crate::model::{Model, ModelParts};
use crate::program::ServeContext;
use crate::reporter::{ReportOutcome, report};
use crate::run_api_client::RunApiClient;
use crate::session::{Session, SessionParts, StopCause};

/// How long an agent that has sent its result may take to close its connection.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How far apart the parts of a run may receive the signal to terminate.
const SIGNAL_SKEW: Duration = Duration::from_secs(2);
/// How long a command whose result is no longer needed may take to end by itself.
const SELF_EXIT_TIMEOUT: Duration = Duration::from_millis(200);
/// How far the agent's clock may be ahead of the bridge's: the time that a message takes on a busy machine.
const CLOCK_SKEW: Duration = Duration::from_millis(500);
/// How long the last report is retried if the bridge was not told to terminate.
const LAST_REPORT_TIMEOUT: Duration = Duration::from_secs(60);
/// After SIGTERM: the tenths of the grace period until running calls must have ended, and until everything must be
/// reported. The rest is for writing `done`.
const DRAIN_TENTHS: u32 = 5;
const REPORT_TENTHS: u32 = 9;
/// The domain of the hash of a result.
const RESULT_DOMAIN: &str = "sympozium.ai/result/v1";
/// The names of the credentials for web pages and for the model.
const WEB_CREDENTIAL: &str = "web";
const MODEL_CREDENTIAL: &str = "model";

/// Serves the run of the inputs until it has ended.
pub async fn run(started: ServeContext) -> ExitCode {
    let served = serve(started).await;
    served.unwrap_or_else(|failure: Failure| failure.print())
}

async fn serve(started: ServeContext) -> Result<ExitCode, Failure> {
    let mut signals = ShutdownSignals::listen()?;
    let (session, door) = prepare(started)?;
    let reporting = {
        let session = Arc::clone(&session);
        tokio::spawn(async move {
            let reported = report(&session.records, &session.run_api, || session.usage()).await;
            if let ReportOutcome::Refused(why) = &reported {
                session.end(StopCause::ReportsRefused(why.clone()));
            }
            reported
        })
    };
    let end = wait_and_serve(&session, door, &mut signals).await;
    let times = ShutdownDeadlines::new(&end, Duration::from_secs(session.plan.deadlines.grace_seconds));
    tokio::select! {
        () = drain_calls(&session, times.drain) => {}
        _ = signals.recv() => session.abandon_actions(),
    }
    let ending = agent_end(&session, end);
    let event = end_event(&ending);
    tracing::info!(outcome = ?event, "the run is over");
    session.records.finish(event, ending);
    let mut reporting = reporting;
    let reported = tokio::select! {
        reported = timeout_at(times.report, &mut reporting) => reported,
        // A second signal shortens the report: what is left is the time that a part has to exit.
        _ = signals.recv() => timeout_at(Instant::now() + times.stop_report_timeout, &mut reporting).await,
    };
    let complete = matches!(reported, Ok(Ok(ReportOutcome::Complete)));
    if !complete {
        tracing::error!("the end of the run could not be reported");
    }
    // Must be last, see the module.
    write_done(&session);
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes `done` for every skill.
fn write_done(session: &Session) {
    for (pack, skill) in &session.skills {
        if let Err(error) = skill.write_done() {
            tracing::error!(pack, %error, "the skill cannot be notified that the run has ended");
        }
    }
}

/// Sets up everything that can fail before the run begins.
fn prepare(started: ServeContext) -> Result<(Arc<Session>, Door), Failure> {
    let ServeContext { inputs, key, gateway, lockdown, directories: places, roots, platform, verifying } = started;
    let Inputs { plan, plan_digest, mut credentials, gateway_certificates, headers, script, .. } = inputs;
    let outward = EgressClient::new(gateway, gateway_certificates.as_deref());
    let outward =
        outward.map_err(|error| Failure::new(error, "the gateway's certificates come with the run's inputs"))?;
    let outward = match roots {
        Some(roots) => outward
            .with_extra_roots(&roots)
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
        egress: Arc::clone(&outward),
        credential: credentials.remove(MODEL_CREDENTIAL),
        key,
        headers: headers.collect::<anyhow::Result<_>>()?,
        script: script.map(String::into_bytes),
    });
    let model = model.map_err(|error| Failure::new(error, "`sympozium explain` shows the plan"))?;
    let input = places.input.clone();
    let upward = RunApiClient::new(Arc::clone(&outward), move || inputs::read_token(&input).ok());
    let logs = logs_command(plan.run.name.as_str());
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
            egress: outward,
            run_api: upward,
            web_credential: credentials.remove(WEB_CREDENTIAL),
            logs_command: logs,
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
    session.records.add(Event::Started { run, by: to_receipt_text(&by) });
    Ok((session, door))
}

/// The command that prints a skill's logs, with `{part}` as a placeholder.
fn logs_command(run: &str) -> String {
    // In a pod, the host name is the pod's name.
    let pod = rustix::system::uname().nodename().to_string_lossy().into_owned();
    match std::env::var_os("KUBERNETES_SERVICE_HOST") {
        Some(_) => format!("kubectl logs {pod} -c {{part}}"),
        None => format!("sympozium logs {run} --part {{part}}"),
    }
}

/// Waits for the agent, then serves it. Returns when the door is closed for good.
async fn wait_and_serve(session: &Arc<Session>, door: Door, signals: &mut ShutdownSignals) -> StopCause {
    let patience = Duration::from_secs(session.plan.deadlines.connect_seconds);
    let agent = tokio::select! {
        agent = timeout(patience, door.accept_agent()) => match agent {
            Ok(Ok(agent)) => agent,
            Ok(Err(error)) => {
                tracing::error!(%error, "the door broke");
                return StopCause::NeverConnected;
            }
            Err(_) => return StopCause::NeverConnected,
        },
        _ = signals.recv() => return StopCause::Signalled,
        cause = session.wait_end() => return cause,
    };
    session.clock.start();
    session.records.set_phase(BridgePhase::Working);
    serve_agent(session, agent, signals).await
}

async fn serve_agent(session: &Arc<Session>, agent: UnixStream, signals: &mut ShutdownSignals) -> StopCause {
    let serving = door::serve(session, agent);
    tokio::pin!(serving);
    let cause = tokio::select! {
        () = &mut serving => return classify_disconnect(session, signals).await,
        () = session.clock.wait_expired() => return StopCause::TimedOut,
        _ = signals.recv() => return StopCause::Signalled,
        cause = session.wait_end() => cause,
    };
    if cause == StopCause::AgentDone {
        // The agent knows that its result was accepted, and disconnects by itself.
        tokio::select! {
            _ = timeout(DISCONNECT_TIMEOUT, serving) => {}
            _ = signals.recv() => return StopCause::Signalled,
        }
        return classify_disconnect(session, signals).await;
    }
    cause
}

/// Decides why the agent disconnected. When a pod is deleted, all of its containers are signalled, and the agent
/// possibly a moment before the bridge. The agent's report alone does not turn a failure into a stop.
async fn classify_disconnect(session: &Session, signals: &mut ShutdownSignals) -> StopCause {
    if session.agent_was_terminated() && timeout(SIGNAL_SKEW, signals.recv()).await.is_ok() {
        return StopCause::Signalled;
    }
    StopCause::AgentDone
}

struct ShutdownDeadlines {
    /// Running calls must have ended.
    drain: Instant,
    /// Everything must be reported.
    report: Instant,
    /// The time for reporting if the bridge is told to terminate meanwhile.
    stop_report_timeout: Duration,
}

impl ShutdownDeadlines {
    /// After SIGTERM the grace period is for everything, because the part is killed after it. Otherwise nothing limits
    /// the bridge from outside.
    fn new(end: &StopCause, grace: Duration) -> Self {
        let now = Instant::now();
        let short = grace / 10 * REPORT_TENTHS;
        match end {
            StopCause::Signalled => Self {
                drain: now + grace / 10 * DRAIN_TENTHS,
                report: now + short,
                stop_report_timeout: grace / 10 * DRAIN_TENTHS,
            },
            _ => Self { drain: now + grace, report: now + grace + LAST_REPORT_TIMEOUT, stop_report_timeout: short },
        }
    }
}

/// Waits until running calls have ended, or until the deadline. Their results are no longer needed: if a command does
/// not end shortly, `done` tells its executor to end it. The executor still reports how the command ended, and exits.
async fn drain_calls(session: &Session, deadline: Instant) {
    session.expire_permits();
    let moment = deadline.min(Instant::now() + SELF_EXIT_TIMEOUT);
    if timeout_at(moment, session.wait_idle()).await.is_ok() {
        return;
    }
    write_done(session);
    if timeout_at(deadline, session.wait_idle()).await.is_err() {
        tracing::warn!("the run ends before some of its commands do");
    }
    session.abandon_actions();
}

/// How the run ended. A result of the agent counts, whatever happened afterwards; but an agent that was told to
/// terminate reports a failure, and that is not a failure of the agent.
fn agent_end(session: &Session, end: StopCause) -> AgentEnd {
    // Before the agent's result, which may depend on such a command.
    if let Some(why) = session.below_floor() {
        return AgentEnd::Failed { error: format!("the run was ended: {why}") };
    }
    if let Some(why) = session.compromised.get() {
        return AgentEnd::Failed { error: why.clone() };
    }
    match session.take_result() {
        Some(AgentResult::Answer { text }) => return AgentEnd::Answered { text },
        Some(AgentResult::Failure { .. }) if matches!(end, StopCause::Signalled) => return AgentEnd::Stopped,
        // The agent has a clock too, which may be slightly ahead.
        Some(AgentResult::Failure { .. }) if session.clock.work_time_left() < CLOCK_SKEW => {
            return AgentEnd::TimedOut;
        }
        Some(AgentResult::Failure { error }) => return AgentEnd::Failed { error },
        None => {}
    }
    let usage = session.usage();
    let known = |what: &str| AgentEnd::Crashed {
        known: format!(
            "{what}; it had asked the model {} times and called {} tools",
            usage.model_requests, usage.tool_calls
        ),
    };
    match end {
        StopCause::NeverConnected => AgentEnd::NeverCame,
        StopCause::TimedOut => AgentEnd::TimedOut,
        StopCause::Signalled => AgentEnd::Stopped,
        StopCause::AgentDone => known("the agent left without a result"),
        StopCause::Misbehaved(how) => known(&format!("the agent was cut off: {how}")),
        StopCause::BelowFloor => known("the run was ended below its isolation floor"),
        StopCause::ReportsRefused(why) => {
            known(&format!("nothing that happens can be reported: {}", to_receipt_text(&why)))
        }
        StopCause::Compromised(why) => AgentEnd::Failed { error: why },
    }
}

fn end_event(ending: &AgentEnd) -> Event {
    let failed = |why: &str| Outcome::Failed { why: to_receipt_text(why) };
    let outcome = match ending {
        AgentEnd::Answered { .. } => Outcome::Done,
        AgentEnd::Failed { error } => failed(error),
        AgentEnd::Crashed { known } => failed(known),
        AgentEnd::NeverCame => failed("the agent never came"),
        AgentEnd::TimedOut => Outcome::TimedOut,
        AgentEnd::Stopped => Outcome::Cancelled,
    };
    let result = match ending {
        AgentEnd::Answered { text } => Some(digest_canonical(RESULT_DOMAIN, text.as_bytes())),
        _ => None,
    };
    Event::Ended { outcome, result }
}
