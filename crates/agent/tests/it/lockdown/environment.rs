//! The environment of a restricted process, and the processes themselves.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::io::Errno;
use serde_json::{Value, json};
use sympozium_testkit::{as_user, probe, static_build};
use tempfile::TempDir;

pub struct Environment {
    pub directory: TempDir,
    pub tcp: TcpListener,
    pub abstract_name: String,
    _sockets: [UnixListener; 2],
}

impl Environment {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        for name in [
            "workspace",
            "skills",
            "input",
            "door",
            "outside",
            "image",
            "image/etc",
            "image/run",
            "image/var",
            "image/var/cache",
            "image/var/run",
        ] {
            fs::create_dir(at(name)).expect("a directory");
        }
        for name in FILES {
            fs::write(at(name), "x").expect("a file");
        }
        symlink("../outside", at("image/out")).expect("a link");
        symlink("run", at("image/var/lock")).expect("a link");
        let abstract_name = format!("sympozium-test-{}", directory.path().display());
        let address = SocketAddr::from_abstract_name(&abstract_name).expect("a name");
        let sockets = [
            UnixListener::bind_addr(&address).expect("a socket"),
            UnixListener::bind(at("door/socket")).expect("a socket"),
        ];
        make_accessible(directory.path());
        Self { tcp: TcpListener::bind("127.0.0.1:0").expect("a port"), abstract_name, _sockets: sockets, directory }
    }

    pub fn at(&self, name: &str) -> String {
        let path = self.directory.path().join(name);
        path.to_str().expect("UTF-8").to_owned()
    }

    /// The roots of the process.
    pub fn document(&self) -> Value {
        json!({
            "roots": [
                { "path": self.at("workspace"), "writable": true },
                { "path": self.at("skills"), "writable": false },
                { "path": readable_probe(&self.directory), "writable": false },
            ],
            "image": self.at("image"),
        })
    }

    /// The attempts with their expected errno.
    pub fn expected(&self) -> BTreeMap<String, i32> {
        let address = self.tcp.local_addr().expect("an address");
        let own = std::process::id();
        let at = |name: &str| self.at(name);
        let (workspace, skills, outside) = (at("workspace"), at("skills"), at("outside"));
        let refused_calls = [
            format!("tcp={address}"),
            "udp=127.0.0.1:0".to_owned(),
            "udp=[::1]:0".to_owned(),
            format!("abstract={}", self.abstract_name),
            format!("signal={own}"),
            "signal=1".to_owned(),
            format!("chroot={workspace}"),
            format!("mount={workspace}>{skills}"),
            "execute=/bin/sh".to_owned(),
            format!("execute={}", readable_probe(&self.directory)),
            format!("device={workspace}/device"),
        ];
        let sockets = SOCKETS.iter().map(|kind| format!("socket={kind}"));
        let pairs = ["2/1", "2/2", "10/1"].map(|kind| format!("socketpair={kind}"));
        let refused_calls = refused_calls.into_iter().chain(sockets).chain(pairs);
        let refused_paths = [
            "read=/etc/passwd".to_owned(),
            "read=/proc/self/environ".to_owned(),
            "read=/proc/self/status".to_owned(),
            "read=/proc/1/environ".to_owned(),
            format!("read=/proc/{own}/cmdline"),
            "read=/proc/sys/kernel/hostname".to_owned(),
            "list=/".to_owned(),
            "list=/dev".to_owned(),
            "list=/etc".to_owned(),
            "list=/proc".to_owned(),
            "list=/root".to_owned(),
            "list=/run".to_owned(),
            "list=/sys".to_owned(),
            "list=/tmp".to_owned(),
            format!("read={}", at("input/agent.json")),
            format!("list={}", at("input")),
            format!("list={}", at("door")),
            format!("list={outside}"),
            format!("list={}", at("image/out")),
            format!("read={outside}/file"),
            format!("append={outside}/file"),
            format!("create={outside}/new"),
            format!("make-directory={outside}/new"),
            format!("remove={outside}/file"),
            format!("rename={outside}/file>{workspace}/taken"),
            format!("rename={workspace}/file>{outside}/given"),
            format!("hard-link={workspace}/file>{outside}/given"),
            format!("read-by-link={outside}/file>{workspace}/link"),
            format!("read-by-link=../outside/file>{workspace}/link"),
            format!("read={workspace}/../outside/file"),
            // Read-only, whatever the mount allows.
            format!("append={skills}/file"),
            format!("create={skills}/new"),
            format!("remove={skills}/file"),
            format!("append={}", at("image/etc/file")),
            // In the image's tree, but not part of the image.
            format!("list={}", at("image")),
            format!("list={}", at("image/var")),
            format!("read={}", at("image/run/token")),
            format!("read={}", at("image/var/run/token")),
            format!("list={}", at("image/var/lock")),
        ];
        // As between file systems.
        let refused_links =
            [format!("hard-link={outside}/file>{workspace}/kept"), format!("hard-link={skills}/file>{workspace}/kept")];
        let possible = [
            "socket=1/1".to_owned(),
            "socketpair=1/1".to_owned(),
            format!("unix={}", at("door/socket")),
            format!("read={workspace}/file"),
            format!("append={workspace}/file"),
            format!("create={workspace}/new"),
            format!("make-directory={workspace}/new"),
            format!("hard-link={workspace}/file>{workspace}/other"),
            format!("rename={workspace}/file>{workspace}/other"),
            format!("read-by-link={workspace}/file>{workspace}/link"),
            format!("list={workspace}"),
            format!("read={skills}/file"),
            format!("list={skills}"),
            format!("read={}", at("image/etc/file")),
            format!("read={}", at("image/var/cache/file")),
            "read=/dev/urandom".to_owned(),
            "append=/dev/null".to_owned(),
        ];
        let with_errno = |number: i32| move |attempt| (attempt, number);
        let errno = |errno: Errno| with_errno(errno.raw_os_error());
        let expected = refused_calls.map(errno(Errno::PERM));
        expected
            .chain(refused_paths.into_iter().map(errno(Errno::ACCESS)))
            .chain(refused_links.into_iter().map(errno(Errno::XDEV)))
            .chain(possible.into_iter().map(with_errno(0)))
            .collect()
    }
}

