//! One request, one result: what a case is, and how all of them are driven.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::cases::{SECRET, cases, ended};
use super::volume::{Outcome, PATIENCE, Settings, Volume};
use crate::{processes, wait_until};

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
    for case in &cases {
        put(&volume, case);
    }
    let answered = |case: &&Case| !matches!(case.expect, Expect::Silence);
    // For one after the other, so that a slow machine has time for each.
    let all_came = cases.iter().filter(answered).all(|case| wait_until(PATIENCE, || volume.result(case.name).exists()));
    // Nothing of an answered command is alive, before anybody could end it for another reason.
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
    for case in &cases {
        expected.push(format!("exec-request-{}.json", case.name));
        if answered(&case) {
            expected.push(format!("exec-result-{}.json", case.name));
            expected.push(format!(".claim-{}", case.name));
        }
        problems.extend(check(&volume, case));
    }
    expected.sort();
    if volume.listing() != expected {
        problems.push(format!("files are {:?}, not {expected:?}", volume.listing()));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn put(volume: &Volume, case: &Case) {
    match &case.request {
        Request::Object(object) => {
            let mut object = object.clone();
            if object.get("id").is_none() {
                object["id"] = case.name.into();
            }
            volume.put(case.name, &object);
        }
        Request::Bytes(bytes) => volume.put_bytes(case.name, bytes),
        Request::Planted(plant) => {
            fs::create_dir_all(volume.tools()).expect("the directory for requests");
            plant(&volume.request(case.name), volume.outside());
        }
    }
}

fn check(volume: &Volume, case: &Case) -> Option<String> {
    let name = case.name;
    let ran = volume.workspace.join(format!("ran-{name}")).exists();
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
