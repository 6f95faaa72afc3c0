//! Reads the files of a skill's directory, and nothing else.
//!
//! Everything is opened beneath the directory's descriptor, no link is followed, and the type is checked again after
//! opening: even if files are swapped meanwhile, only regular files of this directory are read.

mod search;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use sympozium_api::names::SkillFilePath;
use sympozium_api::text::quote;

use super::super::problem::{Problem, Problems};
use super::super::tree::Mark;
use super::FILE_NAME;
use super::limits::{MAX_DEPTH, MAX_ENTRIES, MAX_FILE_BYTES, MAX_FILES, MAX_SKILL_BYTES};
pub use search::{FoundSkill, search};

/// What may still be read, over all skills.
#[derive(Debug)]
pub struct Allowance {
    pub bytes: u64,
    pub entries: usize,
}

/// The files of a skill.
#[derive(Debug, Default)]
pub struct RawSkill {
    pub directory_name: Option<String>,
    /// The bytes of `SKILL.md`.
    pub text: Vec<u8>,
    /// The other files, by path.
    pub files: Vec<RawFile>,
    /// Warnings about omitted files, and errors.
    pub problems: Problems,
}

/// A file of a skill, other than `SKILL.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawFile {
    /// Below the skill's directory, in the form of [`SkillFilePath`].
    pub path: String,
    pub bytes: Vec<u8>,
    /// Whether its mode has an execute bit.
    pub has_execute_bit: bool,
}

/// Opens a directory that the user named; the path may be a link.
///
/// # Errors
/// Those of `open(2)`.
pub fn open(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Opens a directory that was found below another. Mount points may be crossed.
///
/// # Errors
/// Those of `openat(2)`; `ELOOP` when there is a link on the path, `EINVAL` when the path is empty or has other
/// components than names.
pub fn open_below(directory: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let mut opened: Option<OwnedFd> = None;
    for component in path.components() {
        let Component::Normal(name) = component else {
            return Err(Errno::INVAL.into());
        };
        let parent = opened.as_ref().unwrap_or(directory);
        opened = Some(open_name(parent, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK)?);
    }
    opened.ok_or_else(|| Errno::INVAL.into())
}

/// Opens one name of a directory, and never what a link leads to. One name at a time needs no `openat2(2)`.
fn open_name(directory: &OwnedFd, name: &OsStr, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(directory, name, flags, Mode::empty()) {
        // With O_DIRECTORY the kernel checks the type first, and a link is not a directory.
        Err(Errno::NOTDIR) if has_link(directory, name) => Err(Errno::LOOP.into()),
        opened => Ok(opened?),
    }
}

fn has_link(directory: &OwnedFd, name: &OsStr) -> bool {
    rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}

///
/// # Errors
/// When `SKILL.md` cannot be read. Problems with other files are in the result.
pub fn read(
    directory: &OwnedFd,
    directory_name: Option<String>,
    allowance: &mut Allowance,
) -> Result<RawSkill, Problem> {
    let text = match read_file(directory, OsStr::new(FILE_NAME), allowance) {
        Ok((bytes, _)) => bytes,
        Err(ReadError::Problem(problem)) => return Err(problem),
        Err(ReadError::TooLarge) => {
            let message = format!("the file is larger than {} KiB and is not read", MAX_FILE_BYTES >> 10);
            let problem = Problem::error("too-large", Mark::START, message);
            return Err(problem.with_hint("move details into files of `references/`"));
        }
    };
    let mut reading = SkillReader {
        skill: RawSkill { directory_name, text, ..RawSkill::default() },
        allowance,
        entries: 0,
        bytes: 0,
    };
    // The reason for stopping is among the problems.
    let _: Result<(), Stopped> = reading.walk(directory, "", 0);
    Ok(reading.skill)
}

/// The rest of the directory is not read.
struct Stopped;

/// Why a file was not read.
enum ReadError {
    TooLarge,
    Problem(Problem),
}

struct SkillReader<'a> {
    skill: RawSkill,
    allowance: &'a mut Allowance,
    entries: usize,
    bytes: usize,
}

