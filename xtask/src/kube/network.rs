//! Addresses of a cluster. Each has a /30 of its own towards the machine; pods and services are private to it.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::cgroups;
use super::command::{check, line, output, succeeds};
use super::lock::{self, Lock};

/// Pods of every cluster; never routed outside its namespace.
pub const PODS: &str = "198.51.100.0/24";
/// Services of every cluster.
pub const SERVICES: &str = "203.0.113.0/24";
/// The API server's own Service: the first address of [`SERVICES`].
pub const API_SERVICE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
/// The Service of the name server, which is in the `/etc/resolv.conf` of every pod; as in most clusters, the tenth address.
pub const DNS_SERVICE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
/// Clusters that can run side by side on one machine.
const MAX_CLUSTERS: u8 = 32;
/// Interfaces on the machine's side are called this and a number; nothing else of ours makes interfaces.
pub const INTERFACE_PREFIX: &str = "szkube";

/// The pair of addresses between the machine and one cluster, from the range set aside for benchmarks (RFC 2544).
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Link {
    index: u8,
}

impl Link {
    /// The machine's end: where a test serves what the cluster calls.
    pub fn host(self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.index, 1)
    }

    /// The cluster's end: where its API server answers.
    pub fn cluster(self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.index, 2)
    }

    pub fn interface(self) -> String {
        format!("{INTERFACE_PREFIX}{}", self.index)
    }

    /// The cluster's end before it is moved inside.
    pub fn peer(self) -> String {
        format!("{INTERFACE_PREFIX}{}p", self.index)
    }

    /// The cgroup below which all containers of the cluster are, in every hierarchy.
    pub fn cgroup(self) -> String {
        format!("{}{}", cgroups::PREFIX, self.index)
    }

    /// Creates the pair of interfaces, both still on the machine's side.
    pub fn create(self) -> Result<()> {
        self.remove();
        let (interface, peer) = (self.interface(), self.peer());
        check(&format!("ip link add {interface} type veth peer name {peer}"))?;
        check(&format!("ip addr add {}/30 dev {interface}", self.host()))?;
        check(&format!("ip link set {interface} up"))
    }

    /// Removes the pair, wherever the cluster's end is.
    pub fn remove(self) {
        // Absent is what we want; what stays is found by `leaks`.
        succeeds(&mut line(&format!("ip link delete {}", self.interface())));
    }
}

/// Takes the first number that no cluster holds and whose addresses the machine does not use, and clears away what a
/// killed holder left. The lock keeps the number; it is free again when its holder is gone.
pub fn take_link() -> Result<(Link, Lock)> {
    for index in 0..MAX_CLUSTERS {
        let link = Link { index };
        let Some(lock) = lock::try_exclusive(&lock_path(index))? else {
            continue;
        };
        link.remove();
        cgroups::remove(&link.cgroup())?;
        let prefixes = used_prefixes()?;
        if prefixes.iter().any(|prefix| prefix.contains(link.host())) {
            eprintln!("198.18.{index}.0/30 is in use on this machine; taking the next");
            lock.remove();
            continue;
        }
        return Ok((link, lock));
    }
    bail!(
        "no free address pair in 198.18.0.0/16 for another cluster\n\
         hint: `cargo xtask kube status` lists the clusters of this machine"
    )
}

/// Removes interfaces and cgroups that killed owners left: those whose number is not locked.
pub fn sweep() -> Result<()> {
    for index in 0..MAX_CLUSTERS {
        if let Some(lock) = lock::try_exclusive(&lock_path(index))? {
            let link = Link { index };
            if Path::new("/sys/class/net").join(link.interface()).exists() {
                link.remove();
            }
            cgroups::remove(&link.cgroup())?;
            lock.remove();
        }
    }
    Ok(())
}

/// The machine's interfaces that clusters made.
pub fn interfaces() -> Result<Vec<String>> {
    let text = output(&mut line("ip -j link show"))?;
    let links: Vec<Value> = serde_json::from_str(&text).context("`ip -j link` printed no JSON")?;
    let names = links.iter().filter_map(|link| link["ifname"].as_str());
    Ok(names.filter(|name| name.starts_with(INTERFACE_PREFIX)).map(str::to_owned).collect())
}

/// Those of the names (of interfaces, of cgroups) whose number no cluster holds.
pub fn unheld(names: &[String]) -> Vec<String> {
    let number = |name: &str| -> Option<u8> {
        let digits = name.trim_end_matches('p').rsplit(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    };
    let held = |name: &str| {
        let lock = number(name).map(|index| lock::try_exclusive(&lock_path(index)));
        matches!(lock, Some(Ok(None)))
    };
    names.iter().filter(|name| !held(name)).cloned().collect()
}

/// Numbers are the machine's, not one user's or checkout's: interfaces and cgroups are named after them.
fn lock_path(index: u8) -> PathBuf {
    let folder = if Path::new("/run/lock").is_dir() { "/run/lock" } else { "/tmp" };
    Path::new(folder).join(format!("sympozium-kube-{index}.lock"))
}

/// An IPv4 prefix, as routes name them.
#[derive(Debug, PartialEq, Eq)]
struct Prefix {
    address: Ipv4Addr,
    bits: u32,
}

impl Prefix {
    /// Reads `address` or `address/bits`; `default` is none, because everything is in it.
    fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/').unwrap_or((text, "32"));
        Some(Self { address: address.parse().ok()?, bits: bits.parse().ok()? })
    }

    /// Whether the /30 of `address` overlaps this prefix.
    fn contains(&self, address: Ipv4Addr) -> bool {
        let mask = u32::MAX.checked_shl(32 - self.bits.min(30)).unwrap_or(0);
        self.address.to_bits() & mask == address.to_bits() & mask
    }
}

fn used_prefixes() -> Result<Vec<Prefix>> {
    let text = output(&mut line("ip -j -4 route show table all"))?;
    let routes: Vec<Value> = serde_json::from_str(&text).context("`ip -j route` printed no JSON")?;
    Ok(routes.iter().filter_map(|route| Prefix::parse(route["dst"].as_str()?)).collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sympozium_testkit::wait_until;

    use super::*;

    #[test]
    fn what_no_cluster_holds_is_left_over() {
        let names =
            ["szkube200", "szkube201p", "/sys/fs/cgroup/memory/sympozium-kube-202", "szkubeX"].map(str::to_owned);
        // A process that another test starts has every descriptor, and with it the lock, from its fork to its exec.
        let patience = Duration::from_secs(60);
        let take = |index| lock::exclusive_within(&lock_path(index), patience).unwrap().unwrap();
        assert!(wait_until(patience, || unheld(&names) == names));
        let held = take(202);
        let others = [&names[..2], &names[3..]].concat();
        assert!(wait_until(patience, || unheld(&names) == others));
        for index in [200, 201] {
            take(index).remove();
        }
        held.remove();
    }

    #[test]
    fn a_pair_collides_with_wider_equal_and_narrower_routes() {
        let host = Link { index: 7 }.host();
        for text in ["198.18.0.0/15", "198.18.7.0/30", "198.18.7.2", "198.18.7.1/32"] {
            assert!(Prefix::parse(text).unwrap().contains(host), "{text}");
        }
        for text in ["198.18.8.0/24", "10.0.0.0/8", "198.18.7.4/30"] {
            assert!(!Prefix::parse(text).unwrap().contains(host), "{text}");
        }
        assert_eq!(Prefix::parse("default"), None);
    }
}
