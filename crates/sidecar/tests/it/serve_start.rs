//! When a server starts, and when it refuses to.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

use rustix::process::Signal;
use sympozium_testkit::{as_user, command, processes, skip, wait_until};

use crate::serve_http::Client;
use crate::serve_server::{LONG, Server, Setup, TOKENS, binary};

fn without_tokens() -> Setup {
    let mut setup = Setup::new();
    setup.variables.clear();
    setup
}

#[test]
fn without_a_token_it_refuses_to_start() {
    for setup in [without_tokens(), without_tokens().variable("SKILL_TOKEN", " ").variable("SKILL_TOKEN_FILE", "")] {
        let (status, stderr) = setup.start_and_fail();
        assert_eq!(status.code(), Some(1), "{stderr}");
        let expected = "error: no token is configured\nhint: set SKILL_TOKEN or SKILL_TOKEN_FILE; or pass --insecure to serve every program on this machine\n";
        assert!(stderr.ends_with(expected), "{stderr}");
    }
}

#[test]
fn insecure_is_for_this_machine_and_its_programs() {
    let server = without_tokens().with(&["--insecure"]).start();
    let mut client = server.client();
    assert_eq!(client.send("POST", "/skill/true", &[], b"").status, 200);
    let answer = client.send("POST", "/skill/true", &[("Origin", "http://evil.example")], b"");
    assert_eq!(answer.status, 403, "{answer:?}");

    let mut setup = without_tokens().with(&["--insecure"]);
    setup.arguments[1] = "0.0.0.0:0".to_owned();
    let (status, stderr) = setup.start_and_fail();
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("hint: listen on 127.0.0.1, or set SKILL_TOKEN\n"), "{stderr}");

    let (status, stderr) = Setup::new().with(&["--insecure"]).start_and_fail();
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("hint: leave out --insecure"), "{stderr}");
}

#[test]
fn a_token_file_that_cannot_be_used_is_an_error_that_does_not_repeat_it() {
    let setup = Setup::new();
    fs::remove_file(setup.tokens()).expect("it is there");
    let (status, stderr) = setup.start_and_fail();
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("the token file "), "{stderr}");
    fs::write(setup.tokens(), "my secret\n").expect("it can be written");
    fs::set_permissions(setup.tokens(), fs::Permissions::from_mode(0o444)).expect("it is ours");
    let (status, stderr) = setup.start_and_fail();
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("line 1: it contains a character"), "{stderr}");
    assert!(!stderr.contains("my secret"), "{stderr}");
}

#[test]
fn an_address_in_use_is_an_error_with_a_hint() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let address = taken.local_addr().expect("it has one").to_string();
    let mut setup = Setup::new();
    setup.arguments[1].clone_from(&address);
    let (status, stderr) = setup.start_and_fail();
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(&format!("error: cannot listen on {address}")), "{stderr}");
    assert!(stderr.contains("\nhint: "), "{stderr}");
}

