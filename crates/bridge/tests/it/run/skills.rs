//! The other end of a skill's volume: an honest executor, and whatever else a test wants to write there.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

const PAUSE: Duration = Duration::from_millis(2);

/// Answers requests on a volume as a test says. It is the file protocol as the guide for sidecars writes it down.
///
/// It has a thread of its own: an answer may block, and a blocked worker of the runtime can keep all others from their sockets.
pub struct Executor {
    seen: Arc<Mutex<Vec<Value>>>,
    stopped: Arc<AtomicBool>,
}

impl Executor {
    /// `answer` makes the result's fields of a request; `None` never answers.
    pub fn on(volume: PathBuf, answer: impl Fn(&Value) -> Option<Value> + Send + 'static) -> Self {
        let executor = Self { seen: Arc::default(), stopped: Arc::default() };
        let seen = Arc::clone(&executor.seen);
        let stopped = Arc::clone(&executor.stopped);
        thread::spawn(move || {
            let mut known = HashSet::new();
            while !stopped.load(Ordering::SeqCst) {
                for (id, request) in requests(&volume) {
                    if known.insert(id.clone()) {
                        seen.lock().expect("not poisoned").push(request.clone());
                        let _ = fs::create_dir(volume.join(format!("tools/.claim-{id}")));
                        if let Some(fields) = answer(&request) {
                            write_result(&volume, &id, &fields);
                        }
                    }
                }
                thread::sleep(PAUSE);
            }
        });
        executor
    }

    /// Says on standard output what it was asked to run.
    pub fn echo(volume: PathBuf) -> Self {
        Self::on(volume, |request| {
            let words = request.get("argv").filter(|it| it.as_array().is_some_and(|it| !it.is_empty()));
            let said = words.unwrap_or(&request["command"]).to_string();
            Some(result(&said))
        })
    }

    /// The requests so far.
    pub fn seen(&self) -> Vec<Value> {
        self.seen.lock().expect("not poisoned").clone()
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
    }
}

/// A good result with this output.
pub fn result(stdout: &str) -> Value {
    json!({ "exitCode": 0, "stdout": stdout, "stderr": "", "timedOut": false })
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
    fs::write(volume.join(".part"), format!("{report}\n")).expect("a file");
    fs::rename(volume.join(".part"), volume.join(".start")).expect("in its place");
}

/// Puts a result in its place, as sidecars do.
pub fn write_result(volume: &Path, id: &str, fields: &Value) {
    let mut result = fields.clone();
    result["id"] = json!(id);
    let place = volume.join(format!("tools/exec-result-{id}.json"));
    let beside = place.with_extension("json.tmp");
    fs::write(&beside, result.to_string()).expect("a file");
    fs::rename(beside, place).expect("in its place");
}
