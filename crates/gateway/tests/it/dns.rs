//! A DNS server that says what the test wants, and remembers what it was asked.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

const A: u16 = 1;
const CNAME: u16 = 5;
const AAAA: u16 = 28;

/// What a name has. The `usize` counts the questions for it and this kind of address before.
pub type Answers = fn(name: &str, asked_before: usize) -> Answer;

/// What is answered.
#[derive(Clone)]
pub enum Answer {
    /// These addresses, of whichever family is asked for.
    Addresses(Vec<&'static str>),
    /// These, and that they may be kept for an hour.
    Lasting(Vec<&'static str>),
    /// Another name, which has these.
    Alias(&'static str, Vec<&'static str>),
    /// There is no such name.
    None,
    /// Nothing at all.
    Silence,
    /// Over UDP that it does not fit; over TCP these.
    Truncated(Vec<&'static str>),
    /// First this under another number, then that under the right one.
    Spoofed(Vec<&'static str>, Vec<&'static str>),
    /// That something is wrong.
    Failure,
}

pub fn addresses(list: &[&'static str]) -> Answer {
    Answer::Addresses(list.to_vec())
}

/// Everybody is at one public address.
pub fn everybody(_: &str, _: usize) -> Answer {
    addresses(&["93.184.216.34"])
}

#[derive(Clone)]
pub struct Dns {
    pub address: SocketAddr,
    answers: Answers,
    asked: Arc<Mutex<Vec<(String, u16)>>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Transport {
    Udp,
    Tcp,
}

impl Dns {
    pub async fn start(answers: Answers) -> Self {
        let (udp, tcp, address) = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
            let address = udp.local_addr().expect("an address");
            // Another test may have the port for TCP.
            if let Ok(tcp) = TcpListener::bind(address).await {
                break (udp, tcp, address);
            }
        };
        let dns = Self { address, answers, asked: Arc::default() };
        tokio::spawn(dns.clone().over_udp(udp));
        tokio::spawn(dns.clone().over_tcp(tcp));
        dns
    }

    /// The names that were asked for, each once.
    pub fn asked(&self) -> Vec<String> {
        let asked = self.asked.lock().expect("not poisoned");
        let mut names: Vec<_> = asked.iter().map(|(name, _)| name.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    async fn over_udp(self, socket: UdpSocket) {
        let mut bytes = [0; 1500];
        while let Ok((count, from)) = socket.recv_from(&mut bytes).await {
            for reply in self.replies(&bytes[..count], Transport::Udp) {
                let _ = socket.send_to(&reply, from).await;
            }
        }
    }

    async fn over_tcp(self, listener: TcpListener) {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(self.clone().one_tcp(stream));
        }
    }

    async fn one_tcp(self, mut stream: TcpStream) -> std::io::Result<()> {
        loop {
            let mut question = vec![0; usize::from(stream.read_u16().await?)];
            stream.read_exact(&mut question).await?;
            for reply in self.replies(&question, Transport::Tcp) {
                let length = u16::try_from(reply.len()).expect("short");
                stream.write_u16(length).await?;
                stream.write_all(&reply).await?;
            }
        }
    }

    fn replies(&self, question: &[u8], transport: Transport) -> Vec<Vec<u8>> {
        let (name, kind, end) = parse(question);
        let before = {
            let mut asked = self.asked.lock().expect("not poisoned");
            let before = asked.iter().filter(|it| **it == (name.clone(), kind)).count();
            asked.push((name.clone(), kind));
            before
        };
        let reply = |records: Vec<Vec<u8>>, flags: u16| {
            let count = u16::try_from(records.len()).expect("few");
            [
                &question[..2],
                &(0x8180 | flags).to_be_bytes(),
                &1_u16.to_be_bytes(),
                &count.to_be_bytes(),
                &[0; 4],
                &question[12..end],
                &records.concat(),
            ]
            .concat()
        };
        let own = &question[12..end - 4];
        match (self.answers)(&name, before) {
            Answer::Addresses(list) => vec![reply(records(own, kind, &list), 0)],
            Answer::Alias(other, list) => {
                let other = written(other);
                let length = u16::try_from(other.len()).expect("short").to_be_bytes();
                let alias = [own, &head(CNAME), &length, &other].concat();
                let mut all = vec![alias];
                all.extend(records(&other, kind, &list));
                vec![reply(all, 0)]
            }
            Answer::Lasting(list) => {
                let mut all = records(own, kind, &list);
                for record in &mut all {
                    // After name, kind and class.
                    let at = own.len() + 4;
                    record[at..at + 4].copy_from_slice(&3600_u32.to_be_bytes());
                }
                vec![reply(all, 0)]
            }
            Answer::None => vec![reply(Vec::new(), 3)],
            Answer::Failure => vec![reply(Vec::new(), 2)],
            Answer::Silence => Vec::new(),
            Answer::Truncated(_) if transport == Transport::Udp => vec![reply(Vec::new(), 0x0200)],
            Answer::Truncated(list) => vec![reply(records(own, kind, &list), 0)],
            Answer::Spoofed(first, right) => {
                let mut forged = reply(records(own, kind, &first), 0);
                forged[0] ^= 0x55;
                vec![forged, reply(records(own, kind, &right), 0)]
            }
        }
    }
}

/// The name in lower case, the kind of record, and where the question ends.
fn parse(question: &[u8]) -> (String, u16, usize) {
    let mut labels = Vec::new();
    let mut at = 12;
    while question[at] != 0 {
        let end = at + 1 + usize::from(question[at]);
        labels.push(String::from_utf8_lossy(&question[at + 1..end]).to_ascii_lowercase());
        at = end;
    }
    let kind = u16::from_be_bytes([question[at + 1], question[at + 2]]);
    (labels.join("."), kind, at + 5)
}

fn written(name: &str) -> Vec<u8> {
    let labels = name.split('.').flat_map(|label| {
        let length = u8::try_from(label.len()).expect("short");
        [&[length], label.as_bytes()].concat()
    });
    labels.chain([0]).collect()
}

/// Kind, class, and no time to live at all.
fn head(kind: u16) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &[0, 1], &[0; 4]].concat()
}

fn records(name: &[u8], kind: u16, list: &[&str]) -> Vec<Vec<u8>> {
    let parsed = list.iter().map(|it| it.parse::<IpAddr>().expect("an address"));
    let bytes = parsed.filter_map(|address| match (address, kind) {
        (IpAddr::V4(it), A) => Some(it.octets().to_vec()),
        (IpAddr::V6(it), AAAA) => Some(it.octets().to_vec()),
        _ => None,
    });
    bytes
        .map(|address| {
            let length = u16::try_from(address.len()).expect("short").to_be_bytes();
            [name, &head(kind), &length, &address].concat()
        })
        .collect()
}
