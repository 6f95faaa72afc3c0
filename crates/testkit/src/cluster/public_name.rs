//! Names of the public network in a test cluster, which reaches nothing of it.
//!
//! The cluster's name server reads a file of hosts (`dns/hosts` in the cluster's folder) whenever it changes. Each name in it is
//! held by one test at a time, by a lock that the kernel drops with the process; what a killed test left there is replaced by the
//! next one that wants the name.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};

use super::eventually;
use super::lease::Lease;

/// Addresses for names: `192.31.196.0/24`, public ones of no provider (RFC 7535). Inside the cluster they lead where a test says;
/// there is no way from it to the real ones.
const NETWORK: [u8; 3] = [192, 31, 196];
/// How long the name server may take to notice.
const PATIENCE: Duration = Duration::from_secs(180);
/// How long one question may take.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
const PORT: u16 = 53;

/// A name of the public network that a test cluster's name server answers, for as long as this is held.
#[derive(Debug)]
pub struct PublicName {
    name: String,
    address: Ipv4Addr,
    hosts: Hosts,
    /// Held for as long as the name is this test's.
    _lock: File,
}

impl PublicName {
    /// Waits until no other test holds the name.
    pub(super) fn take(lease: &Lease, name: &str) -> Result<Self> {
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
        ensure!(name.contains('.') && name.chars().all(is_name), "{name:?} is no name of the public network");
        let state = lease.kubeconfig.ancestors().nth(2);
        let folder = state.context("a cluster's folder")?.join("dns");
        let lock = lock(&folder.join(format!("{name}.lock")))?;
        let hosts = Hosts { folder };
        let address = hosts.add(name)?;
        let held = Self { name: name.to_owned(), address, hosts, _lock: lock };
        eventually(&format!("the name server to answer {name} with {address}"), PATIENCE, || {
            Ok((ask(lease.address, name)? == Some(address)).then_some(()))
        })?;
        Ok(held)
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the name server answers.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }
}

impl Drop for PublicName {
    fn drop(&mut self) {
        // What stays is replaced by the next test that wants the name.
        let _ = self.hosts.change(|entries| {
            entries.retain(|(_, name)| *name != self.name);
            Ok(())
        });
    }
}

/// The file that the name server reads.
#[derive(Debug)]
struct Hosts {
    folder: PathBuf,
}

impl Hosts {
    /// Adds a name with an address that no other has.
    fn add(&self, name: &str) -> Result<Ipv4Addr> {
        let mut address = None;
        self.change(|entries| {
            entries.retain(|(_, other)| other != name);
            let [a, b, c] = NETWORK;
            let free = (1..u8::MAX)
                .map(|last| Ipv4Addr::new(a, b, c, last))
                .find(|it| entries.iter().all(|(used, _)| used != it))
                .context("no address is left for another name")?;
            entries.push((free, name.to_owned()));
            address = Some(free);
            Ok(())
        })?;
        address.context("no address was chosen")
    }

    /// Changes the file under a lock, and replaces it as a whole: a reader never sees half of a change.
    fn change(&self, change: impl FnOnce(&mut Vec<(Ipv4Addr, String)>) -> Result<()>) -> Result<()> {
        let _lock = lock(&self.folder.join("hosts.lock"))?;
        let path = self.folder.join("hosts");
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let mut entries = Vec::new();
        for line in text.lines() {
            let Some((address, name)) = line.split_once(' ') else {
                bail!("{} has a line {line:?}", path.display());
            };
            entries.push((address.parse().context("an address")?, name.to_owned()));
        }
        change(&mut entries)?;
        let text: String = entries.iter().map(|(address, name)| format!("{address} {name}\n")).collect();
        let draft = self.folder.join("hosts.draft");
        fs::write(&draft, text)
            .and_then(|()| fs::rename(&draft, &path))
            .with_context(|| format!("writing {}", path.display()))
    }
}

