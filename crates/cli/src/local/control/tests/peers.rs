//! Who is heard at the socket, by whom it descends from.

use std::time::Duration;

use super::super::server::is_below_a_run;

const PATIENCE: Duration = Duration::from_secs(60);

/// A process that outlived its parent, so that it is not below this one; ended when dropped.
struct Orphan(rustix::process::Pid);

impl Orphan {
    /// Runs a shell line, in which `$SLEEP` is a line that starts the process that is asked about.
    fn of(line: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let status = sympozium_testkit::command("sh")
            .args(["-c", r#"setsid sh -c "$LINE" > /dev/null 2>&1 &"#])
            .env("LINE", line)
            .env("SLEEP", r#"sleep 600 & echo $! > "$FILE.new" && mv "$FILE.new" "$FILE"; wait"#)
            .env("FILE", &file)
            .status()
            .unwrap();
        assert!(status.success());
        assert!(sympozium_testkit::wait_until(PATIENCE, || file.exists()));
        let pid = std::fs::read_to_string(file).unwrap();
        Self(rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap())
    }

    fn is_below_a_run(&self) -> bool {
        is_below_a_run(self.0.as_raw_pid())
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        // Its group, which `setsid` has made, and so those that wait for it.
        let group = rustix::process::getpgid(Some(self.0)).unwrap();
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
    }
}

#[test]
fn who_descends_from_another_run_is_not_heard() {
    let stage = sympozium_exec::stage::PROCESS_NAME.to_str().unwrap();
    let stage = format!("printf %s {stage} > /proc/$$/comm");
    for (line, is_below) in [
        (r#"eval "$SLEEP""#.to_owned(), false),
        (format!(r#"{stage}; eval "$SLEEP""#), true),
        // However many are in between.
        (format!(r#"{stage}; sh -c 'sh -c "$SLEEP"; :'; :"#), true),
        // What those call themselves changes nothing.
        (format!(r#"{stage}; sh -c 'printf ") S 1 (" > /proc/$$/comm; eval "$SLEEP"'; :"#), true),
        (r#"printf ") S 1 (" > /proc/$$/comm; eval "$SLEEP""#.to_owned(), false),
    ] {
        assert_eq!(Orphan::of(&line).is_below_a_run(), is_below, "{line}");
    }
}
