//! Untrusted paths, and files that may be programs.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::scratch::{Scratch, directory};
use crate::beneath::{Links, MAX_LINKS, Method, Mounts, Resolve, Scope, open_with, walk};
use crate::lookup::{self, LookupError, Program, ProgramKind, Runner, SkillName};

/// Steps per input: enough to combine all kinds of links, and quick.
const MAX_STEPS: usize = 32;

/// Both methods to resolve a path give the same result, and never a file outside the directory.
///
/// Each line is a step: `d PATH`, `f PATH` and `l PATH TARGET` create a directory, a file or a link; `o XY PATH` opens
/// a path, with the letters X and Y for flags and resolution. Each method has its own tree, so that files which one
/// creates do not affect the other.
pub fn beneath(data: &[u8]) {
    let methods: &[Method] = match Method::detect() {
        Method::Openat2 => &[Method::Openat2, Method::Walk],
        Method::Walk => &[Method::Walk],
    };
    let scratch = Scratch::new();
    let outcomes: Vec<_> = methods
        .iter()
        .enumerate()
        .map(|(number, &method)| {
            // A file beside the tree is what an escape would find.
            let outer = scratch.path().join(number.to_string());
            let base = outer.join("base");
            fs::create_dir_all(&base).expect("the directory is new");
            fs::write(outer.join("secret"), "secret").expect("there is room");
            let answers = Tree::new(&base).run(method, data);
            let beside: BTreeSet<_> = names(&outer);
            assert_eq!(beside, ["base".into(), "secret".into()].into(), "escaped");
            (answers, contents(&base))
        })
        .collect();
    if let [(kernel, left_by_kernel), (walk, left_by_walk)] = &outcomes[..] {
        assert_eq!(left_by_walk, left_by_kernel, "the trees differ");
        for (step, (kernel, walk)) in kernel.iter().zip(walk).enumerate() {
            assert!(kernel.agrees(walk), "step {step}: {walk:?}, but {kernel:?}");
        }
    }
}

#[derive(Debug)]
struct Answer {
    opened: Result<PathBuf, Errno>,
    /// Number of links that the walk met before a refusal.
    links: usize,
}

impl Answer {
    fn agrees(&self, walk: &Self) -> bool {
        // The kernel first resolves without locks. Where that fails (a `..` that would leave, a name that is not
        // cached) it starts over and continues to count links, so that ELOOP hides the true error from half of its
        // limit on.
        let counted_twice = self.opened == Err(Errno::LOOP) && walk.links > MAX_LINKS / 2;
        self.opened == walk.opened || walk.opened.is_err() && counted_twice
    }
}

struct Tree<'a> {
    base: &'a Path,
    /// The created directories, by path. Steps follow no link: whatever they create is below the base by its name.
    directories: HashSet<PathBuf>,
}

impl<'a> Tree<'a> {
    fn new(base: &'a Path) -> Self {
        let directories = [PathBuf::new()].into();
        Self { base, directories }
    }

    fn run(&mut self, method: Method, steps: &[u8]) -> Vec<Answer> {
        let mut answers = Vec::new();
        for step in steps.split(|&byte| byte == b'\n').take(MAX_STEPS) {
            match step {
                [b'd', b' ', path @ ..] => {
                    if let Some(path) = self.place(path)
                        && fs::create_dir(self.base.join(&path)).is_ok()
                    {
                        self.directories.insert(path);
                    }
                }
                [b'f', b' ', path @ ..] => {
                    if let Some(path) = self.place(path) {
                        // Not `write`, which would follow a link.
                        let _ = fs::File::create_new(self.base.join(path));
                    }
                }
                [b'l', b' ', rest @ ..] => {
                    let at = rest.iter().position(|&byte| byte == b' ');
                    let (path, target) = rest.split_at(at.unwrap_or(rest.len()));
                    let target = to_path(target.get(1..).unwrap_or_default());
                    if let Some(path) = self.place(path) {
                        let _ = symlink(target, self.base.join(path));
                    }
                }
                [b'o', b' ', flags, resolve, b' ', path @ ..] => {
                    let (flags, resolve) = (flags_of(*flags), resolve_of(*resolve));
                    let opened = self.open(method, path, flags, resolve);
                    let links = match (method, &opened) {
                        (Method::Walk, Err(_)) => self.count_links(path, flags, resolve),
                        _ => 0,
                    };
                    answers.push(Answer { opened, links });
                }
                _ => {}
            }
        }
        answers
    }

    /// The path of a new entry, if its parent is a directory that a step created.
    fn place(&self, path: &[u8]) -> Option<PathBuf> {
        let path = to_path(path);
        let parent = path.parent()?;
        let is_plain = path.file_name().is_some() && path.is_relative();
        (is_plain && self.directories.contains(parent)).then(|| path.to_owned())
    }

    fn open(&self, method: Method, path: &[u8], flags: OFlags, resolve: Resolve) -> Result<PathBuf, Errno> {
        let dir = directory(self.base);
        let mode = if flags.contains(OFlags::CREATE) { Mode::from(0o640) } else { Mode::empty() };
        // Renames anywhere on the machine disturb openat2: EAGAIN, or ELOOP because it counts links twice.
        let mut tries = 0;
        let opened = loop {
            let opened = open_with(method, dir.as_fd(), to_path(path), flags, mode, resolve);
            match opened.map_err(|error| Errno::from_io_error(&error)) {
                Err(Some(Errno::AGAIN | Errno::LOOP)) if method == Method::Openat2 && tries < 16 => {
                    tries += 1;
                }
                opened => break opened,
            }
        };
        let file = opened.map_err(|errno| errno.expect("the kernel refused, or we as it does"))?;
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let real = fs::read_link(link).expect("there is a /proc");
        let below = real.strip_prefix(self.base);
        Ok(below.expect("opened outside the directory").to_owned())
    }

