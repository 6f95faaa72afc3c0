//! What the machine must offer before a cluster is started; each lack is named.

use std::path::Path;

use anyhow::Result;

use super::command::{line, succeeds};
use super::packages;
use super::parts::Tier;
use super::paths::Root;
use super::unsupported::Unsupported;

/// Checks the machine and installs missing Debian packages.
pub fn check(tier: Tier) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        let hint = "a cluster makes namespaces, interfaces and mounts: run this as root";
        return Err(Unsupported::new("root privileges", hint).into());
    }
    packages::require(&packages::FOR_CONTROL_PLANE)?;
    // Each is tried in namespaces of its own, which vanish with it.
    needs("namespaces of every kind", "unshare --mount --uts --ipc --net --pid --fork true")?;
    needs("veth interfaces", "unshare --net ip link add veth1 type veth peer name veth2")?;
    if tier.node {
        packages::require(&packages::FOR_NODE)?;
        let cgroup = Path::new("/sys/fs/cgroup");
        if !cgroup.join("memory").is_dir() && !cgroup.join("cgroup.controllers").is_file() {
            let hint = "mount the cgroup hierarchies at /sys/fs/cgroup";
            return Err(Unsupported::new("cgroups with a memory controller", hint).into());
        }
        needs("nftables", "unshare --net nft add table ip probe")?;
        let queue = "unshare --net iptables -t mangle -A INPUT -m conntrack --ctstate NEW -j NFQUEUE";
        needs("iptables with conntrack and NFQUEUE", queue)?;
    }
    Ok(())
}

/// What can be asked only with a built part: whether gVisor's way of catching system calls works here.
pub fn check_gvisor(root: &Root, programs: &Path) -> Result<()> {
    let scratch = root.clusters().join(format!(".runsc-{}", std::process::id()));
    let attempt = format!(
        "unshare --mount --pid --fork --mount-proc {}/runsc --root {} --ignore-cgroups --network=none \
         --platform=systrap do true",
        programs.display(),
        scratch.display()
    );
    let outcome = needs("what gVisor's systrap platform needs of the kernel", &attempt);
    // Made by runsc, whether it succeeded or not.
    let _ = std::fs::remove_dir_all(&scratch);
    outcome
}

fn needs(feature: &str, attempt: &str) -> Result<()> {
    if succeeds(&mut line(attempt)) {
        return Ok(());
    }
    Err(Unsupported::new(feature, format!("`{attempt}` must succeed")).into())
}
