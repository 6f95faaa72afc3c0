//! Standard output: the answer, or every event as a line of JSON.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::termios::isatty;
use sympozium_runs::{Event, EventLog};
use tokio::task::JoinHandle;

use crate::run::answer;
use crate::run::arguments::RunFormat;
use crate::run::writer::Writer;

#[derive(Debug)]
pub struct StdoutWriter {
    pub(super) writer: Arc<Writer>,
    pub(super) is_terminal: bool,
    pub(super) jsonl_task: Option<JoinHandle<anyhow::Result<()>>>,
}

impl StdoutWriter {
    pub fn new(stream: OwnedFd, output: RunFormat, events: &EventLog) -> anyhow::Result<Self> {
        let is_terminal = isatty(&stream);
        let writer = Arc::new(Writer::start(stream)?);
        let lines = (output == RunFormat::Jsonl).then(|| {
            let (writer, events) = (Arc::clone(&writer), events.clone());
            tokio::spawn(async move { write_events(&writer, &events).await })
        });
        Ok(Self { writer, is_terminal, jsonl_task: lines })
    }

    pub async fn finish(self) -> anyhow::Result<()> {
        if let Some(lines) = self.jsonl_task {
            lines.await??;
        }
        self.writer.flush().await;
        Ok(())
    }
}

/// Writes every event as a line, at the pace of the reader.
async fn write_events(writer: &Writer, events: &EventLog) -> anyhow::Result<()> {
    let mut reader = events.reader();
    loop {
        let timed = reader.next().await;
        writer.write(answer::to_json_line(&timed)?).await;
        if matches!(timed.event, Event::Ended { .. }) {
            return Ok(());
        }
    }
}