    fn count_links(&self, path: &[u8], flags: OFlags, resolve: Resolve) -> usize {
        let mut links = 0;
        let dir = directory(self.base);
        let _ = walk(dir.as_fd(), to_path(path), flags, resolve, &mut |passed| {
            let kind = FileType::from_raw_mode(passed.stat.st_mode);
            links += usize::from(kind == FileType::Symlink);
        });
        links
    }
}

fn flags_of(letter: u8) -> OFlags {
    let read = OFlags::NONBLOCK | OFlags::NOCTTY;
    match letter % 10 {
        0 => read,
        1 => read | OFlags::RDWR,
        2 => read | OFlags::DIRECTORY,
        3 => read | OFlags::NOFOLLOW,
        4 => OFlags::PATH,
        5 => OFlags::PATH | OFlags::NOFOLLOW,
        6 => OFlags::PATH | OFlags::DIRECTORY,
        7 => read | OFlags::CREATE | OFlags::RDWR,
        8 => read | OFlags::CREATE | OFlags::RDWR | OFlags::EXCL,
        _ => read | OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW,
    }
}

fn resolve_of(letter: u8) -> Resolve {
    Resolve {
        scope: if letter & 1 == 0 { Scope::Beneath } else { Scope::InRoot },
        links: if letter & 2 == 0 { Links::Follow } else { Links::Refuse },
        mounts: if letter & 4 == 0 { Mounts::Cross } else { Mounts::Stay },
    }
}

fn to_path(bytes: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

fn names(directory: &Path) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(directory).expect("it is ours");
    entries.flatten().map(|entry| entry.file_name().into()).collect()
}

/// Everything below `base`, each with its type and permissions.
fn contents(base: &Path) -> BTreeSet<(PathBuf, u32)> {
    let mut found = BTreeSet::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(below) = pending.pop() {
        for name in names(&base.join(&below)) {
            let path = below.join(name);
            let metadata = fs::symlink_metadata(base.join(&path)).expect("it was listed");
            if metadata.is_dir() {
                pending.push(path.clone());
            }
            found.insert((path, metadata.mode()));
        }
    }
    found
}

/// Only an ELF file or a script is a program, by its first bytes; and a script, or a skill, only where its runner
/// cannot replace it.
///
/// The first two bytes are the file's mode, the third selects the runner, the rest is the file.
pub fn program(data: &[u8]) {
    let [low, high, who, content @ ..] = data else {
        return;
    };
    let scratch = Scratch::for_programs();
    let path = scratch.path().join("program");
    fs::write(&path, content).expect("there is room");
    // Readable to us, or there is nothing to classify.
    let mode = u32::from(u16::from_le_bytes([*low, *high])) & 0o7777 | 0o400;
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
    let file = fs::metadata(&path).expect("it is there");
    let runner = Runner { uid: file.uid() + u32::from(who & 1), gids: vec![file.gid() + u32::from(who >> 1 & 1)] };
    let dir = directory(scratch.path());

    let executable = match (who & 1, who >> 1 & 1) {
        (0, _) => file.mode() & 0o100 != 0,
        (_, 0) => file.mode() & 0o010 != 0,
        (..) => file.mode() & 0o001 != 0,
    };
    let writable = who & 1 == 0 || file.mode() & 0o002 != 0 || who >> 1 & 1 == 0 && file.mode() & 0o020 != 0;
    let refusal = if !executable {
        Some("not executable")
    } else if scratch.forbids_programs() {
        Some("noexec mount")
    } else if !content.starts_with(b"\x7fELF") && !content.starts_with(b"#!") {
        Some("format")
    } else {
        None
    };
    let is_script = content.starts_with(b"#!");

    let here = lookup::find_in_directory(dir.as_fd(), Path::new("program"), &runner);
    let expected = refusal.or(is_script.then_some("script without a path"));
    assert_eq!(name_of(here), expected.unwrap_or("elf"));

    let at_path = lookup::find_at_path(dir.as_fd(), Path::new("/program"), &runner);
    let expected = refusal.or((is_script && writable).then_some("writable"));
    let kind = if is_script { "script" } else { "elf" };
    assert_eq!(name_of(at_path), expected.unwrap_or(kind));

    let skill = SkillName::parse("program").expect("it is a plain name");
    let skill = lookup::find_skill(dir.as_fd(), Path::new("/"), &skill, &runner);
    let expected = refusal
        .or((file.mode() & 0o6000 != 0).then_some("set-id"))
        .or((file.mode() & 0o002 != 0).then_some("world-writable"))
        .or(writable.then_some("writable"));
    assert_eq!(name_of(skill), expected.unwrap_or(kind));
}

fn name_of(answer: Result<Program, LookupError>) -> &'static str {
    match answer {
        Ok(program) => match program.kind {
            ProgramKind::Elf => "elf",
            ProgramKind::Script { path } => {
                assert_eq!(path, Path::new("/program"));
                "script"
            }
        },
        Err(LookupError::NotExecutable { .. }) => "not executable",
        Err(LookupError::NoExecMount { .. }) => "noexec mount",
        Err(LookupError::Format { .. }) => "format",
        Err(LookupError::ScriptWithoutPath { .. }) => "script without a path",
        Err(LookupError::Writable { .. }) => "writable",
        Err(LookupError::SetId { .. }) => "set-id",
        Err(LookupError::WorldWritable { .. }) => "world-writable",
        Err(error) => panic!("{error:?}"),
    }
}
