//! Connections of the program under test, and what becomes of their requests.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::SendRequest;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore, watch};

use super::state::{Action, Fault, Moment, Refusal, Signal, State};
use super::upstream::Upstream;
use super::writes::is_watch;
use super::{MOST_CONNECTIONS, MOST_REQUEST_BYTES};

/// How long another process may hold the port when it is opened again.
const PORT_PATIENCE: Duration = Duration::from_millis(10);

type Answer = Response<BoxBody<Bytes, anyhow::Error>>;

/// Serves for as long as it is polled. The port is closed while the state says so.
pub async fn listen(listener: std::net::TcpListener, address: SocketAddr, upstream: Arc<Upstream>, state: Arc<State>) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut signal = state.subscribe();
    let mut first = Some(listener);
    loop {
        // A port that another took in the meantime comes back, or the test says what it waited for in vain.
        let listener = match first.take() {
            Some(listener) => from_std(listener),
            None => TcpListener::bind(address).await,
        };
        let Ok(listener) = listener else {
            tokio::time::sleep(PORT_PATIENCE).await;
            continue;
        };
        state.set_listening(true);
        loop {
            tokio::select! {
                _ = signal.wait_for(|it| it.refusing) => break,
                accepted = listener.accept() => {
                    let (Ok((socket, _)), Ok(place)) =
                        (accepted, Arc::clone(&places).try_acquire_owned())
                    else {
                        continue;
                    };
                    let (upstream, state) = (Arc::clone(&upstream), Arc::clone(&state));
                    tokio::spawn(async move {
                        connection(socket, upstream, state).await;
                        drop(place);
                    });
                }
            }
        }
        drop(listener);
        state.set_listening(false);
        // The state outlives this loop, so its sender is never gone.
        let _ = signal.wait_for(|it| !it.refusing).await;
    }
}

fn from_std(listener: std::net::TcpListener) -> std::io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// One connection, until it is closed or cut.
async fn connection(socket: TcpStream, upstream: Arc<Upstream>, state: Arc<State>) {
    let _ = socket.set_nodelay(true);
    let mut signal = state.subscribe();
    let epoch = signal.borrow().epoch;
    let line = Arc::new(Line { upstream, state, sender: Mutex::new(None) });
    let service = service_fn(move |request| {
        let line = Arc::clone(&line);
        async move { line.handle(request).await }
    });
    let serving = http1::Builder::new().serve_connection(TokioIo::new(socket), service);
    tokio::select! {
        _ = serving => {}
        _ = signal.wait_for(|it| it.epoch != epoch) => {}
    }
}

