//! The executor of a skill, by the file protocol of the guide for sidecars.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::sleep;

const POLL_INTERVAL: Duration = Duration::from_millis(2);

pub struct Executor {
    volume: PathBuf,
    received: Arc<Mutex<Vec<(String, Value)>>>,
    task: JoinHandle<()>,
}

impl Executor {
    /// `answer` makes the result of a request; `None` never answers.
    pub fn on(volume: PathBuf, answer: impl Fn(&Value) -> Option<Value> + Send + 'static) -> Self {
        let received: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let task = {
            let (received, volume) = (Arc::clone(&received), volume.clone());
            tokio::spawn(async move {
                let mut known = HashSet::new();
                loop {
                    for (id, request) in requests(&volume) {
                        if known.insert(id.clone()) {
                            let _ = fs::create_dir(volume.join(format!("tools/.claim-{id}")));
                            let fields = answer(&request);
                            let entry = (id.clone(), request);
                            received.lock().expect("not poisoned").push(entry);
                            if let Some(fields) = fields {
                                write_result(&volume, &id, &fields);
                            }
                        }
                    }
                    sleep(POLL_INTERVAL).await;
                }
            })
        };
        Self { volume, received, task }
    }

    /// Returns the command as its output.
    pub fn echo(volume: PathBuf) -> Self {
        Self::on(volume, |request| {
            let words = request["argv"].as_array().filter(|it| !it.is_empty());
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

    pub fn requests(&self) -> Vec<Value> {
        let received = self.received.lock().expect("not poisoned");
        received.iter().map(|(_, request)| request.clone()).collect()
    }

    /// Answers a recorded request.
    pub fn answer(&self, index: usize, fields: &Value) {
        let id = self.received.lock().expect("not poisoned")[index].0.clone();
        write_result(&self.volume, &id, fields);
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The result of a finished command.
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
    let path = volume.join(format!("tools/exec-result-{id}.json"));
    let temporary = path.with_extension("json.tmp");
    fs::write(&temporary, result.to_string()).expect("a file");
    fs::rename(temporary, path).expect("in its place");
}
