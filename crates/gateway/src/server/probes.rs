//! The sockets besides the one for parts of runs: probes and metrics, and the canary.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use sympozium_program::Failure;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::listen::{ACCEPT_BACKOFF, bind};
use super::peer_limiter::PeerLimiter;
use crate::metrics::CONTENT_TYPE;

/// Maximum number of connections of probes, or to the canary.
const MAX_PROBES: usize = 64;
/// The same from one address: a silent client must not keep the kubelet out.
const MAX_PROBES_OF_PEER: usize = 8;
/// Timeout of one connection.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
pub const CANARY_GREETING: &[u8] = b"sympozium-gateway canary: this pod is not held in by its NetworkPolicy\n";

/// Sends a greeting to every client, on the same address as the gateway.
pub async fn serve_canary(
    beside: Option<SocketAddr>,
    port: u16,
    closing: watch::Receiver<bool>,
) -> Result<(), Failure> {
    let address = beside.map_or(IpAddr::from(Ipv4Addr::LOCALHOST), |it| it.ip());
    let listener = bind(SocketAddr::new(address, port)).await?;
    tracing::info!(address = ?listener.local_addr().ok(), "the canary listens");
    tokio::spawn(serve_short(listener, closing, send_greeting));
    Ok(())
}

async fn send_greeting(mut stream: TcpStream) {
    let _ = stream.write_all(CANARY_GREETING).await;
    let _ = stream.shutdown().await;
}

pub trait ProbeHandler: Send + Sync + 'static {
    /// Whether runs can be served, or why not.
    fn check_ready(&self) -> Result<(), &'static str>;
    fn metrics(&self) -> String;
}

/// Serves `GET /healthz`, `/readyz` and `/metrics`.
pub async fn serve_probes(
    address: SocketAddr,
    closing: watch::Receiver<bool>,
    probed: Arc<impl ProbeHandler>,
) -> Result<(), Failure> {
    let listener = bind(address).await?;
    tracing::info!(address = ?listener.local_addr().ok(), "listening for probes");
    let answer = move |stream| answer_probe(stream, Arc::clone(&probed));
    tokio::spawn(serve_short(listener, closing, answer));
    Ok(())
}

async fn answer_probe(mut stream: TcpStream, probed: Arc<impl ProbeHandler>) {
    let mut bytes = [0; 1024];
    let mut filled = 0;
    // The head of a probe is short; a longer one is not answered.
    while !bytes[..filled].ends_with(b"\r\n\r\n") {
        match stream.read(&mut bytes[filled..]).await {
            Ok(count @ 1..) => filled += count,
            _ => return,
        }
    }
    let text = "text/plain";
    let line = bytes[..filled].split(|byte| *byte == b'\r').next();
    let words: Vec<&[u8]> = line.unwrap_or_default().split(|byte| *byte == b' ').collect();
    let path = match words[..] {
        [b"GET", path, version] if version.starts_with(b"HTTP/1.") => path,
        _ => b"",
    };
    let (status, kind, body) = match path {
        b"/healthz" => ("200 OK", text, "ok\n".to_owned()),
        b"/readyz" => match probed.check_ready() {
            Ok(()) => ("200 OK", text, "ok\n".to_owned()),
            Err(why) => ("503 Service Unavailable", text, format!("not ready: {why}\n")),
        },
        b"/metrics" => ("200 OK", CONTENT_TYPE, probed.metrics()),
        _ => {
            let body = "error: ask for /healthz, /readyz or /metrics\n".to_owned();
            ("404 Not Found", text, body)
        }
    };
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// Serves a few short connections at a time.
async fn serve_short<F>(listener: TcpListener, mut closing: watch::Receiver<bool>, answer: impl Fn(TcpStream) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(MAX_PROBES));
    let peers = PeerLimiter::new(MAX_PROBES_OF_PEER);
    loop {
        let accepting = async {
            let seat = Arc::clone(&room).acquire_owned().await;
            (seat, listener.accept().await)
        };
        let (seat, accepted) = tokio::select! {
            accepted = accepting => accepted,
            _ = closing.wait_for(|closing| *closing) => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                let Some(peer_seat) = peers.acquire(peer.ip()) else {
                    continue;
                };
                let answering = answer(stream);
                tokio::spawn(async move {
                    let _ = timeout(PROBE_TIMEOUT, answering).await;
                    drop((seat, peer_seat));
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_BACKOFF).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::net::TcpSocket;

    use super::*;

    async fn from(own: &str, to: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("{own}:0").parse().unwrap()).unwrap();
        socket.connect(to).await.unwrap()
    }

    #[tokio::test]
    async fn who_says_nothing_keeps_no_other_address_from_being_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_close, closing) = watch::channel(false);
        // Answers every client that has sent something.
        tokio::spawn(serve_short(listener, closing, async |mut stream: TcpStream| {
            if stream.read_u8().await.is_ok() {
                let _ = stream.write_all(b"ok").await;
            }
        }));
        // Done anew where the machine was so slow that the silent ones may have been given up.
        for _ in 0..10 {
            let started = Instant::now();
            let mut silent = Vec::new();
            for _ in 0..2 * MAX_PROBES {
                silent.push(from("127.0.0.2", address).await);
            }
            let mut kubelet = from("127.0.0.3", address).await;
            kubelet.write_all(b"?").await.unwrap();
            let mut answer = String::new();
            let read = timeout(Duration::from_secs(60), kubelet.read_to_string(&mut answer)).await;
            assert!(read.is_ok_and(|it| it.is_ok()));
            assert_eq!(answer, "ok");
            if started.elapsed() < PROBE_TIMEOUT {
                return;
            }
        }
        panic!("who says nothing keeps another address waiting");
    }
}
