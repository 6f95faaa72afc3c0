//! `sympozium skill new`: creates a working skill for the user to edit.
//!
//! The directory is written under a hidden name and renamed when it is complete. So the result is either a complete
//! skill or nothing, and existing files are never overwritten.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use serde::Serialize;
use sympozium_manifests::agent_skill::FILE_NAME;
use sympozium_manifests::agent_skill::directory::{open, open_below};
use sympozium_manifests::sources::display_path;

use super::arguments::NewArguments;
use super::skeleton::{self, PACK_FILE, SkeletonKind};
use crate::arguments::OutputFormat;
use crate::failure::Failure;
use crate::output::{print_stdout, to_json};

const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o777);
const FILE_MODE: Mode = Mode::from_raw_mode(0o666);
const PROGRAM_MODE: Mode = Mode::from_raw_mode(0o777);

/// The field names are the JSON output.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NewOutput {
    directory: String,
    files: Vec<WrittenFile>,
    /// Commands to try.
    next: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenFile {
    path: &'static str,
    executable: bool,
}

pub fn run(arguments: &NewArguments) -> Result<ExitCode, Failure> {
    let form = match (arguments.text, arguments.pack) {
        (true, _) => SkeletonKind::Text,
        (_, true) => SkeletonKind::Pack,
        _ => SkeletonKind::Sidecar,
    };
    let files = skeleton::files(&arguments.name, form);
    write(&arguments.dir, &arguments.name, &files)?;
    let path = match arguments.dir == Path::new(".") {
        true => display_path(Path::new(&arguments.name)),
        false => display_path(&arguments.dir.join(&arguments.name)),
    };
    let written = NewOutput {
        next: next_steps(form, &path, &arguments.name),
        directory: path,
        files: files.iter().map(|file| WrittenFile { path: file.path, executable: file.is_executable }).collect(),
    };
    print_stdout(&match arguments.output {
        OutputFormat::Text => text(&written),
        OutputFormat::Json => to_json(&written)?,
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The next commands, in this order.
fn next_steps(form: SkeletonKind, path: &str, name: &str) -> Vec<String> {
    match form {
        SkeletonKind::Sidecar | SkeletonKind::Text => vec![
            format!("edit {path}/{FILE_NAME}"),
            format!("sympozium validate {path}"),
            format!("sympozium skill import {path}"),
        ],
        SkeletonKind::Pack => vec![
            format!("edit {path}/{PACK_FILE}"),
            format!("sympozium validate {path}"),
            format!("docker build -t ghcr.io/yourorg/{name}:0.1.0 {path}"),
        ],
    }
}

fn text(written: &NewOutput) -> String {
    let mut lines = Vec::new();
    for file in &written.files {
        let note = if file.executable { " (executable)" } else { "" };
        lines.push(format!("wrote {}/{}{note}", written.directory, file.path));
    }
    lines.push("next:".to_owned());
    lines.extend(written.next.iter().map(|command| format!("  {command}")));
    lines.join("\n") + "\n"
}

fn write(parent: &Path, name: &str, files: &[skeleton::File]) -> Result<(), Failure> {
    let directory = open(parent)
        .with_context(|| format!("cannot open {}", display_path(parent)))
        .map_err(|error| Failure::new(error, "create the directory first, or choose another one with --dir"))?;
    if rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
        return Err(already_exists(parent, name));
    }
    let hidden = format!(".{name}.new-{}", std::process::id());
    let written = write_files(&directory, &hidden, files).and_then(|()| publish(&directory, &hidden, name));
    written.map_err(|error| {
        // Remove everything that was written.
        remove(&directory, &hidden, files);
        if error.kind() == io::ErrorKind::AlreadyExists {
            return already_exists(parent, name);
        }
        let error = anyhow!(error).context(format!("cannot write {}", display_path(&parent.join(name))));
        Failure::new(error, "check that you can write to the directory and that its disk is not full")
    })
}

fn already_exists(parent: &Path, name: &str) -> Failure {
    let error = anyhow!("{} exists already", display_path(&parent.join(name)));
    Failure::new(error, "choose another name, or remove the directory first; nothing is overwritten")
}

fn write_files(parent: &OwnedFd, hidden: &str, files: &[skeleton::File]) -> io::Result<()> {
    rustix::fs::mkdirat(parent, hidden, DIRECTORY_MODE)?;
    let root = open_below(parent, Path::new(hidden))?;
    for file in files {
        let (directory, name) = match file.path.split_once('/') {
            Some((directory, name)) => {
                match rustix::fs::mkdirat(&root, directory, DIRECTORY_MODE) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                (&open_below(&root, Path::new(directory))?, name)
            }
            None => (&root, file.path),
        };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = match file.is_executable {
            true => PROGRAM_MODE,
            false => FILE_MODE,
        };
        let mut opened = File::from(rustix::fs::openat(directory, name, flags, mode)?);
        opened.write_all(file.text.as_bytes())?;
    }
    Ok(())
}

/// Renames the directory, unless the name is taken.
fn publish(parent: &OwnedFd, hidden: &str, name: &str) -> io::Result<()> {
    match rustix::fs::renameat_with(parent, hidden, parent, name, RenameFlags::NOREPLACE) {
        // Some file systems do not support NOREPLACE. There, too, a rename onto a file or a directory that is not empty
        // fails.
        Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::renameat(parent, hidden, parent, name)?,
        other => other?,
    }
    Ok(())
}

fn remove(parent: &OwnedFd, hidden: &str, files: &[skeleton::File]) {
    let Ok(root) = open_below(parent, Path::new(hidden)) else {
        return;
    };
    for file in files {
        // Paths are one level deep, so the directory is what is before the only slash.
        if let Some((directory, name)) = file.path.split_once('/') {
            if let Ok(inner) = open_below(&root, Path::new(directory)) {
                let _ = rustix::fs::unlinkat(&inner, name, AtFlags::empty());
            }
            let _ = rustix::fs::unlinkat(&root, directory, AtFlags::REMOVEDIR);
        } else {
            let _ = rustix::fs::unlinkat(&root, file.path, AtFlags::empty());
        }
    }
    let _ = rustix::fs::unlinkat(parent, hidden, AtFlags::REMOVEDIR);
}
