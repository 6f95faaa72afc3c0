//! Finds the files of the inputs, and reads their text.

mod text;
mod walk;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use sympozium_api::text::printable;

use super::agent_skill::{self, directory};
use super::invisible_chars;
use super::limits::{MAX_DIRECTORY_ENTRIES, MAX_FILE_BYTES, MAX_FILES, MAX_TOTAL_BYTES};
use super::load::{Budget, LoadedFile, load};
use super::problem::Problem;
use super::tree::Mark;
pub use text::decode;
use walk::{EntryKind, Walker};

/// The name of `-` in messages.
pub const STANDARD_INPUT: &str = "<stdin>";

/// A file to read, or why it cannot be read.
#[derive(Debug)]
pub struct Source {
    /// As the user would name it, safe for a terminal.
    pub name: String,
    location: Result<Location, Problem>,
}

#[derive(Debug)]
enum Location {
    StandardInput,
    File(PathBuf),
    /// The directory of a skill, below a directory that was named, and reached from there without following links.
    Skill {
        root: PathBuf,
        below: PathBuf,
    },
}

/// The documents of `inputs`, file by file, each with the file's name and its problems. Every command that takes
/// manifests reads them this way.
pub fn load_documents<'a>(
    inputs: &[PathBuf],
    reader: &'a mut Reader,
    budget: &'a mut Budget,
) -> impl Iterator<Item = (String, LoadedFile)> + 'a {
    let sources = find_sources(inputs).into_iter();
    sources.map(move |source| (source.name.clone(), reader.load(source, budget)))
}

/// The files of `inputs`, in their order, directories in the order of names, each file once.
///
/// In directories, files called `*.yaml`, `*.yml` and `*.json` are included, names that start with a dot are not, and
/// links are followed only to files inside the directory. A directory that has `SKILL.md` is a skill, whatever else is
/// in it.
fn find_sources(inputs: &[PathBuf]) -> Vec<Source> {
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
    walk: Walker,
    is_full: bool,
}

impl Finder {
    fn add_input(&mut self, input: &Path) {
        if input == Path::new("-") {
            if self.seen.insert(input.to_owned()) {
                self.add(STANDARD_INPUT.to_owned(), Ok(Location::StandardInput));
            }
            return;
        }
        let name = display_path(input);
        match fs::metadata(input) {
            Err(error) => self.add(name, Err(read_problem(&error))),
            Ok(metadata) if metadata.is_dir() => self.add_directory(input),
            Ok(metadata) if is_named_pipe(&metadata, input) => {
                self.add(name, Err(walk::not_a_file()));
            }
            Ok(_) if input.file_name() == Some(agent_skill::FILE_NAME.as_ref()) => {
                let parent = input.parent().filter(|parent| !parent.as_os_str().is_empty());
                self.add_skill(parent.unwrap_or(Path::new(".")), Path::new(""), name);
            }
            Ok(_) => self.add_file(input),
        }
    }

    fn add_directory(&mut self, directory: &Path) {
        let before = self.sources.len();
        let found = self.walk.find_files(directory);
        let was_seen = found.iter().any(|(path, what)| what.is_ok() && self.is_seen(path));
        for (path, what) in found {
            match what {
                Err(problem) => self.add(display_path(&path), Err(problem)),
                Ok(EntryKind::Manifest) => self.add_file(&path),
                Ok(EntryKind::Skill) => {
                    let below = path.strip_prefix(directory).unwrap_or(Path::new(""));
                    let name = display_path(&path.join(agent_skill::FILE_NAME));
                    self.add_skill(directory, below, name);
                }
            }
        }
        if self.sources.len() == before && !was_seen {
            let problem = Problem::error("file", Mark::START, "the directory contains no manifest")
                .with_hint("manifests are files *.yaml, *.yml and *.json; a skill has a file SKILL.md");
            self.add(display_path(directory), Err(problem));
        }
    }

    fn is_seen(&self, path: &Path) -> bool {
        fs::canonicalize(path).is_ok_and(|path| self.seen.contains(&path))
    }

    fn add_file(&mut self, path: &Path) {
        // A path without a canonical form, such as a pipe of the shell, is used as it is.
        let canonical = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if self.seen.insert(canonical) {
            self.add(display_path(path), Ok(Location::File(path.to_owned())));
        }
    }

    fn add_skill(&mut self, root: &Path, below: &Path, name: String) {
        let path = root.join(below);
        if self.seen.insert(fs::canonicalize(&path).unwrap_or(path)) {
            let (root, below) = (root.to_owned(), below.to_owned());
            self.add(name, Ok(Location::Skill { root, below }));
        }
    }

