//! The namespaces of a cluster, set up by its first process: mounts, host name, network.
//!
//! Whatever a component would create on the machine's file system lands below the cluster's state folder instead,
//! so that removing that folder removes it.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_move, unmount};

use super::command::{check, line, succeeds};
use super::config::{NODE, PARTS, POLICY_QUEUE, STATE};
use super::network::{PODS, SERVICES};
use super::parts::Tier;
use super::state::Plan;

/// How long the keeper may take to hand us our end of the link.
const LINK_PATIENCE: Duration = Duration::from_secs(10);

/// Where the folder outside the tree is seen while the rest is being covered.
const PASSAGE: &str = "/mnt";

/// Kernel settings that the kubelet insists on and would otherwise change for the whole machine. It only ever reads
/// them when they are right, so it is shown files that say so.
const KUBELET_SETTINGS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Covers what the components write to. The order matters: the folder outside the tree may itself be below `/run`
/// or `/var/lib`, so it is brought to its place inside before these are covered.
pub fn cover_file_system(plan: &Plan) -> Result<()> {
    std::env::set_current_dir("/").context("cannot leave the starting folder")?;
    mount_bind(&plan.root, PASSAGE).with_context(|| format!("cannot bind {}", plan.root.display()))?;
    mount("tmpfs", "/run", "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, c"mode=0755")
        .context("cannot cover /run")?;
    let inside = Path::new("/run/kube/root");
    make_folder(inside)?;
    mount_move(PASSAGE, inside).context("cannot move the folder outside the tree to its place")?;
    bind(&inside.join("parts"), Path::new(PARTS))?;
    bind(&inside.join("clusters").join(&plan.name), Path::new(STATE))?;
    // What is bound stays; the other clusters of the folder are none of this one's business.
    unmount(inside, UnmountFlags::DETACH).context("cannot let go of the folder outside the tree")?;
    for covered in ["/var/lib", "/var/log"] {
        let own = format!("{STATE}{covered}");
        make_folder(Path::new(&own))?;
        mount_bind(&own, covered).with_context(|| format!("cannot cover {covered}"))?;
    }
    // The machine's own /run had these; programs expect them.
    for folder in ["/run/lock", "/run/netns"] {
        make_folder(Path::new(folder))?;
    }
    Ok(())
}

fn bind(from: &Path, to: &Path) -> Result<()> {
    make_folder(to)?;
    mount_bind(from, to).with_context(|| format!("cannot bind {} to {}", from.display(), to.display()))
}

/// Shows the kubelet the settings it wants without changing the machine's.
pub fn cover_kubelet_settings() -> Result<()> {
    // A pod with users of its own may mount /proc only where an uncovered one can be seen already (the kernel's
    // `mount_too_revealing`), and the ones below cover parts of it.
    let whole = Path::new("/run/kube/proc");
    make_folder(whole)?;
    mount("proc", whole, "proc", MountFlags::empty(), None).context("cannot mount /proc again")?;
    for (name, value) in KUBELET_SETTINGS {
        let own = format!("{STATE}/settings/{}", name.replace('/', "."));
        make_folder(Path::new(&format!("{STATE}/settings")))?;
        fs::write(&own, format!("{value}\n")).with_context(|| format!("cannot write {own}"))?;
        let setting = format!("/proc/sys/{name}");
        if Path::new(&setting).exists() {
            mount_bind(&own, &setting).with_context(|| format!("cannot cover {setting}"))?;
        }
    }
    Ok(())
}

/// Names the node and configures our end of the link.
pub fn configure_network(plan: &Plan) -> Result<()> {
    rustix::system::sethostname(NODE.as_bytes()).context("cannot set the host name")?;
    check("ip link set lo up")?;
    let deadline = Instant::now() + LINK_PATIENCE;
    while !succeeds(&mut line("ip link show eth0")) {
        if Instant::now() > deadline {
            bail!("the link to the machine did not arrive");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    check(&format!("ip addr add {}/30 dev eth0", plan.link.cluster()))?;
    check("ip link set eth0 up")?;
    // There is no default route: nothing in here can reach beyond the machine. Service addresses are rewritten on
    // their way out, but the kernel looks for a route before that.
    check(&format!("ip route add {SERVICES} dev eth0"))?;
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("cannot turn forwarding on")
}

/// Rules of the node tier. Those of kube-proxy are its own.
pub fn configure_packet_filter(tier: Tier) -> Result<()> {
    if !tier.node {
        return Ok(());
    }
    let rule = |text: &str| check(&format!("iptables -w 5 {text}"));
    // The machine knows no route back to pods, so what they send to it carries the cluster's address.
    rule(&format!("-t nat -A POSTROUTING -s {PODS} -o eth0 -j MASQUERADE"))?;
    // New connections from and to pods are decided by the NetworkPolicy program. Loopback never is: etcd and the
    // API server would stand still.
    let decide = format!("-m conntrack --ctstate NEW -j NFQUEUE --queue-num {POLICY_QUEUE}");
    rule(&format!("-t mangle -A INPUT -s {PODS} {decide}"))?;
    rule(&format!("-t mangle -A FORWARD -s {PODS} {decide}"))?;
    rule(&format!("-t mangle -A FORWARD ! -s {PODS} -d {PODS} {decide}"))
}

fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))
}
