//! Accepts clients: counts them, and detects whether they use the proxy or the run API.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::server::TlsStream;

use super::Gateway;
use super::client::{Client, Opening};
use super::decide::Refusal;
use crate::connection_limits::ConnectionSlot;
use crate::events::Reason;
use crate::network::NetworkAccess;
use crate::run_api::{
    self, CredentialTokens, PrefixedStream, QuestionHandler, ReportStore, RunApi, Scheduler, Service,
    TokenAuthenticator,
};

/// ALPN protocols.
mod protocol {
    pub const HTTP_1: &[u8] = b"http/1.1";
    pub const HTTP_2: &[u8] = b"h2";
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the run API is served already")]
pub struct AlreadyServed;

impl<O: NetworkAccess> Gateway<O> {
    /// Serves the [run API](crate::run_api) from now on, on every HTTP/2 connection. Without this call there is only
    /// the proxy. The handlers are set once and do not change.
    ///
    /// # Errors
    ///
    /// Returns an error if it was called before.
    pub fn serve_run_api<I, D, R, S>(&self, api: RunApi<I, D, R, S>) -> Result<(), AlreadyServed>
    where
        I: TokenAuthenticator,
        D: QuestionHandler,
        R: ReportStore,
        S: Scheduler,
    {
        let service = Service::new(api, Arc::clone(&self.plans), Arc::clone(&self.events));
        let set = self.run_api.set(Arc::new(service));
        set.map_err(|_| AlreadyServed)
    }

    /// Authenticates tokens by the keys of this gateway.
    pub fn credentials(&self) -> CredentialTokens {
        CredentialTokens::new(Arc::clone(&self.keys))
    }

    /// The ALPN protocols for `serve_tls`, the preferred one first: a client that offers both wants the proxy, because
    /// a bridge offers only that of the run API.
    pub fn alpn_protocols(&self) -> Vec<Vec<u8>> {
        match self.run_api.get() {
            Some(_) => vec![protocol::HTTP_1.to_vec(), protocol::HTTP_2.to_vec()],
            None => Vec::new(),
        }
    }

    /// Serves one client without an address, if there is room, until its connection ends. If the run API is served, the
    /// first bytes decide which of the two the client wants.
    pub async fn serve<C>(&self, stream: C)
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
    {
        match self.limiter.acquire(None) {
            Ok(permit) => self.serve_accepted(stream, permit).await,
            Err(reason) => {
                let connection = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
                self.emit_refusal(connection, &Refusal::from_reason(reason));
                self.refuse(stream, reason).await;
            }
        }
    }

    /// Serves one accepted client in the same way.
    pub async fn serve_accepted<C>(&self, stream: C, permit: ConnectionSlot)
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
    {
        self.serve_as(stream, ClientProtocol::Detect, permit).await;
    }

    /// Tells a client why its connection is refused.
    pub async fn refuse<C>(&self, stream: C, reason: Reason)
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
    {
        Client::new(stream).refuse(reason).await;
    }

    /// Like `serve_accepted`, but without the run API: requests of bridges must be encrypted.
    pub async fn serve_proxy<C>(&self, stream: C, permit: ConnectionSlot)
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
    {
        self.serve_as(stream, ClientProtocol::Proxy, permit).await;
    }

    /// Like `serve_accepted` for a TLS connection: its ALPN protocol decides. Without one it is the proxy.
    pub fn serve_tls<C>(&self, stream: TlsStream<C>, permit: ConnectionSlot) -> impl Future<Output = ()> + Send
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let spoken = match stream.get_ref().1.alpn_protocol() {
            Some(protocol::HTTP_2) => ClientProtocol::RunApi,
            _ => ClientProtocol::Proxy,
        };
        // Boxed: it has a kilobyte, and each future on the way would reserve room for it.
        self.serve_as(Box::new(stream), spoken, permit)
    }

    async fn serve_as<C>(&self, stream: C, spoken: ClientProtocol, permit: ConnectionSlot)
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let connection = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
        let mut client = Client::new(stream);
        if let Some(served) = self.run_api.get() {
            let opening = match spoken {
                ClientProtocol::Proxy => Opening::Other,
                ClientProtocol::RunApi => Opening::RunApi,
                ClientProtocol::Detect => self.detect_protocol(&mut client).await,
            };
            match opening {
                Opening::Other => {}
                Opening::Gone => return,
                Opening::RunApi => {
                    let stream = PrefixedStream::new(client.buffered, client.stream);
                    let ending = self.shutdown.subscribe();
                    let patience = self.settings.head_timeout;
                    let served = Arc::clone(served);
                    let serving = run_api::serve(served, stream, (connection, permit), ending, patience);
                    return Box::pin(serving).await;
                }
            }
        }
        self.run_proxy(connection, client, permit).await;
    }

    /// Detects which of the two a client wants.
    async fn detect_protocol<C>(&self, client: &mut Client<C>) -> Opening
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let mut ending = self.shutdown.subscribe();
        tokio::select! {
            biased;
            _ = ending.wait_for(|ending| *ending) => Opening::Gone,
            opening = client.detect_protocol(&self.settings) => opening,
        }
    }
}

/// The protocol of a client, as far as it is known before the first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientProtocol {
    Detect,
    Proxy,
    RunApi,
}
