//! The other end of a skill's volume, by the file protocol as the guide for sidecars writes it down.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::sleep;

const PAUSE: Duration = Duration::from_millis(2);

/// Answers requests as a test says.
pub struct Executor {
    volume: PathBuf,
    seen: Arc<Mutex<Vec<(String, Value)>>>,
    task: JoinHandle<()>,
}

impl Executor {
    /// `answer` makes the result's fields of a request; `None` never answers.
    pub fn on(volume: PathBuf, answer: impl Fn(&Value) -> Option<Value> + Send + 'static) -> Self {
        let seen: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let task = {
            let (seen, volume) = (Arc::clone(&seen), volume.clone());
            tokio::spawn(async move {
                let mut known = HashSet::new();
                loop {
                    for (id, request) in requests(&volume) {
                        if known.insert(id.clone()) {
                            let _ = fs::create_dir(volume.join(format!("tools/.claim-{id}")));
                            let fields = answer(&request);
                            let seen_now = (id.clone(), request);
                            seen.lock().expect("not poisoned").push(seen_now);
                            if let Some(fields) = fields {
                                write_result(&volume, &id, &fields);
                            }
                        }
                    }
                    sleep(PAUSE).await;
                }
            })
        };
        Self { volume, seen, task }
    }

    /// Says what it was asked to run.
    pub fn echo(volume: PathBuf) -> Self {
        Self::on(volume, |request| {
            let words = request["argv"].as_array().filter(|it| !it.is_empty());
            let said = words.map_or_else(
                || request["command"].as_str().unwrap_or_default().to_owned(),
                |words| Value::from(words.clone()).to_string(),
            );
            Some(result(0, &said))
        })
    }

    /// Sees requests and never answers by itself.
    pub fn silent(volume: PathBuf) -> Self {
        Self::on(volume, |_| None)
    }

    /// The requests so far.
    pub fn seen(&self) -> Vec<Value> {
        let seen = self.seen.lock().expect("not poisoned");
        seen.iter().map(|(_, request)| request.clone()).collect()
    }

    /// Answers a request that was seen.
    pub fn answer(&self, index: usize, fields: &Value) {
        let id = self.seen.lock().expect("not poisoned")[index].0.clone();
        write_result(&self.volume, &id, fields);
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a command that has ended says.
pub fn result(exit_code: i32, stdout: &str) -> Value {
    json!({ "exitCode": exit_code, "stdout": stdout, "stderr": "", "timedOut": false })
}

fn requests(volume: &Path) -> Vec<(String, Value)> {
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

fn write_result(volume: &Path, id: &str, fields: &Value) {
    let mut result = fields.clone();
    result["id"] = json!(id);
    let place = volume.join(format!("tools/exec-result-{id}.json"));
    let beside = place.with_extension("json.tmp");
    fs::write(&beside, result.to_string()).expect("a file");
    fs::rename(beside, place).expect("in its place");
}
