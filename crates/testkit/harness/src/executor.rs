//! An executor on the volume of a skill, by the file protocol of the guide for sidecars, and the files of that protocol.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

/// Between two looks at the volume.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Answers requests on a volume as a test chooses.
///
/// It has a thread of its own: an answer may block, and a blocked worker of the runtime can keep all others from their sockets.
pub struct Executor {
    volume: PathBuf,
    received: Arc<Mutex<Vec<(String, Value)>>>,
    stopped: Arc<AtomicBool>,
}

impl Executor {
    /// `answer` makes the fields of a request's result; `None` never answers.
    pub fn on(volume: PathBuf, answer: impl Fn(&Value) -> Option<Value> + Send + 'static) -> Self {
        let executor = Self { volume, received: Arc::default(), stopped: Arc::default() };
        let volume = executor.volume.clone();
        let (received, stopped) = (Arc::clone(&executor.received), Arc::clone(&executor.stopped));
        thread::spawn(move || {
            let mut known = HashSet::new();
            while !stopped.load(Ordering::SeqCst) {
                for (id, request) in requests(&volume) {
                    if known.insert(id.clone()) {
                        received.lock().push((id.clone(), request.clone()));
                        let _ = fs::create_dir(volume.join(format!("tools/.claim-{id}")));
                        if let Some(fields) = answer(&request) {
                            write_result(&volume, &id, &fields);
                        }
                    }
                }
                thread::sleep(POLL_INTERVAL);
            }
        });
        executor
    }

    /// Returns the command as its output.
    pub fn echo(volume: PathBuf) -> Self {
        Self::on(volume, |request| {
            let words = request["argv"].as_array().filter(|words| !words.is_empty());
            let output = words.map_or_else(
                || request["command"].as_str().unwrap_or_default().to_owned(),
                |words| Value::from(words.clone()).to_string(),
            );
            Some(result(0, &output))
        })
    }

    /// Records requests without answering.
    pub fn silent(volume: PathBuf) -> Self {
        Self::on(volume, |_| None)
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<Value> {
        self.received.lock().iter().map(|(_, request)| request.clone()).collect()
    }

    /// Answers a recorded request.
    pub fn answer(&self, index: usize, fields: &Value) {
        let id = self.received.lock()[index].0.clone();
        write_result(&self.volume, &id, fields);
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
    }
}

/// The result of a command that has ended.
pub fn result(exit_code: i32, stdout: &str) -> Value {
    json!({ "exitCode": exit_code, "stdout": stdout, "stderr": "", "timedOut": false })
}

/// Requests that are on a volume.
pub fn requests(volume: &Path) -> Vec<(String, Value)> {
    let Ok(entries) = fs::read_dir(volume.join("tools")) else {
        return Vec::new();
    };
    let read = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let id = name.strip_prefix("exec-request-")?.strip_suffix(".json")?.to_owned();
        let request = serde_json::from_slice(&fs::read(entry.path()).ok()?).ok()?;
        Some((id, request))
    };
    entries.flatten().filter_map(read).collect()
}

/// Announces the start of an executor, as ours does.
pub fn announce_start(volume: &Path, nonce: &str, guarantees: &Value) {
    let isolation = json!({ "profile": "container", "guarantees": guarantees });
    let report = json!({ "nonce": nonce, "isolation": isolation });
    rename_into(&volume.join(".part"), &volume.join(".start"), &format!("{report}\n"));
}

/// Writes a result, as sidecars do.
pub fn write_result(volume: &Path, id: &str, fields: &Value) {
    let mut result = fields.clone();
    result["id"] = json!(id);
    let path = volume.join(format!("tools/exec-result-{id}.json"));
    rename_into(&path.with_extension("json.tmp"), &path, &result.to_string());
}

fn rename_into(temporary: &Path, path: &Path, content: &str) {
    fs::write(temporary, content).expect("a file");
    fs::rename(temporary, path).expect("it is renamed");
}
