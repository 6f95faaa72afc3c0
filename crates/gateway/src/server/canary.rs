//! The canary: answers every client, so that a pod can check whether its NetworkPolicy confines it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use sympozium_program::Failure;
use sympozium_program::listen::{ConnectionBounds, bind, serve_short};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

const BOUNDS: ConnectionBounds = ConnectionBounds { total: 64, of_peer: 8, timeout: Duration::from_secs(5) };
const GREETING: &[u8] = b"sympozium-gateway canary: this pod is not held in by its NetworkPolicy\n";

/// Sends a greeting to every client, on the same address as the gateway, until `closing` is ready.
pub async fn serve_canary(
    beside: Option<SocketAddr>,
    port: u16,
    closing: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Failure> {
    let address = beside.map_or(IpAddr::from(Ipv4Addr::LOCALHOST), |gateway| gateway.ip());
    let listener = bind(SocketAddr::new(address, port)).await?;
    tracing::info!(address = ?listener.local_addr().ok(), "the canary listens");
    tokio::spawn(serve_short(listener, BOUNDS, closing, send_greeting));
    Ok(())
}

async fn send_greeting(mut stream: TcpStream) {
    let _ = stream.write_all(GREETING).await;
    let _ = stream.shutdown().await;
}
