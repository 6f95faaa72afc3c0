//! One request, one result: what a case is, and how all of them are driven.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::cases::{SECRET, TIMEOUT, cases, ended};
use super::volume::{Outcome, PATIENCE, Settings, Volume};
use crate::{growing, processes, wait_until};

/// A request and what must come of it. The name is the request's id as well.
pub struct Case {
    /// What it is about.
    pub name: &'static str,
    /// What is put into the volume.
    pub request: Request,
    /// What must come of it.
    pub expect: Expect,
}

/// What is put into the volume.
pub enum Request {
    /// An object that gets the case's id if it has none. `{W}` stands for the workspace, `{M}` for the marker.
    Object(Value),
    /// Any content.
    Bytes(Vec<u8>),
    /// Something that is no ordinary file, made at this path; the second is a directory outside the volume.
    Planted(fn(&Path, &Path)),
}

/// What must come of a request.
pub enum Expect {
    /// Exactly this.
    Result(Outcome),
    /// This exit code and output; standard error says something, in words that differ between shells.
    Complaint(i64, &'static str),
    /// Exit code 125, nothing run, a message with this word.
    Refusal(&'static str),
    /// Neither claim nor result.
    Silence,
}

/// Writes all requests into one volume at once, and looks at everything when the executor has ended.
///
/// # Panics
///
/// With all cases that came out wrong.
pub fn every_request_of_the_table_gets_its_result(start: &dyn Fn(&Volume) -> Command) {
    let volume = Volume::new(Settings::default());
    fs::write(volume.workspace.join("plain"), "no program").expect("a file");
    let mut executor = volume.start(start);
    let cases = cases();
    let mut asked: Vec<Asked<'_>> =
        cases.iter().map(|case| Asked { id: case.name.to_owned(), case, is_too_early: false }).collect();
    for it in &asked {
        put(&volume, it, None);
    }
    // For one after the other, so that a slow machine has time for each.
    let came = |it: &Asked<'_>| !it.is_answered() || wait_until(PATIENCE, || volume.result(&it.id).exists());
    let mut all_came = asked.iter().all(came);
    // Where the machine was too slow for a timeout, the same command has a longer one.
    for timeout in growing(Duration::from_secs(TIMEOUT)).skip(1) {
        let mut again = Vec::new();
        for it in &mut asked {
            if !it.is_too_early && it.ended_before_it_began(&volume) {
                it.is_too_early = true;
                let id = format!("{}-{}", it.case.name, timeout.as_secs());
                again.push(Asked { id, case: it.case, is_too_early: false });
            }
        }
        for it in &again {
            put(&volume, it, Some(timeout));
        }
        all_came = all_came && again.iter().all(came);
        asked.extend(again);
    }
    // Nothing of an answered command is alive, before a process could end it for another reason.
    let mut left = Vec::new();
    if all_came {
        // Whoever was killed may take a moment to vanish.
        wait_until(PATIENCE, || {
            left = processes::with_marker(&volume.marker);
            left.is_empty()
        });
    }
    volume.write_done();
    let code = executor.wait();

    let mut problems = Vec::new();
    if volume.log().contains(SECRET) {
        problems.push("the log has words of a command".to_owned());
    }
    if code != 0 {
        problems.push(format!("the executor ended with {code}"));
    }
    if !left.is_empty() {
        problems.push(format!("processes of commands live on: {left:?}"));
    }
    let mut expected = Vec::new();
    for it in &asked {
        expected.push(format!("exec-request-{}.json", it.id));
        if it.is_answered() {
            expected.push(format!("exec-result-{}.json", it.id));
            expected.push(format!(".claim-{}", it.id));
        }
        if !it.is_too_early {
            problems.extend(check(&volume, it));
        }
    }
    expected.sort();
    if volume.listing() != expected {
        problems.push(format!("files are {:?}, not {expected:?}", volume.listing()));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// A case under the id of its request.
struct Asked<'a> {
    id: String,
    case: &'a Case,
    /// It was asked again, with more time.
    is_too_early: bool,
}

impl Asked<'_> {
    fn is_answered(&self) -> bool {
        !matches!(self.case.expect, Expect::Silence)
    }

    /// Whether its timeout ended a command that has still to say its first word, and that is all that is wrong.
    fn ended_before_it_began(&self, volume: &Volume) -> bool {
        let Expect::Result(expected) = &self.case.expect else {
            return false;
        };
        let silent = Outcome { stdout: String::new(), ..expected.clone() };
        let content = fs::read(volume.result(&self.id)).unwrap_or_default();
        expected.timed_out && *expected != silent && Outcome::parse(&self.id, &content) == Ok(silent)
    }
}

/// Puts a request into the volume, with another timeout if there is one.
fn put(volume: &Volume, asked: &Asked<'_>, timeout: Option<Duration>) {
    let id = asked.id.as_str();
    match &asked.case.request {
        Request::Object(object) => {
            let mut object = object.clone();
            if object.get("id").is_none() {
                object["id"] = id.into();
            }
            if let Some(timeout) = timeout {
                object["timeout"] = timeout.as_secs().into();
            }
            volume.put(id, &object);
        }
        Request::Bytes(bytes) => volume.put_bytes(id, bytes),
        Request::Planted(plant) => {
            fs::create_dir_all(volume.tools()).expect("the directory for requests");
            plant(&volume.request(id), volume.outside());
        }
    }
}

fn check(volume: &Volume, asked: &Asked<'_>) -> Option<String> {
    let (name, case) = (asked.id.as_str(), asked.case);
    let ran = volume.workspace.join(format!("ran-{}", case.name)).exists();
    let content = fs::read(volume.result(name));
    let (Expect::Silence, Err(_)) = (&case.expect, &content) else {
        let outcome = match content {
            Ok(content) => match Outcome::parse(name, &content) {
                Ok(outcome) => outcome,
                Err(what) => return Some(format!("{name}: {what}")),
            },
            Err(_) => return Some(format!("{name}: no result")),
        };
        let is_right = match &case.expect {
            Expect::Result(expected) => {
                let stdout = volume.fill(&expected.stdout);
                outcome == Outcome { stdout, ..expected.clone() }
            }
            Expect::Complaint(code, stdout) => {
                !outcome.stderr.is_empty()
                    && outcome == Outcome { stderr: outcome.stderr.clone(), ..ended(*code, stdout, "") }
            }
            Expect::Refusal(word) => outcome.is_refusal(word) && !ran,
            Expect::Silence => false,
        };
        return (!is_right).then(|| format!("{name}: {}", brief(&outcome)));
    };
    let is_right = !ran && !volume.claim(name).exists();
    (!is_right).then(|| format!("{name}: claimed or run"))
}

/// An outcome that fits on a screen.
fn brief(outcome: &Outcome) -> String {
    let cut = |text: &str| {
        let start: String = text.chars().take(200).collect();
        format!("{start:?} ({} bytes)", text.len())
    };
    format!(
        "exit code {}, timed out {}, stdout {}, stderr {}",
        outcome.exit_code,
        outcome.timed_out,
        cut(&outcome.stdout),
        cut(&outcome.stderr)
    )
}
