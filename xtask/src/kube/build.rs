//! Builds the parts once into a cache outside the tree.
//!
//! The folder of a built part is named by a digest of everything that decides its content (pins, flags, toolchain), so
//! a stale cache cannot be used. A part is built beside its final place and renamed into it; a lock per part makes the
//! second of two racing builds wait and then find the first one's result.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use sympozium_api::hex;

use super::cache;
use super::command::{output, program};
use super::lock;
use super::packages;
use super::parts::{Part, VersionPiece};
use super::paths::{self, Root};

/// How often a running build reports.
const REPORT_EVERY: Duration = Duration::from_secs(15);
/// Longer than the slowest part takes on two cores.
const WAIT_FOR_OTHER_BUILD: Duration = Duration::from_secs(30 * 60);
/// Lines of compiler output shown when a build fails.
const FAILURE_LINES: usize = 25;

/// A built part: where its binaries are, and what it took.
#[derive(Debug)]
pub struct Built {
    pub part: &'static Part,
    pub version: String,
    pub folder: PathBuf,
    /// `None` when it was in the cache.
    pub took: Option<Duration>,
}

/// Builds what is missing of `parts`, in order.
pub fn build(root: &Root, parts: &[&'static Part]) -> Result<Vec<Built>> {
    let toolchain = toolchain()?;
    parts
        .iter()
        .map(|&part| build_part(root, part, &toolchain).with_context(|| format!("part {}", part.name)))
        .collect()
}

fn build_part(root: &Root, part: &'static Part, toolchain: &str) -> Result<Built> {
    let pins = paths::pins().join(part.name);
    let plan = Plan::read(part, &pins, toolchain)?;
    let folder = root.parts().join(format!("{}-{}", part.name, plan.key));
    let mut built = Built { part, version: plan.version.clone(), folder, took: None };
    if built.folder.is_dir() {
        cache::note_use(&built.folder);
        return Ok(built);
    }
    let lock_path = root.parts().join(format!("{}.lock", part.name));
    let _lock = match lock::try_exclusive(&lock_path)? {
        Some(lock) => lock,
        None => {
            eprintln!("{}: another build is at work, waiting for it", part.name);
            lock::exclusive_within(&lock_path, WAIT_FOR_OTHER_BUILD)?
                .with_context(|| format!("another build of {} does not end", part.name))?
        }
    };
    if built.folder.is_dir() {
        return Ok(built);
    }
    if part.cgo {
        packages::require(&packages::FOR_CGO)?;
    }
    // Under the lock, what others left was left by killed builds. Their compilers may still be writing, each into its
    // own folder: that is why every build has one of its own.
    let prefix = format!(".building-{}.", part.name);
    remove_folders(&root.parts(), &prefix)?;
    let building = root.parts().join(format!("{prefix}{}", std::process::id()));
    let start = Instant::now();
    plan.run(&pins, &building)?;
    fs::rename(building.join("result"), &built.folder)
        .with_context(|| format!("cannot move the result to {}", built.folder.display()))?;
    remove_folders(&root.parts(), &prefix)?;
    let took = start.elapsed();
    eprintln!("{} {}: built in {:.0} s", part.name, built.version, took.as_secs_f64());
    built.took = Some(took);
    Ok(built)
}

/// Everything that decides what a build gives.
struct Plan {
    part: &'static Part,
    version: String,
    link_flags: String,
    /// Names and texts of our own Go files beside the pins, where the part has any.
    sources: Vec<(String, String)>,
    key: String,
}

impl Plan {
    fn read(part: &'static Part, pins: &Path, toolchain: &str) -> Result<Self> {
        let read = |name: &str| {
            let path = pins.join(name);
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let (module_file, sums) = (read("go.mod")?, read("go.sum")?);
        let version = pinned_version(&module_file, part.module)
            .with_context(|| format!("go.mod of {} does not require {}", part.name, part.module))?;
        let link_flags = link_flags(part, &version);
        let sources = sources(pins)?;
        let compiler =
            if part.cgo { output(program("cc").arg("--version")).unwrap_or_default() } else { String::new() };
        let part_text = format!("{part:?}");
        let mut pieces = vec![module_file.as_str(), &sums, toolchain, &compiler, &link_flags, &part_text];
        for (name, text) in &sources {
            pieces.extend([name.as_str(), text]);
        }
        let mut digest = Sha256::new();
        for piece in pieces {
            // The length in front keeps two neighbouring pieces from being read as one.
            digest.update((piece.len() as u64).to_le_bytes());
            digest.update(piece.as_bytes());
        }
        let key = hex::encode(&digest.finalize()[..8]);
        Ok(Self { part, version, link_flags, sources, key })
    }

    fn run(&self, pins: &Path, building: &Path) -> Result<()> {
        let result = building.join("result");
        fs::create_dir_all(&result).with_context(|| format!("cannot create {}", result.display()))?;
        // A copy, so that a build can neither touch the checkout nor be changed half-way by an edit in it.
        for name in ["go.mod", "go.sum"] {
            fs::copy(pins.join(name), building.join(name)).with_context(|| format!("cannot copy {name}"))?;
        }
        for (name, text) in &self.sources {
            fs::write(building.join(name), text).with_context(|| format!("cannot write {name}"))?;
        }
        let mode = match &self.part.patch {
            None => "-mod=readonly",
            Some(patch) => {
                output(go(building).args(["mod", "vendor"]))?;
                apply(patch, &building.join("vendor"))?;
                "-mod=vendor"
            }
        };
        let mut command = go(building);
        command.env("CGO_ENABLED", if self.part.cgo { "1" } else { "0" });
        command.args(["build", "-v", mode, "-trimpath", "-buildvcs=false", "-ldflags", &self.link_flags]);
        command.args(["-tags", self.part.tags, "-o"]).arg(&result);
        command.args(self.part.binaries.iter().map(|(package, _)| package));
        compile(&mut command, &format!("{} {}", self.part.name, self.version))?;
        for (package, name) in self.part.binaries {
            // The compiler names a binary after the last element of its package.
            let given = package.rsplit('/').next().unwrap_or(package);
            fs::rename(result.join(given), result.join(name)).with_context(|| format!("go build made no {given}"))?;
        }
        if let Some(data) = self.part.data {
            let list = ["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", self.part.module];
            let module = output(go(building).args(list))?;
            copy_files(&Path::new(module.trim()).join(data), &result.join("data"))?;
        }
        Ok(())
    }
}

/// `go` with nothing taken from the user's settings that could change the result.
fn go(folder: &Path) -> std::process::Command {
    let mut command = program("go");
    command
        .current_dir(folder)
        .env("GOFLAGS", "")
        .env("GOWORK", "off")
        .env("GOTOOLCHAIN", "local")
        // Compilers that collect garbage less often: a twelfth less time for some hundred megabytes more memory.
        .env("GOGC", "400");
    command
}

fn toolchain() -> Result<String> {
    let mut version = program("go");
    version.env("GOTOOLCHAIN", "local").args(["env", "GOVERSION", "GOOS", "GOARCH", "GOAMD64"]);
    match version.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => bail!(
            "no Go toolchain on the search path: the test cluster is built from released Go modules\n\
             hint: install Go 1.26 or newer and put its bin folder on PATH, then run this again"
        ),
        _ => output(&mut version),
    }
}

/// The Go files of a folder with pins, by name.
fn sources(pins: &Path) -> Result<Vec<(String, String)>> {
    let mut sources = Vec::new();
    for entry in fs::read_dir(pins).with_context(|| format!("cannot list {}", pins.display()))? {
        let path = entry.with_context(|| format!("cannot list {}", pins.display()))?.path();
        if path.extension().is_some_and(|extension| extension == "go") {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            sources.push((name.into_owned(), text));
        }
    }
    sources.sort();
    Ok(sources)
}

/// The version that a `go.mod` requires of a module, whether in a block or on a line of its own.
fn pinned_version(module_file: &str, module: &str) -> Option<String> {
    module_file.lines().find_map(|line| {
        let line = line.trim();
        let mut words = line.strip_prefix("require ").unwrap_or(line).split_whitespace();
        let found = words.next()? == module;
        let version = words.next()?;
        (found && version.starts_with('v')).then(|| version.to_owned())
    })
}

fn link_flags(part: &Part, version: &str) -> String {
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let mut flags = "-s -w".to_owned();
    for (variable, piece) in part.version_variables {
        let value = match piece {
            VersionPiece::Full => version,
            VersionPiece::Major => major,
            VersionPiece::Minor => minor,
        };
        flags.push_str(&format!(" -X {variable}={value}"));
    }
    flags
}

/// Runs a compilation; `-v` names each package as it is begun, which is our measure of progress.
fn compile(command: &mut std::process::Command, what: &str) -> Result<()> {
    let start = Instant::now();
    eprintln!("{what}: building");
    let mut child = command.stderr(Stdio::piped()).spawn().context("cannot start go build")?;
    let mut last = VecDeque::new();
    let (mut packages, mut reported) = (0_usize, Instant::now());
    if let Some(stderr) = child.stderr.take() {
        for line in BufReader::new(stderr).lines() {
            last.push_back(line.context("cannot read the output of go build")?);
            if last.len() > FAILURE_LINES {
                last.pop_front();
            }
            packages += 1;
            if reported.elapsed() >= REPORT_EVERY {
                eprintln!("{what}: {packages} packages, {:.0} s", start.elapsed().as_secs_f64());
                reported = Instant::now();
            }
        }
    }
    if !child.wait().context("cannot wait for go build")?.success() {
        let lines: Vec<_> = last.into_iter().collect();
        bail!(
            "go build failed:\n{}\nhint: the module registry must be reachable and Go at least the version in go.mod",
            lines.join("\n")
        );
    }
    Ok(())
}

fn apply(patch: &super::parts::Patch, vendor: &Path) -> Result<()> {
    let path = vendor.join(patch.file);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    if text.matches(patch.from).count() != 1 {
        bail!(
            "{} no longer has exactly one {:?}\nhint: adapt the patch in xtask/src/kube/parts.rs",
            patch.file,
            patch.from
        );
    }
    // Files in a vendor folder are copies of read-only ones.
    fs::remove_file(&path).with_context(|| format!("cannot replace {}", path.display()))?;
    fs::write(&path, text.replace(patch.from, patch.to)).with_context(|| format!("cannot write {}", path.display()))
}

fn copy_files(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let entry = entry.with_context(|| format!("cannot list {}", from.display()))?;
        let bytes = fs::read(entry.path()).with_context(|| format!("cannot read {}", entry.path().display()))?;
        fs::write(to.join(entry.file_name()), bytes).with_context(|| format!("cannot write to {}", to.display()))?;
    }
    Ok(())
}