    fn add(&mut self, name: String, location: Result<Location, Problem>) {
        if self.sources.len() < MAX_FILES {
            self.sources.push(Source { name, location });
        } else if !self.is_full {
            self.is_full = true;
            let message = format!("more than {MAX_FILES} files; this one and all others are not read");
            let problem = Problem::error("too-large", Mark::START, message).with_hint("check fewer files at a time");
            self.sources.push(Source { name, location: Err(problem) });
        }
    }
}

/// A pipe in a directory may never get a writer, and opening it would block. The pipes of a shell, as in `<(helm
/// template …)`, have a writer and are in no directory.
fn is_named_pipe(metadata: &fs::Metadata, path: &Path) -> bool {
    metadata.file_type().is_fifo() && fs::canonicalize(path).is_ok()
}

/// A path, safe for a terminal.
pub fn display_path(path: &Path) -> String {
    printable(path.to_string_lossy()).into_owned()
}

/// The documents of a text, with warnings about invisible characters.
fn load_text(text: &str, budget: &mut Budget) -> LoadedFile {
    let mut loaded = load(text, budget);
    for warning in invisible_chars::warnings(text) {
        loaded.problems.add(warning);
    }
    loaded
}

/// Reads sources, within bounds over all of them.
#[derive(Debug)]
pub struct Reader {
    allowance: directory::Allowance,
}

impl Default for Reader {
    fn default() -> Self {
        let left = directory::Allowance { bytes: MAX_TOTAL_BYTES, entries: MAX_DIRECTORY_ENTRIES };
        Self { allowance: left }
    }
}

impl Reader {
    fn load(&mut self, source: Source, budget: &mut Budget) -> LoadedFile {
        let loaded = source.location.and_then(|place| match place {
            Location::Skill { root, below } => self.load_skill(&root, &below, budget),
            Location::StandardInput => {
                let bytes = self.read_bytes(io::stdin().lock())?;
                Ok(load_text(&decode(bytes)?, budget))
            }
            Location::File(path) => Ok(load_text(&self.read_file(&path)?, budget)),
        });
        loaded.unwrap_or_else(LoadedFile::from_problem)
    }

    fn load_skill(&mut self, root: &Path, below: &Path, budget: &mut Budget) -> Result<LoadedFile, Problem> {
        let mut directory = directory::open(root).map_err(|error| directory::read_problem(&error))?;
        if below != Path::new("") {
            directory = directory::open_below(&directory, below).map_err(|error| directory::read_problem(&error))?;
        }
        let name = directory_name(&root.join(below));
        Ok(agent_skill::load(&directory, name, &mut self.allowance, budget))
    }

    /// The text of a file, without a byte-order mark.
    fn read_file(&mut self, path: &Path) -> Result<String, Problem> {
        let file = File::open(path).map_err(|error| read_problem(&error))?;
        // The size of a regular file is known before it is read.
        let metadata = file.metadata().map_err(|error| read_problem(&error))?;
        self.check_size(metadata.len())?;
        decode(self.read_bytes(file)?)
    }

    fn read_bytes(&mut self, reader: impl Read) -> Result<Vec<u8>, Problem> {
        let mut bytes = Vec::new();
        // One byte more than allowed, to detect larger files.
        let most = MAX_FILE_BYTES.min(self.allowance.bytes) + 1;
        reader.take(most).read_to_end(&mut bytes).map_err(|error| read_problem(&error))?;
        let size = bytes.len() as u64;
        self.check_size(size)?;
        self.allowance.bytes -= size;
        Ok(bytes)
    }

    fn check_size(&self, size: u64) -> Result<(), Problem> {
        if size > MAX_FILE_BYTES {
            let message = format!("the file is larger than {} MiB and is not read", MAX_FILE_BYTES >> 20);
            return Err(Problem::error("too-large", Mark::START, message)
                .with_hint("split the file; Kubernetes does not accept objects of that size"));
        }
        if size > self.allowance.bytes {
            let message =
                format!("the files have more than {} MiB in total; this one is not read", MAX_TOTAL_BYTES >> 20);
            return Err(Problem::error("too-large", Mark::START, message).with_hint("check fewer files at a time"));
        }
        Ok(())
    }
}

/// The last component of the canonical path: `.` has a name too.
pub fn directory_name(path: &Path) -> Option<String> {
    let path = fs::canonicalize(path).ok()?;
    Some(path.file_name()?.to_string_lossy().into_owned())
}

fn read_problem(error: &io::Error) -> Problem {
    let (message, hint) = match error.kind() {
        io::ErrorKind::NotFound => {
            ("no such file or directory".to_owned(), "check the path, or name the directory of the manifests")
        }
        io::ErrorKind::PermissionDenied => (
            "permission denied".to_owned(),
            "run the command as a user who can read it, or pipe it in: sympozium validate - < FILE",
        ),
        _ => (format!("cannot be read: {error}"), "try to read it with another program, such as cat"),
    };
    Problem::error("file", Mark::START, message).with_hint(hint)
}
