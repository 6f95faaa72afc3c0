//! The API server's audit log: which calls were made, by whom, and how they ended.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::Value;

use super::{Kubectl, eventually};

/// How long a call may take from its answer to its line.
const PATIENCE: Duration = Duration::from_secs(180);

/// The log of one cluster, which all tests of a run share: filter by namespace or user.
#[derive(Debug)]
pub struct AuditLog {
    path: PathBuf,
    kubectl: Kubectl,
}

/// A moment in the log.
#[derive(Debug, Clone, Copy)]
pub struct Mark(u64);

/// One call that was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Who called: the authenticated user.
    pub user: String,
    /// The impersonated user, if any.
    pub impersonated: Option<String>,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// API group; empty for the core group.
    pub group: String,
    /// Plural resource name; empty for paths that are no resource.
    pub resource: String,
    /// Such as `status`, `token`, `exec`; empty for the object itself.
    pub subresource: String,
    /// Empty for cluster-wide objects.
    pub namespace: String,
    /// Empty for lists, and for objects whose name the server made.
    pub name: String,
    /// Path and query as they were sent.
    pub path: String,
    /// The client program's name and version, as it told them.
    pub user_agent: String,
    /// The HTTP status of the answer.
    pub code: u16,
    /// Why the call failed; empty where it did not.
    pub message: String,
}

impl AuditLog {
    pub(super) fn new(path: PathBuf, kubectl: Kubectl) -> Self {
        Self { path, kubectl }
    }

    /// The present moment: [`AuditLog::since`] it gives what comes after.
    ///
    /// # Errors
    ///
    /// When the log cannot be read.
    pub fn mark(&self) -> Result<Mark> {
        self.settle()?;
        let data = std::fs::metadata(&self.path).with_context(|| format!("examining {}", self.path.display()))?;
        Ok(Mark(data.len()))
    }

    /// The moment at which the cluster was started.
    pub fn beginning(&self) -> Mark {
        Mark(0)
    }

    /// Every call that was answered after `mark` and before this call, of everybody.
    ///
    /// # Errors
    ///
    /// When the log cannot be read.
    pub fn since(&self, mark: Mark) -> Result<Vec<Call>> {
        self.settle()?;
        Ok(parse(&self.read(mark)?))
    }

    /// A line is written a moment after its call's answer is sent. A call of our own whose line is there says that
    /// those before it have been written too.
    fn settle(&self) -> Result<()> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = format!("/version?settle={}-{count}", std::process::id());
        let start = std::fs::metadata(&self.path).map_or(0, |data| data.len());
        self.kubectl.run(&["get", "--raw", &path])?;
        eventually("the audit log to be written", PATIENCE, || {
            Ok(self.read(Mark(start))?.contains(&path).then_some(()))
        })
    }

    fn read(&self, mark: Mark) -> Result<String> {
        let mut text = String::new();
        let mut file = File::open(&self.path).with_context(|| format!("opening {}", self.path.display()))?;
        file.seek(SeekFrom::Start(mark.0)).context("seeking in the audit log")?;
        file.read_to_string(&mut text).context("reading the audit log")?;
        Ok(text)
    }
}

fn parse(text: &str) -> Vec<Call> {
    // The last line may be in the middle of being written.
    let complete = text.rsplit_once('\n').map_or("", |(complete, _)| complete);
    complete.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok()).filter_map(Line::call).collect()
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Line {
    stage: String,
    verb: String,
    user: Value,
    impersonated_user: Value,
    user_agent: String,
    object_ref: Value,
    response_status: Value,
    #[serde(rename = "requestURI")]
    request_uri: String,
}

impl Line {
    /// A watch or an exec is one call, told when it was accepted; its end is not another.
    fn call(self) -> Option<Call> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let long = self.verb == "watch" || self.object_ref["subresource"] == "exec";
        let wanted = if long { "ResponseStarted" } else { "ResponseComplete" };
        (self.stage == wanted).then(|| Call {
            user: text(&self.user["username"]),
            impersonated: self.impersonated_user["username"].as_str().map(str::to_owned),
            group: text(&self.object_ref["apiGroup"]),
            resource: text(&self.object_ref["resource"]),
            subresource: text(&self.object_ref["subresource"]),
            namespace: text(&self.object_ref["namespace"]),
            name: text(&self.object_ref["name"]),
            code: self.response_status["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or_default(),
            message: text(&self.response_status["message"]),
            verb: self.verb,
            path: self.request_uri,
            user_agent: self.user_agent,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_calls_and_the_unfinished_last_one_is_left() {
        let line = r#"{"stage":"ResponseComplete","verb":"create","user":{"username":"admin"},"userAgent":"kubectl/1",
            "impersonatedUser":{"username":"mallory"},"requestURI":"/api/v1/namespaces/a/secrets",
            "objectRef":{"resource":"secrets","namespace":"a","name":"s","apiVersion":"v1"},
            "responseStatus":{"code":403,"message":"no"}}"#
            .replace('\n', "");
        let watch = r#"{"stage":"ResponseComplete","verb":"watch","user":{"username":"admin"}}"#;
        let calls = parse(&format!("{line}\n{watch}\n{}", &line[..40]));
        let expected = Call {
            user: "admin".to_owned(),
            impersonated: Some("mallory".to_owned()),
            verb: "create".to_owned(),
            group: String::new(),
            resource: "secrets".to_owned(),
            subresource: String::new(),
            namespace: "a".to_owned(),
            name: "s".to_owned(),
            path: "/api/v1/namespaces/a/secrets".to_owned(),
            user_agent: "kubectl/1".to_owned(),
            code: 403,
            message: "no".to_owned(),
        };
        assert_eq!(calls, [expected]);
    }
}
