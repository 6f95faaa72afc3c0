//! Reads the value of a secret from a file, a variable, a pipe or a terminal.

use std::fs::OpenOptions;
use std::io::{self, IsTerminal as _, Read, Write as _};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use rustix::fs::OFlags;
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use super::arguments::SetArguments;
use crate::failure::Failure;
use sympozium_local::secrets::MAX_BYTES;

/// Keys that cancel the input, end it, or delete the last character.
const INTERRUPT: u8 = 0x03;
const END_OF_INPUT: u8 = 0x04;
const BACKSPACE: u8 = 0x08;
const DELETE: u8 = 0x7f;

pub fn read(arguments: &SetArguments) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let (read, hint) = match (&arguments.from_file, &arguments.from_env) {
        (Some(path), _) => (from_file(path), "--from-file needs a regular file that you can read"),
        (None, Some(variable)) => (from_env(variable), "export the variable, or omit --from-env"),
        (None, None) if io::stdin().is_terminal() => (
            read_terminal(io::stdin().as_fd(), &arguments.key),
            "type the value again, or use --from-file for a value with several lines",
        ),
        (None, None) => {
            (read_bounded(io::stdin().lock()).map(trim_line_break), "check that the value is written to standard input")
        }
    };
    let value = read.and_then(|value| match value.is_empty() {
        true => Err(anyhow!("the value is empty")),
        false => Ok(value),
    });
    value.map_err(|error| Failure::new(error, hint))
}

fn from_file(path: &Path) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let context = || format!("cannot read {}", path.display());
    // Opening a pipe in a directory would block until there is a writer.
    let opened = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path);
    let file = opened.with_context(context)?;
    if !file.metadata().with_context(context)?.is_file() {
        bail!("{} is not a regular file", path.display());
    }
    read_bounded(file).with_context(context)
}

fn from_env(variable: &str) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let value = std::env::var_os(variable).context("the variable is not set")?;
    read_bounded(Zeroizing::new(value.into_vec()).as_slice())
}

fn read_bounded(stream: impl Read) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(Vec::new());
    let read = stream.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes);
    read.context("cannot read the value")?;
    match bytes.len() > MAX_BYTES {
        true => bail!("the value has more than {MAX_BYTES} bytes"),
        false => Ok(bytes),
    }
}

/// Programs end their output with a line break, which is not part of the value.
fn trim_line_break(mut value: Zeroizing<Vec<u8>>) -> Zeroizing<Vec<u8>> {
    if value.ends_with(b"\n") {
        value.pop();
        if value.ends_with(b"\r") {
            value.pop();
        }
    }
    value
}

/// Reads one line from a terminal without echo.
fn read_terminal(terminal: impl AsFd + Copy, key: &str) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let quiet = EchoGuard::new(terminal).context("cannot disable the echo of the terminal")?;
    let mut stderr = io::stderr().lock();
    // A user who cannot see the prompt can still type.
    let _ = write!(stderr, "Value of {key} (not shown): ");
    let _ = stderr.flush();
    let value = read_line(|byte| Ok(rustix::io::read(terminal, std::slice::from_mut(byte))?));
    drop(quiet);
    let _ = writeln!(stderr);
    value
}

/// Reads a line byte by byte. The terminal leaves deletion and interrupts to us, so that it is never left without echo.
fn read_line(mut next: impl FnMut(&mut u8) -> anyhow::Result<usize>) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let mut value = Zeroizing::new(Vec::with_capacity(256));
    loop {
        let mut byte = 0;
        if next(&mut byte).context("cannot read the value")? == 0 {
            return Ok(value);
        }
        match byte {
            b'\r' | b'\n' => return Ok(value),
            END_OF_INPUT if value.is_empty() => return Ok(value),
            END_OF_INPUT => {}
            INTERRUPT => bail!("interrupted; the Secret is unchanged"),
            BACKSPACE | DELETE => {
                // A character may have several bytes.
                while value.pop().is_some_and(|it| it & 0xc0 == 0x80) {}
            }
            _ if value.len() == MAX_BYTES => bail!("the value has more than {MAX_BYTES} bytes"),
            byte => value.push(byte),
        }
    }
}

/// Disables the terminal's echo while it exists.
struct EchoGuard<T: AsFd> {
    terminal: T,
    saved: Termios,
}

impl<T: AsFd> EchoGuard<T> {
    fn new(terminal: T) -> io::Result<Self> {
        let before = tcgetattr(&terminal)?;
        let mut quiet = before.clone();
        let modes = LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG | LocalModes::IEXTEN;
        quiet.local_modes.remove(modes);
        quiet.special_codes[SpecialCodeIndex::VMIN] = 1;
        quiet.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(&terminal, OptionalActions::Flush, &quiet)?;
        Ok(Self { terminal, saved: before })
    }
}

impl<T: AsFd> Drop for EchoGuard<T> {
    fn drop(&mut self) {
        // Nothing else can be done for a terminal that is gone.
        let _ = tcsetattr(&self.terminal, OptionalActions::Flush, &self.saved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typing(text: &[u8]) -> Result<Vec<u8>, String> {
        let mut rest = text.iter();
        let read = read_line(|byte| match rest.next() {
            Some(next) => {
                *byte = *next;
                Ok(1)
            }
            None => Ok(0),
        });
        read.map(|it| it.to_vec()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_typed_line_can_be_corrected_and_cancelled() {
        for (typed, value) in [
            (&b"secret\rrest"[..], &b"secret"[..]),
            (b"secret\n", b"secret"),
            (b"secret", b"secret"),
            (b"sex\x7fcret\r", b"secret"),
            ("a\u{e9}\u{1f980}\x08\x08b\r".as_bytes(), b"ab"),
            (b"\x7f\x7fa\r", b"a"),
            (b"\x04more\r", b""),
            (b"a\x04b\r", b"ab"),
        ] {
            assert_eq!(typing(typed), Ok(value.to_vec()), "{typed:?}");
        }
        let interrupted = Err("interrupted; the Secret is unchanged".to_owned());
        assert_eq!(typing(b"sec\x03"), interrupted);
        let long = vec![b'x'; MAX_BYTES + 1];
        let too_long = Err("the value has more than 1048576 bytes".to_owned());
        assert_eq!(typing(&long), too_long);
        assert_eq!(typing(&long[1..]), Ok(long[1..].to_vec()));
    }

    #[test]
    fn one_trailing_line_break_is_removed() {
        for (read, value) in [
            (&b"a\n"[..], &b"a"[..]),
            (b"a\r\n", b"a"),
            (b"a\n\n", b"a\n"),
            (b"a\r", b"a\r"),
            (b"\n", b""),
            (b"a", b"a"),
        ] {
            let trimmed = trim_line_break(Zeroizing::new(read.to_vec()));
            assert_eq!(*trimmed, value, "{read:?}");
        }
    }
}