impl SkillReader<'_> {
    /// Recurses [`MAX_DEPTH`] times at most.
    fn walk(&mut self, directory: &OwnedFd, prefix: &str, depth: usize) -> Result<(), Stopped> {
        for name in self.entry_names(directory, prefix)? {
            if prefix.is_empty() && name == FILE_NAME {
                continue;
            }
            let quoted = quote(&format!("{prefix}{}", name.to_string_lossy()));
            if name.as_bytes().starts_with(b".") {
                self.warn_omitted(&format!("{quoted} is hidden"), "rename it if the skill needs it");
                continue;
            }
            let path = match name.to_str().map(|name| format!("{prefix}{name}")) {
                Some(path) if is_valid_path(&path) => path,
                _ => {
                    self.warn_omitted(
                        &format!("{quoted} is not a valid path of a skill's file"),
                        "use letters, digits, `.`, `_` and `-`, at most 255 characters, and start with a letter or digit",
                    );
                    continue;
                }
            };
            let kind = match rustix::fs::statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                Err(error) => return self.stop(path_problem(&quoted, &error.into())),
            };
            match kind {
                FileType::Directory => self.walk_directory(directory, &name, &path, depth)?,
                FileType::RegularFile => self.add_file(directory, &name, path)?,
                FileType::Symlink => {
                    self.warn_omitted(&format!("{quoted} is a symbolic link"), "replace the link by the file");
                }
                _ => self.warn_omitted(&format!("{quoted} is not a regular file"), "remove it"),
            }
        }
        Ok(())
    }

    fn walk_directory(&mut self, parent: &OwnedFd, name: &OsStr, path: &str, depth: usize) -> Result<(), Stopped> {
        if depth + 1 > MAX_DEPTH {
            let message = format!("{} is deeper than {MAX_DEPTH} directories", quote(path));
            return self.stop(
                Problem::error("too-deep", Mark::START, message).with_hint("keep files one or two directories deep"),
            );
        }
        match open_below(parent, Path::new(name)) {
            Ok(directory) => self.walk(&directory, &format!("{path}/"), depth + 1),
            Err(error) => self.stop(path_problem(&quote(path), &error)),
        }
    }

    fn add_file(&mut self, directory: &OwnedFd, name: &OsStr, path: String) -> Result<(), Stopped> {
        if self.skill.files.len() == MAX_FILES {
            let message = format!("the skill has more than {MAX_FILES} files in addition to `SKILL.md`");
            let problem = Problem::error("too-many-files", Mark::START, message);
            return self
                .stop(problem.with_hint("put programs and libraries into an image for the skill, or split the skill"));
        }
        let (bytes, has_execute_bit) = match read_file(directory, name, self.allowance) {
            Ok(read) => read,
            Err(ReadError::TooLarge) => {
                let message = format!("{} is larger than {} KiB", quote(&path), MAX_FILE_BYTES >> 10);
                self.warn_omitted(&message, "put it into an image for the skill");
                return Ok(());
            }
            Err(ReadError::Problem(problem)) => {
                let message = format!("{}: {}", quote(&path), problem.message);
                return self.stop(Problem { message, ..problem });
            }
        };
        self.bytes += bytes.len() + path.len();
        if self.bytes > MAX_SKILL_BYTES {
            let message = format!("the files have more than {} KiB in total", MAX_SKILL_BYTES >> 10);
            let problem = Problem::error("too-large", Mark::START, message);
            return self.stop(problem.with_hint("put large files into an image for the skill"));
        }
        self.skill.files.push(RawFile { path, bytes, has_execute_bit });
        Ok(())
    }

    /// The entries of a directory, by name.
    fn entry_names(&mut self, directory: &OwnedFd, prefix: &str) -> Result<Vec<OsString>, Stopped> {
        let left = (MAX_ENTRIES - self.entries).min(self.allowance.entries);
        match list_names(directory, left) {
            Ok(Some(names)) => {
                self.entries += names.len();
                self.allowance.entries -= names.len();
                Ok(names)
            }
            Ok(None) => {
                let message = format!("the directory has more than {MAX_ENTRIES} entries and is not read");
                let problem = Problem::error("too-many-files", Mark::START, message);
                self.stop(
                    problem.with_hint("put programs and libraries into an image for the skill, or split the skill"),
                )
            }
            Err(error) => self.stop(path_problem(&quote(prefix), &error)),
        }
    }

    fn warn_omitted(&mut self, what: &str, hint: &str) {
        let message = format!("{what}; it is omitted");
        self.skill.problems.add(Problem::warning("skill-file", Mark::START, message).with_hint(hint));
    }

    fn stop<T>(&mut self, problem: Problem) -> Result<T, Stopped> {
        self.skill.problems.add(problem);
        Err(Stopped)
    }
}

