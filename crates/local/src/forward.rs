//! Forwards from loopback in a skill's sandbox to the gateway's socket. Programs know proxies and hosts by address, and
//! a sandbox has no network: this listens at the addresses that they try, and passes all bytes on unchanged. The
//! gateway decides what may be reached.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use sympozium_gateway::forward::{Forward, Forwarder, GatewayAddress};
use sympozium_ipc::credential::Credential;
use sympozium_program::Failure;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::Semaphore;

use crate::sandbox_spec::{GATEWAY_DIRECTORY, GATEWAY_SOCKET};
use crate::state::read_bounded;

/// The loopback port at which a skill reaches the gateway as a proxy.
pub const PROXY_PORT: u16 = 3128;
/// Concurrent connections to the proxy.
const MAX_CONNECTIONS: usize = 256;
/// Pause after a failed accept, such as when the system is out of descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);
/// Hosts that can have a loopback address of their own.
const MAX_HOSTS: usize = 250;

/// The loopback address of the host with this number.
pub fn host_address(number: usize) -> Option<Ipv4Addr> {
    let last = u8::try_from(number + 1).ok()?;
    (number < MAX_HOSTS).then(|| Ipv4Addr::new(127, 1, 0, last))
}

/// Forward connections of a skill's programs to the gateway.
#[derive(Debug, Parser)]
#[command(name = "gateway-forward", hide = true)]
struct Arguments {
    /// The port at which the gateway is a proxy.
    #[arg(long)]
    proxy: u16,
    /// An address to listen at, and the host and port behind it.
    #[arg(long = "forward", value_name = "ADDRESS:PORT=HOST:PORT", value_parser = str::parse::<Forward>)]
    forwards: Vec<Forward>,
    /// The file with the proxy's address, credential included.
    #[arg(long, default_value = "/run/sympozium/proxy")]
    credential: PathBuf,
}

/// The entry point of the program.
pub fn main(arguments: &[OsString]) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => error.exit(),
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => Failure::from(error).print(),
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let socket = Path::new(GATEWAY_DIRECTORY).join(GATEWAY_SOCKET);
    let credential = read_credential(&arguments.credential)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the async runtime")?;
    runtime.block_on(async {
        let proxy = SocketAddr::from((Ipv4Addr::LOCALHOST, arguments.proxy));
        let proxy = TcpListener::bind(proxy).await.context("cannot listen on loopback")?;
        let gateway = GatewayAddress::Unix(socket.clone());
        let forwarder = Forwarder::bind(&arguments.forwards, gateway, &credential).await;
        let forwarder = forwarder.context("cannot listen on loopback")?;
        tokio::join!(forwarder.run(), relay(proxy, socket));
        Ok(())
    })
}

/// Reads the credential from the URL of the proxy.
fn read_credential(path: &Path) -> anyhow::Result<Credential> {
    let bytes = read_bounded(path, 4096)?;
    let text = zeroize::Zeroizing::new(String::from_utf8(bytes).context("the proxy's address is not UTF-8")?);
    let pair = text.trim().strip_prefix("http://").and_then(|rest| rest.split_once('@'));
    let pair = pair.and_then(|(pair, _)| pair.split_once(':'));
    let (user, password) = pair.context("the proxy's address has no credential")?;
    Ok(Credential { user: user.to_owned(), password: password.to_owned().into() })
}

async fn relay(listener: TcpListener, socket: PathBuf) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let Ok(seat) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        let mut client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(_) => {
                tokio::time::sleep(ACCEPT_BACKOFF).await;
                continue;
            }
        };
        let socket = socket.clone();
        tokio::spawn(async move {
            // If the gateway is gone, the client sees its connection close.
            if let Ok(mut gateway) = UnixStream::connect(&socket).await {
                let _ = copy_bidirectional(&mut client, &mut gateway).await;
            }
            drop(seat);
        });
    }
}
