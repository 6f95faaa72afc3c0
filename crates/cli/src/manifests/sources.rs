//! Which files, and their text.

mod text;
mod walk;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use super::limits::{MAX_FILE_BYTES, MAX_FILES, MAX_TOTAL_BYTES};
use super::problem::{Problem, printable};
use super::tree::Mark;
pub use text::decode;
use walk::Walk;

/// What `-` is called.
pub const STANDARD_INPUT: &str = "<stdin>";

/// A file to read, or why it cannot be.
#[derive(Debug)]
pub struct Source {
    /// As the user would name it, fit for a terminal.
    pub name: String,
    place: Result<Place, Problem>,
}

#[derive(Debug)]
enum Place {
    StandardInput,
    File(PathBuf),
}

/// The files behind `inputs`, in their order, directories walked in the order of names, each file once.
///
/// In directories, files called `*.yaml`, `*.yml` and `*.json` are taken, names that start with a dot left out, links
/// followed to files inside the directory only.
pub fn find(inputs: &[PathBuf]) -> Vec<Source> {
    let mut finder = Finder::default();
    for input in inputs {
        finder.add_input(input);
    }
    finder.sources
}

#[derive(Default)]
struct Finder {
    sources: Vec<Source>,
    seen: HashSet<PathBuf>,
    walk: Walk,
    is_full: bool,
}

impl Finder {
    fn add_input(&mut self, input: &Path) {
        if input == Path::new("-") {
            if self.seen.insert(input.to_owned()) {
                self.add(STANDARD_INPUT.to_owned(), Ok(Place::StandardInput));
            }
            return;
        }
        let name = shown(input);
        match fs::metadata(input) {
            Err(error) => self.add(name, Err(unreadable(&error))),
            Ok(metadata) if metadata.is_dir() => self.add_directory(input),
            Ok(metadata) if is_named_pipe(&metadata, input) => {
                self.add(name, Err(walk::not_a_file()));
            }
            Ok(_) => self.add_file(input),
        }
    }

    fn add_directory(&mut self, directory: &Path) {
        let before = self.sources.len();
        let found = self.walk.files_below(directory);
        let was_seen = found
            .iter()
            .any(|(path, problem)| problem.is_none() && self.is_seen(path));
        for (path, problem) in found {
            match problem {
                Some(problem) => self.add(shown(&path), Err(problem)),
                None => self.add_file(&path),
            }
        }
        if self.sources.len() == before && !was_seen {
            let problem = Problem::error("file", Mark::START, "no manifest in this directory")
                .hint("manifests are called *.yaml, *.yml or *.json");
            self.add(shown(directory), Err(problem));
        }
    }

    fn is_seen(&self, path: &Path) -> bool {
        fs::canonicalize(path).is_ok_and(|path| self.seen.contains(&path))
    }

    fn add_file(&mut self, path: &Path) {
        // What has no canonical form (a pipe of the shell's) is itself.
        let canonical = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if self.seen.insert(canonical) {
            self.add(shown(path), Ok(Place::File(path.to_owned())));
        }
    }

    fn add(&mut self, name: String, place: Result<Place, Problem>) {
        if self.sources.len() < MAX_FILES {
            self.sources.push(Source { name, place });
        } else if !self.is_full {
            self.is_full = true;
            let message =
                format!("more than {MAX_FILES} files; this one and the rest are not read");
            let problem = Problem::error("too-large", Mark::START, message)
                .hint("check the files in several calls");
            let place = Err(problem);
            self.sources.push(Source { name, place });
        }
    }
}

/// Nobody may ever write to a pipe that lies in a directory, and opening it would wait for that. The pipes of a shell,
/// as in `<(helm template …)`, have a writer and no place in any directory.
fn is_named_pipe(metadata: &fs::Metadata, path: &Path) -> bool {
    metadata.file_type().is_fifo() && fs::canonicalize(path).is_ok()
}

fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy())
}

/// Reads sources, and no more of them than is allowed.
#[derive(Debug)]
pub struct Reader {
    bytes_left: u64,
}

impl Default for Reader {
    fn default() -> Self {
        Self {
            bytes_left: MAX_TOTAL_BYTES,
        }
    }
}

impl Reader {
    /// The text of `source`, without a byte-order mark.
    pub fn read(&mut self, source: Source) -> Result<String, Problem> {
        let bytes = match source.place? {
            Place::StandardInput => self.read_bytes(io::stdin().lock())?,
            Place::File(path) => {
                let file = File::open(path).map_err(|error| unreadable(&error))?;
                // The size of a regular file is known before it is read.
                let metadata = file.metadata().map_err(|error| unreadable(&error))?;
                self.check_size(metadata.len())?;
                self.read_bytes(file)?
            }
        };
        decode(bytes)
    }

    fn read_bytes(&mut self, reader: impl Read) -> Result<Vec<u8>, Problem> {
        let mut bytes = Vec::new();
        // One more than allowed, so that too much shows.
        let most = MAX_FILE_BYTES.min(self.bytes_left) + 1;
        reader
            .take(most)
            .read_to_end(&mut bytes)
            .map_err(|error| unreadable(&error))?;
        let size = bytes.len() as u64;
        self.check_size(size)?;
        self.bytes_left -= size;
        Ok(bytes)
    }

    fn check_size(&self, size: u64) -> Result<(), Problem> {
        if size > MAX_FILE_BYTES {
            let message = format!("larger than {} MiB; it is not read", MAX_FILE_BYTES >> 20);
            return Err(Problem::error("too-large", Mark::START, message)
                .hint("split the file; Kubernetes does not take objects of that size"));
        }
        if size > self.bytes_left {
            let message = format!(
                "more than {} MiB in all; it is not read",
                MAX_TOTAL_BYTES >> 20
            );
            return Err(Problem::error("too-large", Mark::START, message)
                .hint("check the files in several calls"));
        }
        Ok(())
    }
}

fn unreadable(error: &io::Error) -> Problem {
    let (message, hint) = match error.kind() {
        io::ErrorKind::NotFound => (
            "no such file or directory".to_owned(),
            "check the path, or name the directory that has the manifests",
        ),
        io::ErrorKind::PermissionDenied => (
            "permission denied".to_owned(),
            "read it as a user who may: sympozium validate - < FILE",
        ),
        _ => (
            format!("cannot be read: {error}"),
            "try to read it with another program, such as cat",
        ),
    };
    Problem::error("file", Mark::START, message).hint(hint)
}