fn is_valid_path(path: &str) -> bool {
    // A second `SKILL.md` in another case would be the same file on some machines.
    SkillFilePath::from(path).check().is_ok() && !path.eq_ignore_ascii_case(FILE_NAME)
}

/// The names in a directory, sorted; `None` when there are more than `most`.
fn list_names(directory: &OwnedFd, most: usize) -> io::Result<Option<Vec<OsString>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        if names.len() == most {
            return Ok(None);
        }
        names.push(OsString::from_vec(name.to_vec()));
    }
    names.sort();
    Ok(Some(names))
}

/// The bytes of a regular file of `directory`, and whether it is executable.
fn read_file(directory: &OwnedFd, name: &OsStr, allowance: &mut Allowance) -> Result<(Vec<u8>, bool), ReadError> {
    let failed = |error: &io::Error| ReadError::Problem(read_problem(error));
    // Do not block on a writer, in case the file has been replaced by a pipe.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(open_name(directory, name, flags).map_err(|error| failed(&error))?);
    let metadata = file.metadata().map_err(|error| failed(&error))?;
    if !metadata.is_file() {
        let problem = Problem::error("file", Mark::START, "not a regular file; it is not read");
        return Err(ReadError::Problem(problem.with_hint("replace it by a regular file")));
    }
    if metadata.len() > MAX_FILE_BYTES as u64 {
        return Err(ReadError::TooLarge);
    }
    if metadata.len() > allowance.bytes {
        let problem =
            Problem::error("too-large", Mark::START, "the skills are too large in total; the file is not read");
        return Err(ReadError::Problem(problem.with_hint("import fewer skills at a time")));
    }
    let mut bytes = Vec::new();
    // One byte more than allowed, to detect a file that grows.
    let most = (MAX_FILE_BYTES as u64).min(allowance.bytes) + 1;
    let mut limited = file.take(most);
    limited.read_to_end(&mut bytes).map_err(|error| failed(&error))?;
    if bytes.len() as u64 == most {
        return Err(ReadError::TooLarge);
    }
    allowance.bytes -= bytes.len() as u64;
    let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions());
    Ok((bytes, mode & 0o111 != 0))
}

/// The problem of a directory or a file of a skill that cannot be read.
pub fn read_problem(error: &io::Error) -> Problem {
    let (message, hint) = match error.kind() {
        io::ErrorKind::NotFound => {
            ("no such file or directory".to_owned(), "a skill is a directory with a file `SKILL.md` (the case matters)")
        }
        io::ErrorKind::PermissionDenied => {
            ("permission denied".to_owned(), "run the command as a user who can read it")
        }
        _ if is_link(error) => ("a symbolic link; it is not followed".to_owned(), "replace the link by the file"),
        _ => (format!("cannot be read: {error}"), "try to read it with another program, such as cat"),
    };
    Problem::error("file", Mark::START, message).with_hint(hint)
}

fn path_problem(quoted: &str, error: &io::Error) -> Problem {
    let problem = read_problem(error);
    let message = format!("{quoted}: {}", problem.message);
    Problem { message, ..problem }
}

fn is_link(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::LOOP)
}