pub const FILES: [&str; 8] = [
    "workspace/file",
    "skills/file",
    "input/agent.json",
    "outside/file",
    "image/etc/file",
    "image/run/token",
    "image/var/cache/file",
    "image/var/run/token",
];

/// Family and type of sockets other than Unix: TCP, UDP, raw over both; netlink, packet, AF_ALG, vsock, Bluetooth, CAN.
const SOCKETS: [&str; 13] =
    ["2/1", "2/2", "2/3", "10/1", "10/2", "10/3", "16/3", "17/2", "17/3", "38/5", "40/1", "31/3", "29/3"];

/// So that ownership refuses nothing.
pub fn make_accessible(directory: &Path) {
    let all = Permissions::from_mode(0o777);
    fs::set_permissions(directory, all.clone()).expect("permissions");
    for entry in fs::read_dir(directory).expect("a directory") {
        let entry = entry.expect("an entry");
        // The gateway's, which may have been created by now: it stores nothing in a directory that others can write.
        if entry.file_name() == "records" {
            continue;
        }
        let kind = entry.file_type().expect("a type");
        if kind.is_dir() {
            make_accessible(&entry.path());
        } else if !kind.is_symlink() {
            fs::set_permissions(entry.path(), all.clone()).expect("permissions");
        }
    }
}

/// A copy of the probe that every user can execute.
pub fn readable_probe(directory: &TempDir) -> String {
    let path = as_user::readable_copy(probe::path(), directory.path()).expect("the probe");
    path.to_str().expect("UTF-8").to_owned()
}

/// The program, as this user or as the user of the tests.
pub fn attempts_command(uid: Option<u32>, directory: &Path) -> Command {
    let program = static_build::program("agent-attempts").expect("the program is built");
    let program = as_user::readable_copy(&program, directory).expect("the program");
    match uid {
        Some(uid) => as_user::command(uid, program),
        None => sympozium_testkit::command(program),
    }
}

/// A process that reported its attempts and waits.
pub struct RestrictedProcess {
    child: Child,
    pub report: Value,
    _stdin: ChildStdin,
}

impl RestrictedProcess {
    pub fn new(uid: Option<u32>, environment: &Environment, document: &Value) -> Self {
        let mut child = attempts_command(uid, environment.directory.path())
            .env("SECRET", "of the agent")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        writeln!(stdin, "{document}").expect("it reads");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let report = serde_json::from_str(&line).expect("JSON");
        Self { child, report, _stdin: stdin }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for RestrictedProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
