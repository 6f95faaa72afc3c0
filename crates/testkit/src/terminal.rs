//! A terminal as a person has it in front of them: a pseudo-terminal whose other end is drawn, typed on and resized.
#![expect(unsafe_code, reason = "pseudo-terminals have no safe wrapper among the features that we build")]

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::num::NonZeroU16;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::{command, wait_until};

/// How long something may take to be displayed.
const PATIENCE: Duration = Duration::from_secs(180);

/// A terminal.
#[derive(Debug)]
pub struct Terminal {
    master: File,
    path: String,
    /// Held, so that what was drawn stays when the last program leaves.
    _slave: OwnedFd,
    screen: Arc<Mutex<Screen>>,
}

struct Screen {
    parser: vt100::Parser,
    raw: Vec<u8>,
}

impl std::fmt::Debug for Screen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.parser.screen().contents())
    }
}

impl Terminal {
    /// With so many rows and columns.
    pub fn new(rows: u16, columns: u16) -> io::Result<Self> {
        let master = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOCTTY | libc::O_CLOEXEC)
            .open("/dev/ptmx")?;
        let mut number: libc::c_uint = 0;
        let locked: libc::c_int = 0;
        // SAFETY: both calls read or write one integer that outlives them, of a descriptor that is open.
        let outcome = unsafe {
            match libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &raw const locked) {
                0 => libc::ioctl(master.as_raw_fd(), libc::TIOCGPTN, &raw mut number),
                failed => failed,
            }
        };
        if outcome != 0 {
            return Err(io::Error::last_os_error());
        }
        let path = format!("/dev/pts/{number}");
        let slave = open(&path, 0)?.into();
        let parser = vt100::Parser::new(size(rows), size(columns), 1_000);
        let raw = Vec::new();
        let screen = Arc::new(Mutex::new(Screen { parser, raw }));
        let mut reader = master.try_clone()?;
        let drawn = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Ends when the terminal is dropped and everybody who was on it has left.
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                let mut screen = drawn.lock();
                screen.parser.process(&bytes[..count]);
                screen.raw.extend_from_slice(&bytes[..count]);
            }
        });
        let terminal = Self { master, path, _slave: slave, screen };
        terminal.set_size(rows, columns)?;
        Ok(terminal)
    }

    /// The end that programs have, opened anew.
    pub fn open(&self) -> io::Result<OwnedFd> {
        Ok(open(&self.path, 0)?.into())
    }

    /// The same, for callers that must not block.
    pub fn open_nonblocking(&self) -> io::Result<OwnedFd> {
        Ok(open(&self.path, libc::O_NONBLOCK)?.into())
    }

    /// A program that has this terminal as its own, as a shell would start it in the foreground. All its streams are on it.
    pub fn command(&self, program: &str) -> io::Result<Command> {
        let mut started = command("setsid");
        // Whoever runs the tests may have turned signals off, and a program keeps what it is started with.
        started.args(["--ctty", "env", "--default-signal=HUP,INT,QUIT,TERM"]);
        started.arg(program);
        started.stdin(Stdio::from(self.open()?));
        started.stdout(Stdio::from(self.open()?));
        started.stderr(Stdio::from(self.open()?));
        started.env("TERM", "xterm-256color").env_remove("NO_COLOR");
        Ok(started)
    }

    /// Types.
    pub fn type_in(&self, text: &str) -> io::Result<()> {
        (&self.master).write_all(text.as_bytes())
    }

    /// Makes it another size. Whoever is in the foreground is told.
    pub fn resize(&self, rows: u16, columns: u16) -> io::Result<()> {
        self.screen.lock().parser.screen_mut().set_size(size(rows), size(columns));
        self.set_size(rows, columns)
    }

    fn set_size(&self, rows: u16, columns: u16) -> io::Result<()> {
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the call reads a structure that outlives it, of a descriptor that is open.
        match unsafe { libc::ioctl(self.master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// What is on the screen.
    pub fn screen(&self) -> String {
        self.screen.lock().parser.screen().contents()
    }

    /// The last row with something on it. A row, not a line: what was drawn for a wider terminal goes on in further rows,
    /// and they stay above whatever is drawn next.
    pub fn last_row(&self) -> String {
        let screen = self.screen.lock();
        let screen = screen.parser.screen();
        let (_, columns) = screen.size();
        let last = screen.rows(0, columns.get()).filter(|it| !it.trim().is_empty());
        last.last().unwrap_or_default()
    }

    /// Everything that was written, as it was.
    pub fn raw(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().raw).into_owned()
    }

    /// Waits until this is on the screen.
    ///
    /// # Panics
    ///
    /// When it does not come.
    pub fn wait_for(&self, text: &str) {
        let came = wait_until(PATIENCE, || self.screen().contains(text));
        assert!(came, "{text:?} did not come:\n{}", self.screen());
    }

    /// Waits until this was written, whether it is still on the screen or not.
    ///
    /// # Panics
    ///
    /// When it does not come.
    pub fn wait_for_raw(&self, text: &str) {
        let came = wait_until(PATIENCE, || self.raw().contains(text));
        assert!(came, "{text:?} did not come:\n{:?}", self.raw());
    }
}

fn open(path: &str, flags: libc::c_int) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY | flags).open(path)
}

/// A terminal has at least one row and one column.
fn size(count: u16) -> NonZeroU16 {
    NonZeroU16::new(count).unwrap_or(NonZeroU16::MIN)
}
