//! A server on loopback that takes one request on each connection, remembers it, and answers as the test says.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// What a server does with a request.
pub enum Reply {
    /// Says this, and ends the connection.
    Whole(Vec<u8>),
    /// Says this, then the piece again and again until the other side has gone, or so many times.
    Repeated { head: Vec<u8>, piece: Vec<u8>, times: u64 },
    /// Says this, and then nothing until the other side has gone.
    Stalled(Vec<u8>),
}

impl Reply {
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

    /// A way to somewhere else.
    pub fn redirect(location: &str) -> Self {
        Self::with(302, &format!("Location: {location}\r\n"), "")
    }
}

type Answer = Arc<dyn Fn(&str) -> Reply + Send + Sync>;

/// A server. A copy is the same one.
#[derive(Clone)]
pub struct Site {
    pub address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    written: Arc<AtomicU64>,
    open: Arc<AtomicUsize>,
}

impl Site {
    /// A server that speaks plain HTTP. The function gets the head of the request.
    pub async fn plain(answer: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Self {
        Self::start(None, Arc::new(answer)).await
    }

    /// One that speaks TLS.
    pub async fn encrypted(config: Arc<ServerConfig>, answer: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Self {
        Self::start(Some(config.into()), Arc::new(answer)).await
    }

    async fn start(tls: Option<TlsAcceptor>, answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let site = Self {
            address: listener.local_addr().expect("an address"),
            requests: Arc::default(),
            written: Arc::default(),
            open: Arc::default(),
        };
        let started = site.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (site, tls, answer) = (site.clone(), tls.clone(), Arc::clone(&answer));
                tokio::spawn(async move {
                    site.open.fetch_add(1, Ordering::SeqCst);
                    match tls {
                        None => site.serve(stream, &answer).await,
                        // A client that does not trust us ends here.
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => site.serve(stream, &answer).await,
                            Err(_) => None,
                        },
                    };
                    site.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        started
    }

    /// The heads of requests so far.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("not poisoned").clone()
    }

    /// The same, and they are forgotten.
    pub fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().expect("not poisoned"))
    }

    /// Bytes of bodies that could be written.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::SeqCst)
    }

    /// Connections that have not ended.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Ends early, with nothing, when the client does.
    async fn serve<S>(&self, mut stream: S, answer: &Answer) -> Option<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.ok()?);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        self.requests.lock().expect("not poisoned").push(head.clone());
        match answer(&head) {
            Reply::Whole(bytes) => stream.write_all(&bytes).await.ok()?,
            Reply::Repeated { head, piece, times } => {
                stream.write_all(&head).await.ok()?;
                for _ in 0..times {
                    stream.write_all(&piece).await.ok()?;
                    self.written.fetch_add(piece.len() as u64, Ordering::SeqCst);
                }
            }
            Reply::Stalled(bytes) => {
                stream.write_all(&bytes).await.ok()?;
                stream.flush().await.ok()?;
                while stream.read_u8().await.is_ok() {}
            }
        }
        stream.shutdown().await.ok()
    }
}
