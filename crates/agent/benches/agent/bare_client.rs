//! The exchanges of an agent by a client that does nothing else: the cost of the transport.

use std::path::Path;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use sympozium_ipc::door::path;
use tokio::net::UnixStream;

/// Approximate bytes of a model response in the transcript.
const LINE: usize = 400;

/// Sends requests of these sizes and reads these files, one in each turn, as an agent does.
pub async fn exchange(socket: &Path, requests: &[usize], files: &[String]) {
    let stream = UnixStream::connect(socket).await.expect("the fake bridge");
    let (client, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(256 << 10)
        .initial_connection_window_size(256 << 10)
        .max_send_buf_size(64 << 10)
        .handshake(TokioIo::new(stream))
        .await
        .expect("HTTP/2");
    tokio::spawn(async move {
        let _ = connection.await;
    });
    let largest = requests.iter().copied().max().unwrap_or_default();
    let everything = Bytes::from(vec![b'a'; largest]);
    let mut files = files.iter();
    let mut tasks = Vec::new();
    for bytes in requests {
        post(&client, path::MODEL, everything.slice(..*bytes)).await;
        let Some(file) = files.next() else { break };
        let call = json!({ "id": "call_1", "arguments": { "path": file } }).to_string();
        post(&client, &format!("{}read_file", path::PERMITS), call.into()).await;
        let text = std::fs::read(file).expect("a file");
        let report = json!({ "outcome": "done", "bytes": text.len() }).to_string();
        let others = [(path::TRANSCRIPT, LINE), (path::TRANSCRIPT, text.len() + LINE)];
        for (path, bytes) in others {
            let (client, body) = (client.clone(), vec![b'a'; bytes]);
            tasks.push(tokio::spawn(async move {
                post(&client, path, body.into()).await;
            }));
        }
        let client = client.clone();
        tasks.push(tokio::spawn(async move {
            let path = format!("{}1{}", path::PERMITS, path::REPORT);
            post(&client, &path, report.into()).await;
        }));
    }
    for it in tasks {
        it.await.expect("a request was sent");
    }
}

async fn post(client: &SendRequest<Full<Bytes>>, path: &str, body: Bytes) {
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = path.parse().expect("a path");
    let mut client = client.clone();
    client.ready().await.expect("a connection");
    let answer = client.send_request(request).await.expect("an answer");
    answer.into_body().collect().await.expect("a body");
}
