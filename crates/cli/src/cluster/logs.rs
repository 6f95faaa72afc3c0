//! `sympozium logs` in a cluster: the transcript from the run's records, and the logs of its containers while they
//! exist.

use anyhow::anyhow;
use futures::AsyncReadExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::LogParams;
use sympozium_api::AgentRun;
use sympozium_api::agent_run::{ContainerFailure, RunReport};
use sympozium_api::run_record::RecordKind;

use super::call_error::Role;
use super::records::Records;
use super::{Cluster, Connection, FoundRun, follow, records, view};
use sympozium_api::text::{printable, quote};
use sympozium_runs::ApprovalMode;
use sympozium_runs::Event;
use sympozium_runs::HintedError;
use sympozium_runs::{EventLog, LogError, LogRequest, LogSink};

/// Bytes of a container's log that are read.
const MAX_LOG_BYTES: u64 = 16 << 20;
/// The maximum number of containers that an error message lists.
const MAX_CONTAINERS: usize = 64;

/// Passes on the transcript of a run, or the log of one part.
///
/// # Errors
///
/// When there is no such run, the API server rejects a request, or the sink fails.
pub fn read(cluster: &Cluster, run: &str, request: LogRequest<'_>, sink: &mut dyn LogSink) -> Result<(), LogError> {
    let found = cluster.find(run)?;
    let connection = &cluster.connection;
    cluster.block_on(async {
        match request.part {
            Some(part) => read_part_log(connection, &found, part, request.follow, sink).await,
            None if request.follow => follow_log(connection, &found, sink).await,
            None => read_transcript(connection, &found, sink).await,
        }
    })
}

async fn read_transcript(connection: &Connection, found: &FoundRun, sink: &mut dyn LogSink) -> Result<(), LogError> {
    let records = records::read(connection, &found.run, RecordKind::Transcript).await?;
    if records.records.is_empty() {
        sink.note("the transcript is empty so far");
        if view::run_end(&found.run).is_none() {
            for (_, text) in view::unmet_conditions(&found.run) {
                sink.note(&format!("waiting: {}", printable(&text)));
            }
        }
    }
    for line in records.lines() {
        sink.transcript_line(line.clone())?;
    }
    sink.flush()?;
    let report = view::status(&found.run).report;
    if records.is_truncated {
        sink.note("the transcript is truncated: it is longer than the read limit");
    } else if let Some(missing) = missing_warning(&records, report.as_ref()) {
        sink.note(&missing);
    } else if report.is_some_and(|it| it.transcript_cut) {
        sink.note("the transcript is truncated: it has reached the limit of the run's plan");
    }
    sink.run_state(view::run_end(&found.run).as_ref());
    Ok(())
}

/// The warning when not all segments exist that the run has reported, or that later segments presuppose.
fn missing_warning(records: &Records, report: Option<&RunReport>) -> Option<String> {
    let reported = report.and_then(|it| it.transcript_segments).unwrap_or(0);
    let reported = usize::try_from(reported).unwrap_or(0);
    let found = records.records.len();
    let first = records.gap.or((found < reported).then_some(found))?;
    let kind = RecordKind::Transcript;
    let segment = records::segment_name(kind, i32::try_from(first).unwrap_or(i32::MAX));
    Some(format!("warning: RunRecord {segment} of the run is missing; the transcript is printed up to it"))
}

async fn follow_log(connection: &Connection, found: &FoundRun, sink: &mut dyn LogSink) -> Result<(), LogError> {
    let events = EventLog::default();
    let mut reader = events.reader();
    let watching = async {
        match follow::watch_run(connection, found.run.clone(), &events, ApprovalMode::Ask).await {
            // The reader sees the end.
            Ok(()) => std::future::pending().await,
            Err(failure) => failure,
        }
    };
    tokio::pin!(watching);
    loop {
        tokio::select! {
            // Print what was emitted before more is emitted: the log is bounded.
            biased;
            timed = reader.next() => {
                sink.event(&timed)?;
                if matches!(timed.event, Event::Ended { .. }) {
                    return Ok(());
                }
            }
            failure = &mut watching => return Err(failure.into()),
        }
    }
}

