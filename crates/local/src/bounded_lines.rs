//! Reads lines of any length in bounded memory.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Take};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, bail};

#[derive(Debug)]
pub struct BoundedLines {
    file: BufReader<Take<File>>,
    max_line_bytes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BoundedLine {
    /// The whole line, without its line break.
    Whole(Vec<u8>),
    /// The beginning of a line that is too long, and its full length in bytes.
    Truncated(Vec<u8>, u64),
    /// The last line, without a line break.
    Unterminated(Vec<u8>),
}

/// Opens a regular file of ours. Links are refused.
pub fn open_regular(path: &Path) -> anyhow::Result<File> {
    // O_NONBLOCK: opening a pipe must not wait for a writer.
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let found = file.metadata();
    if !found.is_ok_and(|found| found.is_file()) {
        bail!("{} is not a regular file", path.display());
    }
    Ok(file)
}

impl BoundedLines {
    /// Reads the lines in the first `bytes` bytes of a file, keeping at most `most` bytes of each.
    pub fn new(file: File, bytes: u64, most: usize) -> Self {
        Self { file: BufReader::new(file.take(bytes)), max_line_bytes: most }
    }

    pub fn next_line(&mut self) -> io::Result<Option<BoundedLine>> {
        let mut line = Vec::new();
        let most = self.max_line_bytes as u64 + 1;
        (&mut self.file).take(most).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(None);
        }
        if line.last() == Some(&b'\n') {
            line.pop();
            return Ok(Some(BoundedLine::Whole(line)));
        }
        if line.len() <= self.max_line_bytes {
            return Ok(Some(BoundedLine::Unterminated(line)));
        }
        let length = line.len() as u64 + self.skip_line()?;
        line.truncate(self.max_line_bytes);
        Ok(Some(BoundedLine::Truncated(line, length)))
    }

    /// Skips the rest of a line, and returns its length.
    fn skip_line(&mut self) -> io::Result<u64> {
        let mut skipped = 0;
        loop {
            let bytes = self.file.fill_buf()?;
            if bytes.is_empty() {
                return Ok(skipped);
            }
            let (rest, used) = match bytes.iter().position(|it| *it == b'\n') {
                Some(end) => (end, end + 1),
                None => (bytes.len(), bytes.len()),
            };
            let is_end = used > rest;
            skipped += rest as u64;
            self.file.consume(used);
            if is_end {
                return Ok(skipped);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str, bytes: u64) -> Vec<BoundedLine> {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("lines");
        std::fs::write(&path, text).unwrap();
        let mut lines = BoundedLines::new(open_regular(&path).unwrap(), bytes, 4);
        let mut found = Vec::new();
        while let Some(line) = lines.next_line().unwrap() {
            found.push(line);
        }
        found
    }

    fn whole(text: &str) -> BoundedLine {
        BoundedLine::Whole(text.into())
    }

    #[test]
    fn long_lines_are_truncated() {
        assert_eq!(lines("", 100), []);
        assert_eq!(lines("a\n\nabcd\n", 100), [whole("a"), whole(""), whole("abcd")]);
        let long = format!("abcde\nb\n{}\nend", "x".repeat(100_000));
        assert_eq!(
            lines(&long, 1 << 20),
            [
                BoundedLine::Truncated("abcd".into(), 5),
                whole("b"),
                BoundedLine::Truncated("xxxx".into(), 100_000),
                BoundedLine::Unterminated("end".into()),
            ]
        );
        assert_eq!(lines("a\nbcd\n", 4), [whole("a"), BoundedLine::Unterminated("bc".into())]);
    }

    #[test]
    fn only_regular_files_are_opened() {
        let temporary = tempfile::tempdir().unwrap();
        let link = temporary.path().join("link");
        std::os::unix::fs::symlink("/etc/hostname", &link).unwrap();
        let pipe = temporary.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
        for path in [link, pipe, temporary.path().to_owned()] {
            assert!(open_regular(&path).is_err(), "{}", path.display());
        }
    }
}