/// A connection of the program and the one to the API server that belongs to it.
struct Line {
    upstream: Arc<Upstream>,
    state: Arc<State>,
    sender: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

impl Line {
    /// An error cuts the connection.
    async fn handle(&self, request: Request<Incoming>) -> Result<Answer> {
        let (head, body) = request.into_parts();
        let Ok(body) = Limited::new(body, MOST_REQUEST_BYTES).collect().await else {
            return refusal(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", None);
        };
        let request = Request::from_parts(head, body.to_bytes());
        let mut signal = self.state.subscribe();
        signal.wait_for(|it| !it.held).await?;
        let watch = is_watch(request.uri().query());
        if watch {
            return self.watch(request, signal).await;
        }
        let decision = self.state.decide(request.method().as_str(), request.uri().path());
        let answered = |status: StatusCode| self.state.answered(decision.place, status.as_u16());
        match decision.action {
            Action::Forward => {
                let answer = self.forward(request).await?;
                answered(answer.status());
                // What was answered while everything is held waits too.
                signal.wait_for(|it| !it.held).await?;
                Ok(answer.map(|body| body.map_err(anyhow::Error::from).boxed()))
            }
            Action::Stop(Moment::Before) => std::future::pending().await,
            Action::Stop(Moment::After) => {
                let answer = self.forward(request).await?;
                answered(answer.status());
                // To its end: then the API server is done with it.
                let _ = answer.into_body().collect().await?;
                self.state.stopped_after();
                std::future::pending().await
            }
            Action::Spoil(Fault::Refuse(how)) => refuse(how),
            Action::Spoil(Fault::LoseAnswer) => {
                let answer = self.forward(request).await?;
                answered(answer.status());
                let _ = answer.into_body().collect().await?;
                refuse(Refusal::Timeout)
            }
            Action::Spoil(Fault::Hang(time)) => {
                tokio::time::sleep(time).await;
                bail!("hung up")
            }
            Action::Spoil(Fault::Cut) => bail!("cut"),
        }
    }

    async fn watch(&self, request: Request<Bytes>, mut signal: watch::Receiver<Signal>) -> Result<Answer> {
        let at = signal.borrow().cut;
        let age = self.state.cut_after();
        let answer = self.forward(request).await?;
        let state = Arc::clone(&self.state);
        let cut = Box::pin(async move {
            let too_old = async {
                match age {
                    Some(age) => tokio::time::sleep(age).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = signal.wait_for(|it| it.cut != at) => {}
                () = too_old => {}
            }
            state.note_cut();
        });
        let held = self.state.subscribe();
        Ok(answer.map(|inner| Watched::new(inner, cut, held).boxed()))
    }

    async fn forward(&self, request: Request<Bytes>) -> Result<Response<Incoming>> {
        let mut sender = self.sender.lock().await;
        if sender.as_ref().is_none_or(SendRequest::is_closed) {
            *sender = Some(self.upstream.connect().await?);
        }
        let sender = sender.as_mut().context("there is no connection")?;
        sender.ready().await?;
        let mut request = request.map(Full::new);
        self.upstream.dress(request.headers_mut())?;
        Ok(sender.send_request(request).await?)
    }
}

/// What a watch sends, until it is cut; nothing while everything is held.
struct Watched {
    inner: Incoming,
    cut: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
    held: watch::Receiver<Signal>,
    released: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
}

impl Watched {
    fn new(
        inner: Incoming,
        cut: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
        held: watch::Receiver<Signal>,
    ) -> Self {
        Self { inner, cut, held, released: None }
    }
}

impl Body for Watched {
    type Data = Bytes;
    type Error = anyhow::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>>>> {
        if self.cut.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(anyhow::anyhow!("the watch was cut"))));
        }
        if self.released.is_none() && self.held.borrow().held {
            let mut held = self.held.clone();
            self.released = Some(Box::pin(async move {
                // Its sender is in the state, which this connection keeps alive.
                let _ = held.wait_for(|it| !it.held).await;
            }));
        }
        if let Some(released) = &mut self.released {
            if released.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.released = None;
        }
        Pin::new(&mut self.inner).poll_frame(context).map_err(anyhow::Error::from)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

fn refuse(how: Refusal) -> Result<Answer> {
    match how {
        Refusal::Conflict => refusal(StatusCode::CONFLICT, "Conflict", None),
        Refusal::TooManyRequests { retry_after_seconds } => {
            refusal(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", Some(retry_after_seconds))
        }
        Refusal::InternalError => refusal(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", None),
        Refusal::Timeout => refusal(StatusCode::GATEWAY_TIMEOUT, "Timeout", None),
    }
}

/// As an API server says it.
fn refusal(code: StatusCode, reason: &str, retry_after: Option<u32>) -> Result<Answer> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": format!("the test answers {} here", code.as_u16()),
        "reason": reason, "code": code.as_u16(),
    });
    let body = Full::new(Bytes::from(status.to_string()));
    let mut answer = Response::new(body.map_err(|never| match never {}).boxed());
    *answer.status_mut() = code;
    let json = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(CONTENT_TYPE, json);
    if let Some(seconds) = retry_after {
        answer.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    Ok(answer)
}
