//! `setup`: the Debian packages that building and testing need.

use crate::output::{hinted, note};
use crate::process::{command, has_program, output};

struct Package {
    name: &'static str,
    /// A program of the package: already installed, by any means, there is nothing to do.
    program: &'static str,
    why: &'static str,
}

const PACKAGES: &[Package] = &[
    Package { name: "build-essential", program: "cc", why: "links Rust programs, static ones included" },
    Package { name: "git", program: "git", why: "tells the checks which files are the project's" },
    Package {
        name: "bubblewrap",
        program: "bwrap",
        why: "a sandbox that is not ours: tests the probe, reference of the bench",
    },
    Package { name: "jq", program: "jq", why: "images/tool-executor.sh needs it, and its tests run it" },
    Package { name: "curl", program: "curl", why: "goes into the image of the pack sre-observability" },
    Package { name: "shellcheck", program: "shellcheck", why: "reads the shell scripts that we ship" },
    Package {
        name: "busybox-static",
        program: "busybox",
        why: "the shell of our base image, and the least that our scripts must work with",
    },
    Package { name: "ca-certificates", program: "update-ca-certificates", why: "the certificates of our base image" },
];

/// Installs what is missing. Without the permission to install, prints that and continues: tests that need the package are
/// skipped and counted.
pub fn run() -> anyhow::Result<()> {
    let missing: Vec<&Package> = PACKAGES.iter().filter(|package| !has_program(package.program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|package| package.name).collect();
    for package in &missing {
        note(&format!("missing: {} ({})", package.name, package.why));
    }
    let list = names.join(" ");
    if !rustix::process::geteuid().is_root() {
        note(&format!("hint: not root, so nothing was installed; run `sudo apt-get install {list}`"));
        return Ok(());
    }
    if !has_program("apt-get") {
        note(&format!("hint: this is no Debian; install what it calls {list}"));
        return Ok(());
    }
    install(&names).map_err(|error| hinted(format!("{error:#}"), format!("install by hand: {list}")))
}

fn install(names: &[&str]) -> anyhow::Result<()> {
    let apt = |words: &[&str]| {
        let mut apt = command("apt-get");
        apt.args(words).env("DEBIAN_FRONTEND", "noninteractive");
        apt
    };
    // What apt-get says goes to standard error: standard output is for results.
    note(&output(&mut apt(&["update", "--quiet=2"]))?);
    let mut words = vec!["install", "--yes", "--quiet=2", "--no-install-recommends"];
    words.extend(names);
    note(&output(&mut apt(&words))?);
    Ok(())
}