/// Passes on what one container logged: from its pod while that exists, and from the run's status afterwards.
async fn read_part_log(
    connection: &Connection,
    found: &FoundRun,
    part: &str,
    follow: bool,
    sink: &mut dyn LogSink,
) -> Result<(), LogError> {
    let status = view::status(&found.run);
    let pod = match &status.pod_name {
        Some(name) => {
            let pods = connection.api::<Pod>();
            let pod = pods.get_opt(name.as_str());
            connection.call("read the run's pod", Role::View, pod).await?
        }
        None => None,
    };
    // Another pod of the same name does not belong to the run.
    let pod_uid = status.pod_uid.as_ref().map(|it| it.as_str().to_owned());
    let pod = pod.filter(|it| it.uid() == pod_uid);
    let names = container_names(pod.as_ref(), &status.failed_containers);
    let Some(container) = names.iter().find(|it| matches_part(it, part)) else {
        let wanted = quote(part);
        let has_ended = view::run_end(&found.run).is_some();
        let error = match (names.is_empty(), pod) {
            (true, _) if !has_ended && status.pod_name.is_none() => {
                anyhow!("part {wanted} has no log, because the run has no pod yet: {}", describe_waiting(&found.run))
            }
            (true, _) => {
                anyhow!("part {wanted} has no log: the run has no pod any more, and no container failed")
            }
            (false, None) => anyhow!(
                "part {wanted} has no log: the run has no pod any more, and its status has only the logs of {}",
                printable(names.join(", "))
            ),
            (false, Some(_)) => anyhow!("there is no part {wanted}; the parts are {}", printable(names.join(", "))),
        };
        return Err(show_hint(connection, found, error).into());
    };
    let Some(pod) = pod else {
        let failed = status.failed_containers.iter().filter(|failed| failed.name == *container);
        let tail = failed.filter_map(|failed| failed.log_tail.as_deref()).next();
        sink.part_output(tail.unwrap_or_default().as_bytes())?;
        sink.note("the run has no pod any more; this is the end of the log, from the run's status");
        return Ok(());
    };
    let parameters = LogParams {
        container: Some(container.clone()),
        follow,
        limit_bytes: i64::try_from(MAX_LOG_BYTES).ok().filter(|_| !follow),
        ..LogParams::default()
    };
    let pods = connection.api::<Pod>();
    let name = pod.name_any();
    let operation = format!("read the log of {}", quote(container));
    let stream = pods.log_stream(&name, &parameters);
    let stream = connection.call(&operation, Role::View, stream).await?;
    let mut stream = std::pin::pin!(stream);
    let mut chunk = [0; 8192];
    let mut read: u64 = 0;
    loop {
        match stream.read(&mut chunk).await {
            Ok(0) => break,
            Ok(count) => {
                read += count as u64;
                sink.part_output(&chunk[..count])?;
                sink.flush()?;
            }
            Err(error) => {
                let error = anyhow::Error::from(error).context("reading the log failed");
                return Err(show_hint(connection, found, error).into());
            }
        }
    }
    if read >= MAX_LOG_BYTES && !follow {
        sink.note(&format!("the log may be truncated: only the first {MAX_LOG_BYTES} bytes were read"));
    }
    Ok(())
}

fn show_hint(connection: &Connection, found: &FoundRun, error: anyhow::Error) -> HintedError {
    let (name, target) = (&found.name, connection.target.as_str());
    HintedError::new(error, format!("`sympozium show {name}{target}` prints the state of the run"))
}

/// What a run waits for, on one line.
fn describe_waiting(run: &AgentRun) -> String {
    let conditions = view::unmet_conditions(run).into_iter().map(|(_, text)| text);
    let conditions: Vec<String> = conditions.map(|it| printable(it).into_owned()).collect();
    match conditions.is_empty() {
        true => "the run has not started".to_owned(),
        false => conditions.join("; "),
    }
}

/// The containers that have a log, or whose log tail the status has.
fn container_names(pod: Option<&Pod>, failed: &[ContainerFailure]) -> Vec<String> {
    let spec = pod.and_then(|it| it.spec.as_ref());
    let mut names: Vec<String> = match spec {
        Some(spec) => {
            let init_containers = spec.init_containers.iter().flatten();
            let all = init_containers.chain(&spec.containers);
            all.map(|it| it.name.clone()).collect()
        }
        None => {
            let with_log = failed.iter().filter(|it| it.log_tail.is_some());
            with_log.map(|it| it.name.clone()).collect()
        }
    };
    names.truncate(MAX_CONTAINERS);
    names
}

/// Matches a container by its own name, or by the name that its part has on one machine.
fn matches_part(container: &str, part: &str) -> bool {
    container == part || container.strip_prefix("ipc-") == Some(part)
}

#[cfg(test)]
mod tests;
