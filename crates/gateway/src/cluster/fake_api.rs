//! A fake API server for tests of requests that must be sent once, or not at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// A request: its path, and its body if it has one.
#[derive(Debug)]
pub(super) struct FakeRequest {
    pub(super) path: String,
    pub(super) body: Value,
}

/// `None`: no response for as long as the test runs.
pub(super) type FakeResponse = Option<(u16, Value)>;

/// Number of requests.
#[derive(Debug, Clone, Default)]
pub(super) struct RequestCount(Arc<AtomicUsize>);

impl RequestCount {
    pub(super) fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// Starts the server.
pub(super) async fn serve(
    answer: impl Fn(&FakeRequest) -> FakeResponse + Send + Sync + 'static,
) -> (Client, RequestCount) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (answer, count) = (Arc::new(answer), RequestCount::default());
    let counted = count.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (answer, counted) = (Arc::clone(&answer), counted.clone());
            tokio::spawn(async move { handle(stream, &*answer, &counted).await });
        }
    });
    let config = Config::new(address.parse().unwrap());
    (Client::try_from(config).unwrap(), count)
}

/// A NotFound status.
pub(super) fn not_found() -> FakeResponse {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "reason": "NotFound", "code": 404, "message": "not found",
    });
    Some((404, status))
}

async fn handle(mut stream: TcpStream, answer: &impl Fn(&FakeRequest) -> FakeResponse, count: &RequestCount) {
    let mut bytes = Vec::new();
    let ends = |bytes: &[u8]| bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let head = loop {
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return;
        }
        if let Some(end) = ends(&bytes) {
            break end + 4;
        }
    };
    let text = String::from_utf8_lossy(&bytes[..head]).to_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
    while bytes.len() < head + length {
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return;
        }
    }
    let line = String::from_utf8_lossy(&bytes[..head]).into_owned();
    let asked = FakeRequest {
        path: line.split(' ').nth(1).unwrap_or_default().to_owned(),
        body: serde_json::from_slice(&bytes[head..]).unwrap_or_default(),
    };
    count.0.fetch_add(1, Ordering::SeqCst);
    let Some((status, body)) = answer(&asked) else {
        return std::future::pending().await;
    };
    let body = body.to_string();
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    let _ = stream.write_all(text.as_bytes()).await;
}