fn lock(path: &Path) -> Result<File> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .with_context(|| format!("opening {}", path.display()))?;
    flock(&file, FlockOperation::LockExclusive).with_context(|| format!("locking {}", path.display()))?;
    Ok(file)
}

/// The one IPv4 address that a name server answers a name with (RFC 1035, section 4).
fn ask(server: Ipv4Addr, name: &str) -> Result<Option<Ipv4Addr>> {
    // Id 1, recursion desired, one question.
    let mut question = vec![0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        question.push(u8::try_from(label.len()).context("a label of a name")?);
        question.extend(label.as_bytes());
    }
    // The root, type A, class IN.
    question.extend([0, 0, 1, 0, 1]);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).context("a socket")?;
    socket.set_read_timeout(Some(ANSWER_DEADLINE))?;
    socket.connect((server, PORT))?;
    socket.send(&question)?;
    let mut answer = [0; 512];
    let length = loop {
        match socket.recv(&mut answer) {
            // signal(7): with a timeout it is not restarted after a handler, such as that of SIGCHLD.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            received => break received.context("the name server's answer")?,
        }
    };
    Ok(one_address(&answer[..length]))
}

/// The address in an answer without error whose one record, at its end, is of four bytes.
fn one_address(answer: &[u8]) -> Option<Ipv4Addr> {
    let head: [u8; 12] = *answer.first_chunk()?;
    let one_record = head[3] & 0x0f == 0 && head[6..] == [0, 1, 0, 0, 0, 0];
    let last: [u8; 6] = *answer.last_chunk()?;
    let [0, 4, a, b, c, d] = last else {
        return None;
    };
    one_record.then_some(Ipv4Addr::new(a, b, c, d))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> (tempfile::TempDir, Hosts) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("hosts"), "").unwrap();
        let hosts = Hosts { folder: folder.path().to_owned() };
        (folder, hosts)
    }

    #[test]
    fn every_name_has_an_address_of_its_own() {
        let (folder, hosts) = hosts();
        let first = hosts.add("api.openai.com").unwrap();
        let second = hosts.add("api.anthropic.com").unwrap();
        assert_ne!(first, second);
        // What a killed test left of a name is replaced.
        assert_eq!(hosts.add("api.openai.com").unwrap(), first);
        let text = fs::read_to_string(folder.path().join("hosts")).unwrap();
        assert_eq!(text, "192.31.196.2 api.anthropic.com\n192.31.196.1 api.openai.com\n");
    }

    #[test]
    fn tests_side_by_side_lose_nothing() {
        let (folder, hosts) = hosts();
        std::thread::scope(|scope| {
            for number in 0..16 {
                let hosts = &hosts;
                scope.spawn(move || hosts.add(&format!("name{number}.test")).unwrap());
            }
        });
        let text = fs::read_to_string(folder.path().join("hosts")).unwrap();
        let addresses: std::collections::BTreeSet<_> = text.lines().filter_map(|it| it.split(' ').next()).collect();
        assert_eq!(addresses.len(), 16, "{text}");
    }

    #[test]
    fn an_answer_has_one_address_or_none() {
        let answer = |code: u8, records: u8, end: &[u8]| {
            let mut answer = vec![0, 1, 0x85, code, 0, 1, 0, records, 0, 0, 0, 0];
            answer.extend(end);
            answer
        };
        let good = answer(0, 1, &[0, 4, 192, 31, 196, 1]);
        assert_eq!(one_address(&good), Some(Ipv4Addr::new(192, 31, 196, 1)));
        for other in [
            answer(3, 1, &[0, 4, 192, 31, 196, 1]),
            answer(0, 0, &[0, 4, 192, 31, 196, 1]),
            answer(0, 1, &[0, 2, 192, 31, 196, 1]),
            Vec::new(),
        ] {
            assert_eq!(one_address(&other), None, "{other:?}");
        }
    }
}
