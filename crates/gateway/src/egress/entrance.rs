//! Where clients come in: they are counted, and it is found out whether they want the proxy or the run API.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::server::TlsStream;

use super::Gateway;
use super::client::{Client, Opening};
use super::decide::Refusal;
use crate::admission::Permit;
use crate::events::Reason;
use crate::outside::Outside;
use crate::run_api::{self, Credentials, Decider, Identify, Prefixed, Reporter, RunApi, Scheduler, Service};

/// Names of what is spoken inside of TLS.
mod protocol {
    /// The proxy.
    pub const HTTP_1: &[u8] = b"http/1.1";
    /// The run API.
    pub const HTTP_2: &[u8] = b"h2";
}

/// The run API is served already.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the run API is served already")]
pub struct ServedAlready;

impl<O: Outside> Gateway<O> {
    /// Serves the [run API](crate::run_api) from now on, on every connection that speaks HTTP/2. Without this there is the
    /// way out only. Which it is does not change later: whoever does the work is chosen once.
    ///
    /// # Errors
    ///
    /// When it was called before.
    pub fn serve_run_api<I, D, R, S>(&self, api: RunApi<I, D, R, S>) -> Result<(), ServedAlready>
    where
        I: Identify,
        D: Decider,
        R: Reporter,
        S: Scheduler,
    {
        let service = Service::new(api, Arc::clone(&self.plans), Arc::clone(&self.events));
        let set = self.run_api.set(Arc::new(service));
        set.map_err(|_| ServedAlready)
    }

    /// Says whose a token is by the keys of this gateway.
    pub fn credentials(&self) -> Credentials {
        Credentials::new(Arc::clone(&self.keys))
    }

    /// What a server of TLS before [`Self::serve_encrypted`] offers to speak inside, the preferred first: a client that
    /// speaks both wants the proxy, for a bridge asks for the run API alone.
    pub fn protocols(&self) -> Vec<Vec<u8>> {
        match self.run_api.get() {
            Some(_) => vec![protocol::HTTP_1.to_vec(), protocol::HTTP_2.to_vec()],
            None => Vec::new(),
        }
    }

    /// Serves one client that has no address, if there is room for it, until its connection ends. Where the run API is
    /// served, its first bytes say which it wants.
    pub async fn serve<C>(&self, stream: C)
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
    {
        match self.admission.admit(None) {
            Ok(permit) => self.serve_admitted(stream, permit).await,
            Err(reason) => {
                let connection = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
                self.refused(connection, &Refusal::of(reason));
                self.turn_away(stream, reason).await;
            }
        }
    }

    /// Serves one client that was [admitted](crate::admission::Admission::admit), as [`Self::serve`] does.
    pub async fn serve_admitted<C>(&self, stream: C, permit: Permit)
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
    {
        self.serve_as(stream, Spoken::ByFirstBytes, permit).await;
    }

    /// Tells a client that was not admitted why.
    pub async fn turn_away<C>(&self, stream: C, reason: Reason)
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
    {
        Client::new(stream).refuse(reason).await;
    }

    /// As [`Self::serve_admitted`], and the run API is not there: what bridges say is for encrypted connections.
    pub async fn serve_proxy<C>(&self, stream: C, permit: Permit)
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
    {
        self.serve_as(stream, Spoken::Proxy, permit).await;
    }

    /// As [`Self::serve_admitted`], where TLS has agreed on what is spoken: one of [`Self::protocols`], or nothing, which means
    /// the proxy.
    pub fn serve_encrypted<C>(&self, stream: TlsStream<C>, permit: Permit) -> impl Future<Output = ()> + Send
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let spoken = match stream.get_ref().1.alpn_protocol() {
            Some(protocol::HTTP_2) => Spoken::RunApi,
            _ => Spoken::Proxy,
        };
        // It has a kilobyte, of which each step that it is handed on through would hold a copy's room.
        self.serve_as(Box::new(stream), spoken, permit)
    }

    async fn serve_as<C>(&self, stream: C, spoken: Spoken, permit: Permit)
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let connection = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
        let mut client = Client::new(stream);
        if let Some(served) = self.run_api.get() {
            let opening = match spoken {
                Spoken::Proxy => Opening::Other,
                Spoken::RunApi => Opening::RunApi,
                Spoken::ByFirstBytes => self.opening(&mut client).await,
            };
            match opening {
                Opening::Other => {}
                Opening::Gone => return,
                Opening::RunApi => {
                    let stream = Prefixed::new(client.buffered, client.stream);
                    let ending = self.ending.subscribe();
                    let patience = self.settings.head_deadline;
                    let served = Arc::clone(served);
                    let serving = run_api::serve(served, stream, (connection, permit), ending, patience);
                    return Box::pin(serving).await;
                }
            }
        }
        self.proxy(connection, client, permit).await;
    }

    /// Which of the two a client wants.
    async fn opening<C>(&self, client: &mut Client<C>) -> Opening
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let mut ending = self.ending.subscribe();
        tokio::select! {
            biased;
            _ = ending.wait_for(|ending| *ending) => Opening::Gone,
            opening = client.opening(&self.settings) => opening,
        }
    }
}

/// What a client speaks, as far as that is known before its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spoken {
    ByFirstBytes,
    Proxy,
    RunApi,
}
