//! What the cluster takes from Debian, and how it gets there.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::command::{line, on_path, output, search_path};
use super::unsupported::Unsupported;

/// A package, and how to detect that it is installed, by any means.
#[derive(Debug)]
pub struct Package {
    name: &'static str,
    proof: Proof,
}

#[derive(Debug)]
enum Proof {
    Program(&'static str),
    File(&'static str),
}

pub const FOR_CGO: [Package; 2] =
    [program("gcc", "cc"), Package { name: "libseccomp-dev", proof: Proof::File("/usr/include/seccomp.h") }];

pub const FOR_CONTROL_PLANE: [Package; 3] =
    [program("etcd-server", "etcd"), program("iproute2", "ip"), program("util-linux", "unshare")];

pub const FOR_NODE: [Package; 6] = [
    Package { name: "containernetworking-plugins", proof: Proof::File("/usr/lib/cni/ptp") },
    program("nftables", "nft"),
    program("iptables", "iptables"),
    program("conntrack", "conntrack"),
    program("busybox-static", "busybox"),
    program("mount", "mount"),
];

/// Two clusters may start at once; the second waits for the first one's installation.
const INSTALL: &str = "apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300";

const fn program(name: &'static str, binary: &'static str) -> Package {
    Package { name, proof: Proof::Program(binary) }
}

impl Package {
    fn is_there(&self) -> bool {
        match self.proof {
            Proof::Program(binary) => on_path(binary),
            Proof::File(path) => Path::new(path).exists(),
        }
    }
}

/// Installs what is missing of `packages` when this is possible; says what to install when it is not.
pub fn require(packages: &[Package]) -> Result<()> {
    let missing = missing(packages);
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" ");
    let feature = format!("what the Debian packages {names} hold");
    if !on_path("apt-get") {
        return Err(Unsupported::new(feature, "install these by your own means").into());
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Unsupported::new(feature, format!("sudo apt-get install {names}")).into());
    }
    eprintln!("installing {names}");
    // The list of packages of a fresh machine is empty or old; a failure to renew it shows in the install.
    let _ = output(line("apt-get update -qq").env("PATH", search_path()));
    let mut install = line(INSTALL);
    install.args(&missing).env("DEBIAN_FRONTEND", "noninteractive").env("PATH", search_path());
    output(&mut install).with_context(|| format!("cannot install {names}"))?;
    let still = self::missing(packages);
    if !still.is_empty() {
        bail!("installed {names}, yet these are not where they should be: {}", still.join(" "));
    }
    Ok(())
}

fn missing(packages: &[Package]) -> Vec<&'static str> {
    packages.iter().filter(|package| !package.is_there()).map(|package| package.name).collect()
}
