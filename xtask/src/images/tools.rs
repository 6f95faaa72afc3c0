//! Programs of others in our images: what the skills of a pack call.
//!
//! `kubectl` comes from the parts of the test cluster, which are built from released modules; the rest is the build
//! machine's, with the libraries that it is linked with, at the paths where the loader looks for them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::elf::{self, Linking};
use crate::output::{hinted, note};
use crate::process::{command, find_program, output};

/// Where the tools go. Not `usr/local/bin`: what is there can be called one by one over HTTP, and these are for commands.
const DIRECTORY: &str = "usr/bin";

/// A program of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tool {
    Curl,
    Jq,
    Kubectl,
}

impl Tool {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Curl => "curl",
            Self::Jq => "jq",
            Self::Kubectl => "kubectl",
        }
    }

    /// Where it is on this machine.
    fn find(self) -> Result<PathBuf> {
        match self {
            Self::Kubectl => {
                note("taking kubectl from the parts of the test cluster, which are built if they are missing");
                crate::kube::kubectl().context("building kubectl")
            }
            Self::Curl | Self::Jq => find_program(self.name()).ok_or_else(|| {
                hinted(
                    format!("no {} on this machine", self.name()),
                    format!("apt-get install {0}, or --binary {0}=FILE", self.name()),
                )
            }),
        }
    }
}

/// The files of some tools, with their paths in an image.
pub fn files(tools: &[Tool], given: &[(String, PathBuf)]) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for tool in tools {
        let file = match given.iter().find(|(name, _)| name == tool.name()) {
            Some((_, file)) => file.clone(),
            None => tool.find()?,
        };
        let content = read(&file)?;
        let (_, linking) = elf::examine(&content).with_context(|| file.display().to_string())?;
        if linking == Linking::Dynamic {
            for library in libraries(&file)? {
                let inside = library.strip_prefix("/").unwrap_or(&library);
                files.insert(inside.display().to_string(), read(&library)?);
            }
        }
        files.insert(format!("{DIRECTORY}/{}", tool.name()), content);
    }
    Ok(files)
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("reading {}", file.display()))
}

/// What the loader would load with a program, itself included, by the paths at which it looks.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    parse(&output(command("ldd").arg(program))?).with_context(|| format!("the libraries of {}", program.display()))
}

fn parse(listed: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for line in listed.lines() {
        let line = line.trim();
        let place = line.split_once("=> ").map_or(line, |(_, place)| place);
        let place = place.split(" (").next().unwrap_or_default();
        if place == "not found" {
            bail!("`{line}`: it would not start");
        }
        // The rest are libraries that the kernel brings, which have no file.
        if place.starts_with('/') {
            found.push(PathBuf::from(place));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_what_ldd_prints() {
        let listed = "\tlinux-vdso.so.1 (0x00007ffc)\n\tlibjq.so.1 => /lib/x86_64-linux-gnu/libjq.so.1 (0x00007f)\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let expected = ["/lib/x86_64-linux-gnu/libjq.so.1", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(parse(listed).unwrap(), expected.map(PathBuf::from));
        let missing = parse("\tlibx.so.1 => not found\n").unwrap_err();
        assert_eq!(missing.to_string(), "`libx.so.1 => not found`: it would not start");
    }

    /// A tool that is given is taken as it is, and a static one brings nothing.
    #[test]
    fn a_static_program_has_no_libraries() {
        let Ok(busybox) = super::super::busybox() else {
            sympozium_testkit::skip!("no busybox");
        };
        let files = files(&[Tool::Kubectl], &[("kubectl".to_owned(), busybox)]).unwrap();
        let paths: Vec<_> = files.keys().collect();
        assert_eq!(paths, ["usr/bin/kubectl"]);
    }
}
