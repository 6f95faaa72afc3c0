//! A server on loopback that takes one request on each connection, records it, and answers as the test chooses.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// What a server does with a request.
pub enum Response {
    /// Sends this and closes the connection.
    Whole(Vec<u8>),
    /// Sends this, then the piece so many times, or until the client has gone.
    Repeated { head: Vec<u8>, piece: Vec<u8>, times: u64 },
    /// Sends this, and then nothing until the client has gone.
    Stalled(Vec<u8>),
}

impl Response {
    /// An answer with these headers, each with its line ending, and a body by its length.
    pub fn with(status: u16, headers: &str, body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref();
        let head = format!("HTTP/1.1 {status} Words\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
        Self::Whole([head.as_bytes(), body].concat())
    }

    /// A page of text.
    pub fn page(body: &str) -> Self {
        Self::with(200, "Content-Type: text/plain\r\n", body)
    }

    /// A redirect to another location.
    pub fn redirect(location: &str) -> Self {
        Self::with(302, &format!("Location: {location}\r\n"), "")
    }
}

impl From<&WebServer> for SocketAddr {
    fn from(server: &WebServer) -> Self {
        server.address
    }
}

type Answer = Arc<dyn Fn(&str) -> Response + Send + Sync>;

/// A server. Clones are the same one.
#[derive(Clone)]
pub struct WebServer {
    pub address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    written: Arc<AtomicU64>,
    open: Arc<AtomicUsize>,
}

impl WebServer {
    /// A server that speaks plain HTTP. The function gets the head of the request.
    pub async fn plain(answer: impl Fn(&str) -> Response + Send + Sync + 'static) -> Self {
        Self::start(None, Arc::new(answer)).await
    }

    /// One that speaks TLS.
    pub async fn encrypted(
        config: Arc<ServerConfig>,
        answer: impl Fn(&str) -> Response + Send + Sync + 'static,
    ) -> Self {
        Self::start(Some(config.into()), Arc::new(answer)).await
    }

    async fn start(tls: Option<TlsAcceptor>, answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let server = Self {
            address: listener.local_addr().expect("an address"),
            requests: Arc::default(),
            written: Arc::default(),
            open: Arc::default(),
        };
        let started = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (server, tls, answer) = (server.clone(), tls.clone(), Arc::clone(&answer));
                tokio::spawn(async move {
                    server.open.fetch_add(1, Ordering::SeqCst);
                    match tls {
                        None => server.serve(stream, &answer).await,
                        // A client that does not trust us ends here.
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => server.serve(stream, &answer).await,
                            Err(_) => None,
                        },
                    };
                    server.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        started
    }

    /// The heads of requests so far.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
    }

    /// The same, and forgets them.
    pub fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock())
    }

    /// Bytes of bodies that could be written.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::SeqCst)
    }

    /// Connections that have not ended.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Ends early with `None` when the client does.
    async fn serve<S>(&self, mut stream: S, answer: &Answer) -> Option<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.ok()?);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        self.requests.lock().push(head.clone());
        match answer(&head) {
            Response::Whole(bytes) => stream.write_all(&bytes).await.ok()?,
            Response::Repeated { head, piece, times } => {
                stream.write_all(&head).await.ok()?;
                for _ in 0..times {
                    stream.write_all(&piece).await.ok()?;
                    self.written.fetch_add(piece.len() as u64, Ordering::SeqCst);
                }
            }
            Response::Stalled(bytes) => {
                stream.write_all(&bytes).await.ok()?;
                stream.flush().await.ok()?;
                while stream.read_u8().await.is_ok() {}
            }
        }
        stream.shutdown().await.ok()
    }
}