#[test]
fn a_rotated_token_is_accepted_at_once_and_the_old_one_refused() {
    if !as_user::is_root() {
        skip!("skills of another owner need root");
    }
    // As the kubelet does it: a link to a directory of this version, replaced as a whole.
    let setup = Setup::new();
    let volume = setup.directory.path().join("volume");
    let put = |version: &str, tokens: &str| {
        let directory = volume.join(version);
        fs::create_dir_all(&directory).expect("it can be made");
        fs::write(directory.join("tokens"), tokens).expect("it can be written");
        chown(directory.join("tokens"), Some(as_user::ORDINARY), None).expect("we are root");
        for path in [&volume, &directory] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        }
        let next = volume.join("..data_tmp");
        symlink(version, &next).expect("it can be made");
        fs::rename(next, volume.join("..data")).expect("it can be renamed");
    };
    put("..1", "old-token-0123456789");
    symlink("..data/tokens", volume.join("tokens")).expect("it can be made");
    let mut setup = setup;
    setup.variables =
        vec![("SKILL_TOKEN_FILE".to_owned(), volume.join("tokens").to_str().expect("it is text").to_owned())];
    let server = setup.start();
    assert_eq!(server.call_as("old-token-0123456789", "true", "").status, 200);
    for name in ["tokens", "..data/tokens", "..1/tokens"] {
        let path = volume.join(name);
        let attempt = format!("read-file={}", path.display());
        let body = serde_json::json!({ "args": ["attempt", attempt] }).to_string();
        let answer = server.call_as("old-token-0123456789", "probe", &body).json();
        let findings = answer["stdout"].as_str().expect("it is text");
        let findings = sympozium_testkit::probe::Findings::parse(findings.as_bytes());
        findings.assert_refused([attempt.as_str()]);
    }
    put("..2", "new-token-0123456789");
    assert_eq!(server.call_as("new-token-0123456789", "true", "").status, 200);
    assert_eq!(server.call_as("old-token-0123456789", "true", "").status, 401);
    // The change is noticed without a request with an unknown token.
    put("..4", "other-token-0123456789");
    assert!(wait_until(LONG, || { server.call_as("new-token-0123456789", "true", "").status == 401 }));
    put("..3", "last-token-0123456789");
    server.signal(Signal::HUP);
    assert!(wait_until(LONG, || { server.call_as("last-token-0123456789", "true", "").status == 200 }));
}

#[test]
fn the_probe_address_has_health_and_metrics_and_nothing_else() {
    let mut server = Setup::new().with(&["--probe-listen", "127.0.0.1:0"]).start();
    let probes = server.listening("listening for probes");
    let mut client = Client::connect(probes);
    assert_eq!(client.send("GET", "/healthz", &[], b"").text(), "ok");
    assert!(client.send("GET", "/metrics", &[], b"").text().ends_with("# EOF\n"));
    let token = [("X-Skill-Token", TOKENS[0])];
    for (method, path) in [("POST", "/skill/true"), ("GET", "/skills"), ("GET", "/openapi.json")] {
        assert_eq!(client.send(method, path, &token, b"").status, 404, "{path}");
    }
}

#[test]
fn healthcheck_asks_over_http() {
    let server = Server::start();
    let address = server.address();
    let healthy = sympozium_sidecar::serve::healthcheck(address, LONG);
    assert!(healthy.is_ok());
    drop(server);
    assert!(sympozium_sidecar::serve::healthcheck(address, LONG).is_err());
}

#[test]
fn a_sandbox_that_is_gone_ends_the_server_with_an_error() {
    let mut server = Server::start();
    assert_eq!(server.call("true", "").status, 200);
    // The keeper of the sandbox, and the workers that it started.
    let keepers = processes::children_of(server.pid());
    let workers: Vec<_> = keepers.iter().flat_map(|&keeper| processes::children_of(keeper)).collect();
    // The workers first: without their keeper they end by themselves, and may be gone.
    for child in workers.into_iter().chain(keepers) {
        let pid = rustix::process::Pid::from_raw(child).expect("it is a pid");
        rustix::process::kill_process(pid, Signal::KILL).expect("it is our child's");
    }
    // The first finds a worker that is dead, the second that there will be no other.
    for status in [500, 503] {
        let answer = server.call("true", "");
        assert_eq!(answer.status, status, "{answer:?}");
    }
    assert_eq!(server.ended().and_then(|status| status.code()), Some(1));
    // Another thread reads the log, and may read the last line after the exit.
    let gone = "error: the sandbox of the skills is gone";
    let logged = wait_until(LONG, || server.log().concat().contains(gone));
    assert!(logged, "{}", server.log().concat());
}

#[test]
fn help_names_every_option() {
    let directory = crate::serve_server::directory();
    let help = command(binary(directory.path())).args(["serve", "--help"]).output();
    let help = String::from_utf8(help.expect("it runs").stdout).expect("it is text");
    for word in ["--listen", "--probe-listen", "--skills-dir", "--insecure", "X-Skill-Token", "SKILL_TOKEN_FILE"] {
        assert!(help.contains(word), "{word}: {help}");
    }
}