fn remove_folders(parent: &Path, prefix: &str) -> Result<()> {
    for entry in fs::read_dir(parent).with_context(|| format!("cannot list {}", parent.display()))? {
        let entry = entry.with_context(|| format!("cannot list {}", parent.display()))?;
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            fs::remove_dir_all(entry.path()).with_context(|| format!("cannot remove {}", entry.path().display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::parts;
    use super::*;

    #[test]
    fn a_version_is_read_from_either_form_of_require() {
        let block = "module m\n\nrequire (\n\texample.org/a v1.2.3 // indirect\n\texample.org/ab v9.9.9\n)\n";
        assert_eq!(pinned_version(block, "example.org/a").as_deref(), Some("v1.2.3"));
        assert_eq!(pinned_version("require example.org/a v0.4.0\n", "example.org/a").as_deref(), Some("v0.4.0"));
        assert_eq!(pinned_version("replace example.org/a => ../a\n", "example.org/a"), None);
    }

    #[test]
    fn every_part_has_pins_that_name_its_module() {
        for part in parts::ALL {
            let plan = Plan::read(part, &paths::pins().join(part.name), "go1.26").unwrap();
            assert!(plan.version.starts_with('v'), "{}: {}", part.name, plan.version);
        }
    }

    #[test]
    fn the_key_changes_with_pins_toolchain_flags_and_sources() {
        let folder = tempfile::tempdir().unwrap();
        let key = |sums: &str, toolchain: &str, part: &'static Part| {
            fs::write(folder.path().join("go.mod"), format!("require {} v1.0.0\n", part.module)).unwrap();
            fs::write(folder.path().join("go.sum"), sums).unwrap();
            Plan::read(part, folder.path(), toolchain).unwrap().key
        };
        let first = key("a", "go1.26.0", &parts::HELM);
        assert_eq!(first, key("a", "go1.26.0", &parts::HELM));
        let mut others = vec![
            key("b", "go1.26.0", &parts::HELM),
            key("a", "go1.26.1", &parts::HELM),
            key("a", "go1.26.0", &parts::CONTAINERD),
        ];
        for text in ["package main", "package other"] {
            fs::write(folder.path().join("main.go"), text).unwrap();
            others.push(key("a", "go1.26.0", &parts::HELM));
        }
        assert_ne!(others[3], others[4]);
        assert!(!others.contains(&first), "{first} is also one of {others:?}");
    }

    #[test]
    fn a_patch_that_no_longer_fits_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let patch = parts::Patch { file: "a.go", from: "x = 1", to: "x = 2" };
        fs::write(folder.path().join("a.go"), "var x = 1\n").unwrap();
        apply(&patch, folder.path()).unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("a.go")).unwrap(), "var x = 2\n");
        assert!(apply(&patch, folder.path()).is_err());
    }
}
