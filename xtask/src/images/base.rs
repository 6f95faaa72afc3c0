//! What every image of ours stands on: a shell, certificates, a user, and nothing to act with.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::tree::Tree;
use crate::output::hinted;

/// The user that everything runs as, and its group.
pub const USER: u64 = 1000;
/// Its name.
const USER_NAME: &str = "agent";

/// The tools that the shell finds. Not all of busybox: what mounts, logs in or configures a network has no place here, and
/// `wget` of a static busybox cannot look up names.
pub const TOOLS: &[&str] = &[
    "[",
    "ash",
    "awk",
    "base64",
    "basename",
    "cat",
    "chmod",
    "cmp",
    "cp",
    "cut",
    "date",
    "dd",
    "df",
    "diff",
    "dirname",
    "du",
    "echo",
    "egrep",
    "env",
    "expr",
    "false",
    "fgrep",
    "find",
    "grep",
    "gunzip",
    "gzip",
    "head",
    "hostname",
    "id",
    "kill",
    "ln",
    "ls",
    "md5sum",
    "mkdir",
    "mkfifo",
    "mktemp",
    "mv",
    "nproc",
    "od",
    "paste",
    "printf",
    "ps",
    "pwd",
    "readlink",
    "realpath",
    "rm",
    "rmdir",
    "sed",
    "seq",
    "setsid",
    "sh",
    "sha256sum",
    "sleep",
    "sort",
    "stat",
    "tail",
    "tar",
    "tee",
    "test",
    "timeout",
    "touch",
    "tr",
    "true",
    "uname",
    "uniq",
    "wc",
    "which",
    "whoami",
    "xargs",
    "yes",
];

/// Where Debian's package keeps the certificates that it brings.
const CERTIFICATES: &str = "/usr/share/ca-certificates/mozilla";
/// Where programs look for them.
const BUNDLE: &str = "etc/ssl/certs/ca-certificates.crt";

/// The parts of the build machine that go into the base.
#[derive(Debug)]
pub struct Parts {
    /// A static busybox.
    pub busybox: Vec<u8>,
    /// All certificates, in PEM.
    pub certificates: Vec<u8>,
}

impl Parts {
    /// Takes them from this machine.
    ///
    /// The certificates are the package's own and not the machine's bundle: a certificate that is trusted here,
    /// such as a proxy's, is nothing that our images should trust.
    pub fn find() -> Result<Self> {
        let busybox = busybox()?;
        let busybox = fs::read(&busybox).with_context(|| format!("reading {}", busybox.display()))?;
        let certificates = bundle(Path::new(CERTIFICATES))
            .map_err(|error| hinted(format!("no certificates: {error:#}"), "apt-get install ca-certificates"))?;
        Ok(Self { busybox, certificates })
    }

    /// The layer that they make.
    pub fn layer(self) -> Result<Tree> {
        let mut tree = Tree::default();
        tree.add_file("bin/busybox", 0o755, self.busybox)?;
        for tool in TOOLS {
            tree.add_link(&format!("bin/{tool}"), "busybox")?;
        }
        // The one path that scripts name.
        tree.add_link("usr/bin/env", "../../bin/busybox")?;
        // Whatever is in it can be called: it is for those who build on this image.
        tree.add_directory("usr/local/bin", 0o755, 0)?;
        tree.add_file(BUNDLE, 0o644, self.certificates)?;
        let passwd =
            format!("root:x:0:0:root:/nonexistent:/bin/false\n{USER_NAME}:x:{USER}:{USER}:{USER_NAME}:/tmp:/bin/sh\n");
        tree.add_file("etc/passwd", 0o644, passwd)?;
        tree.add_file("etc/group", 0o644, format!("root:x:0:\n{USER_NAME}:x:{USER}:\n"))?;
        tree.add_directory("tmp", 0o1777, 0)?;
        tree.add_directory("workspace", 0o755, USER)?;
        Ok(tree)
    }
}

/// All certificates of a directory in one file, in the order of their names.
fn bundle(directory: &Path) -> Result<Vec<u8>> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory)
        .and_then(Iterator::collect::<std::io::Result<Vec<_>>>)
        .with_context(|| format!("reading {}", directory.display()))?
        .into_iter()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "crt"))
        .collect();
    files.sort();
    anyhow::ensure!(!files.is_empty(), "none in {}", directory.display());
    let mut bundle = Vec::new();
    for file in files {
        let content = fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
        bundle.extend_from_slice(content.trim_ascii());
        bundle.push(b'\n');
    }
    Ok(bundle)
}

/// Where this machine has busybox.
pub fn busybox() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian keeps some programs in sbin, which an ordinary user's path does not name.
    std::env::split_paths(&path)
        .chain(["/usr/bin".into(), "/bin".into(), "/usr/sbin".into(), "/sbin".into()])
        .map(|directory| directory.join("busybox"))
        .find(|place| place.is_file())
        .ok_or_else(|| hinted("no busybox on this machine", "apt-get install busybox-static"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{command, output};

    #[test]
    fn every_tool_is_one_of_busybox() {
        let Ok(busybox) = busybox() else {
            sympozium_testkit::skip!("no busybox");
        };
        let list = output(command(busybox).arg("--list")).unwrap();
        let known: Vec<&str> = list.lines().collect();
        let unknown: Vec<_> = TOOLS.iter().filter(|tool| !known.contains(tool)).collect();
        assert_eq!(unknown, Vec::<&&str>::new());
        assert!(TOOLS.is_sorted());
    }

    #[test]
    fn a_bundle_is_in_the_order_of_names_and_has_certificates_only() {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in [("b.crt", "two\n\n"), ("a.crt", "one"), ("c.txt", "no")] {
            fs::write(folder.path().join(name), content).unwrap();
        }
        assert_eq!(bundle(folder.path()).unwrap(), b"one\ntwo\n");
        assert!(bundle(&folder.path().join("missing")).is_err());
    }
}
