//! Listening sockets, and bounds for those that serve a few short connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::failure::Failure;
use crate::peer_limiter::PeerLimiter;

/// The pause after a failed accept, when the system has no room for another connection.
pub const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

/// Binds a TCP socket.
///
/// # Errors
///
/// When the address is in use, or not of this machine.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"));
    listener.map_err(|error| Failure::new(error, "is the port in use, or reserved? choose another address"))
}

/// Bounds of a socket whose clients need a connection for a moment only.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionBounds {
    /// Concurrent connections. Further ones wait to be accepted.
    pub total: usize,
    /// Concurrent connections of one address, so that a silent client cannot keep the kubelet out. Further ones are
    /// closed.
    pub of_peer: usize,
    /// Duration of a connection. Then it is cut.
    pub timeout: Duration,
}

/// Serves connections within their bounds until `closing` is ready. Connections that are open then are not cut.
pub async fn serve_short<F>(
    listener: TcpListener,
    bounds: ConnectionBounds,
    closing: impl Future<Output = ()>,
    serve: impl Fn(TcpStream) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    tokio::select! {
        () = accept(listener, bounds, serve) => {}
        () = closing => {}
    }
}

async fn accept<F>(listener: TcpListener, bounds: ConnectionBounds, serve: impl Fn(TcpStream) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let slots = Arc::new(Semaphore::new(bounds.total));
    let peers = PeerLimiter::new(bounds.of_peer);
    // The semaphore is never closed.
    while let Ok(slot) = Arc::clone(&slots).acquire_owned().await {
        let Ok((stream, peer)) = listener.accept().await else {
            sleep(ACCEPT_BACKOFF).await;
            continue;
        };
        let Some(peer_slot) = peers.acquire(peer.ip()) else {
            continue;
        };
        let serving = serve(stream);
        tokio::spawn(async move {
            // A client that is too slow gets no answer.
            let _ = timeout(bounds.timeout, serving).await;
            drop((slot, peer_slot));
        });
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Instant;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpSocket;

    use super::*;

    const BOUNDS: ConnectionBounds = ConnectionBounds { total: 64, of_peer: 8, timeout: Duration::from_secs(5) };

    async fn connect_from(source: &str, target: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("{source}:0").parse().unwrap()).unwrap();
        socket.connect(target).await.unwrap()
    }

    #[tokio::test]
    async fn silent_clients_keep_no_other_address_from_being_served() {
        let listener = bind(([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = listener.local_addr().unwrap();
        // Answers every client that has sent something.
        tokio::spawn(serve_short(listener, BOUNDS, pending(), async |mut stream: TcpStream| {
            if stream.read_u8().await.is_ok() {
                let _ = stream.write_all(b"ok").await;
            }
        }));
        // Repeated if the machine was so slow that the silent clients may have been cut.
        for _ in 0..10 {
            let started = Instant::now();
            let mut silent = Vec::new();
            for _ in 0..2 * BOUNDS.total {
                silent.push(connect_from("127.0.0.2", address).await);
            }
            let mut kubelet = connect_from("127.0.0.3", address).await;
            kubelet.write_all(b"?").await.unwrap();
            let mut answer = String::new();
            let read = timeout(Duration::from_secs(60), kubelet.read_to_string(&mut answer)).await;
            assert!(read.is_ok_and(|read| read.is_ok()));
            assert_eq!(answer, "ok");
            if started.elapsed() < BOUNDS.timeout {
                return;
            }
        }
        panic!("silent clients keep another address waiting");
    }

    #[tokio::test]
    async fn a_socket_that_closes_accepts_no_more() {
        let listener = bind(([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = listener.local_addr().unwrap();
        serve_short(listener, BOUNDS, std::future::ready(()), |_| pending()).await;
        assert!(TcpStream::connect(address).await.is_err());
    }
}
