//! The program that pods of the smoke suite run: it tries one thing and says what came of it.
//!
//! Built static; uses nothing but the kernel, so it runs alone in an image, under runc and under gVisor.

use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;

/// A connection that a policy drops is never answered; this is when we give up.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);
/// How long to wait for another container of the pod.
const PARTNER_PATIENCE: Duration = Duration::from_secs(180);
const GREETING: &str = "hello from the other side";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["listen", port] => listen(port),
        ["connect", address] => connect(address),
        ["resolve", name] => resolve(name),
        ["serve-socket", path] => serve_socket(path),
        ["call-socket", path, word] => call_socket(path, word),
        ["relay-socket", path] => relay_socket(path),
        ["await-event", folder, name] => await_event(folder, name),
        _ => Err(io::Error::other(
            "usage: cluster-probe listen|connect|resolve|serve-socket|call-socket|relay-socket|await-event …",
        )),
    };
    let (text, code) = match outcome {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(error) => (format!("failed: {error}"), ExitCode::FAILURE),
    };
    let _ = writeln!(io::stdout(), "{text}");
    code
}

/// Greets everybody who connects, until killed.
fn listen(port: &str) -> io::Result<String> {
    let port: u16 = port.parse().map_err(io::Error::other)?;
    for connection in TcpListener::bind(("0.0.0.0", port))?.incoming() {
        // A caller who is gone already is none of our business.
        let _ = connection.and_then(|mut connection| writeln!(connection, "{GREETING}"));
    }
    Ok(String::new())
}

/// Connects to a host and port, and reads what the server says within a moment; servers that wait for us to speak say nothing.
fn connect(address: &str) -> io::Result<String> {
    let mut addresses = address.to_socket_addrs()?;
    let address = addresses.next().ok_or(io::ErrorKind::NotFound)?;
    let mut connection = TcpStream::connect_timeout(&address, CONNECT_PATIENCE)?;
    connection.set_read_timeout(Some(Duration::from_millis(500)))?;
    let mut buffer = [0; 256];
    let read = connection.read(&mut buffer).unwrap_or(0);
    Ok(format!("connected: {}", String::from_utf8_lossy(&buffer[..read]).trim()))
}

/// The addresses of a name, as programs look them up: by `/etc/resolv.conf`, search list and all.
fn resolve(name: &str) -> io::Result<String> {
    let mut addresses: Vec<String> = (name, 0).to_socket_addrs()?.map(|it| it.ip().to_string()).collect();
    addresses.sort();
    addresses.dedup();
    Ok(addresses.join(" "))
}

/// Answers one call on a Unix socket with what it said.
fn serve_socket(path: &str) -> io::Result<String> {
    let (connection, _) = UnixListener::bind(path)?.accept()?;
    let mut line = String::new();
    BufReader::new(&connection).read_line(&mut line)?;
    writeln!(&connection, "echo {}", line.trim())?;
    Ok(format!("served {}", line.trim()))
}

/// Calls a Unix socket that another container serves, once it is there.
fn call_socket(path: &str, word: &str) -> io::Result<String> {
    let connection = connect_socket(path)?;
    writeln!(&connection, "{word}")?;
    let mut line = String::new();
    BufReader::new(&connection).read_line(&mut line)?;
    Ok(line.trim().to_owned())
}

fn connect_socket(path: &str) -> io::Result<UnixStream> {
    let deadline = Instant::now() + PARTNER_PATIENCE;
    loop {
        match UnixStream::connect(path) {
            Ok(connection) => return Ok(connection),
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Connects its standard streams to a Unix socket, so that a test can speak for a container. Ends with either side.
fn relay_socket(path: &str) -> io::Result<String> {
    let connection = connect_socket(path)?;
    let mut writer = connection.try_clone()?;
    std::thread::spawn(move || {
        let _ = pass_on(&mut io::stdin().lock(), &mut writer);
        let _ = writer.shutdown(Shutdown::Both);
    });
    let mut reader = connection;
    pass_on(&mut reader, &mut io::stdout().lock())?;
    Ok(String::new())
}

/// Each piece as soon as it is there: the other side waits for it.
fn pass_on(from: &mut impl io::Read, to: &mut impl io::Write) -> io::Result<()> {
    let mut buffer = [0; 16 * 1024];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            read => to.write_all(&buffer[..read])?,
        }
        to.flush()?;
    }
}

/// Waits for the event of a file that another container creates. Looking is not allowed: only the event counts.
fn await_event(folder: &str, name: &str) -> io::Result<String> {
    let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    inotify::add_watch(&watch, folder, inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO)?;
    // The partner begins when it sees this.
    std::fs::write(format!("{folder}/watching"), "")?;
    let deadline = Instant::now() + PARTNER_PATIENCE;
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(&watch, &mut buffer);
    while Instant::now() < deadline {
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        poll(&mut [PollFd::new(&watch, PollFlags::IN)], Some(&second))?;
        loop {
            match reader.next() {
                Ok(event) if event.file_name().is_some_and(|file| file.to_bytes() == name.as_bytes()) => {
                    return Ok(format!("event for {name}"));
                }
                Ok(_) => {}
                Err(rustix::io::Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
    Err(io::Error::other(format!("no event for {name}")))
}
