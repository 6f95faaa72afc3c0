//! Which processes may use the socket, by their ancestors.

use std::time::Duration;

use crate::control::server::descends_from_run;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A process that outlived its parent, so that it does not descend from this one; killed on drop.
struct Orphan(rustix::process::Pid);

impl Orphan {
    /// Runs a shell line, in which `$SLEEP` starts the process to examine.
    fn spawn(line: &str) -> Self {
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
        assert!(sympozium_testkit::wait_until(TIMEOUT, || file.exists()));
        let pid = std::fs::read_to_string(file).unwrap();
        Self(rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap())
    }

    fn descends_from_run(&self) -> bool {
        descends_from_run(self.0.as_raw_pid())
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        // Its process group, which `setsid` created, with the shells that wait for it.
        let group = rustix::process::getpgid(Some(self.0)).unwrap();
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
    }
}

#[test]
fn processes_of_another_run_are_refused() {
    let stage = sympozium_exec::stage::PROCESS_NAME.to_str().unwrap();
    let stage = format!("printf %s {stage} > /proc/$$/comm");
    for (line, is_below) in [
        (r#"eval "$SLEEP""#.to_owned(), false),
        (format!(r#"{stage}; eval "$SLEEP""#), true),
        // However many processes are in between.
        (format!(r#"{stage}; sh -c 'sh -c "$SLEEP"; :'; :"#), true),
        // Their names change nothing.
        (format!(r#"{stage}; sh -c 'printf ") S 1 (" > /proc/$$/comm; eval "$SLEEP"'; :"#), true),
        (r#"printf ") S 1 (" > /proc/$$/comm; eval "$SLEEP""#.to_owned(), false),
    ] {
        assert_eq!(Orphan::spawn(&line).descends_from_run(), is_below, "{line}");
    }
}
