//! An API server for tests: it responds as the test defines, and records the requests.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use super::connection::{Connection, WatchTimeouts};
use super::{Cluster, Runtime};

/// The response to a method and a path with its query; `None` is no response at all.
type Responder = dyn Fn(&str, &str) -> Option<(u16, Value)> + Send + Sync;

/// Listens as long as the test runs.
pub struct FakeApiServer {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl FakeApiServer {
    pub fn new(respond: impl Fn(&str, &str) -> Option<(u16, Value)> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let (respond, log): (Arc<Responder>, _) = (Arc::new(respond), Arc::clone(&requests));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (respond, log) = (Arc::clone(&respond), Arc::clone(&log));
                std::thread::spawn(move || serve(stream, &*respond, &log));
            }
        });
        Self { address, requests }
    }

    /// The requests so far, in order.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// A connection to it with short timeouts.
    pub fn connection(&self) -> Connection {
        let timeouts = WatchTimeouts { watch_seconds: 1, idle: Duration::ZERO };
        Connection::to_test_server(self.address, timeouts).unwrap()
    }

    /// The same for synchronous commands.
    pub fn cluster(&self) -> Cluster {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let connection = {
            // A client spawns tasks of its own.
            let _inside = Runtime::enter(&runtime);
            self.connection()
        };
        Cluster { runtime, connection }
    }
}

/// Serves one request per connection.
fn serve(stream: TcpStream, respond: &Responder, log: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    if reader.read_line(&mut first).is_err() {
        return;
    }
    let mut header = String::new();
    while reader.read_line(&mut header).is_ok_and(|it| it > 2) {
        header.clear();
    }
    let mut words = first.split(' ');
    let (Some(method), Some(path)) = (words.next(), words.next()) else {
        return;
    };
    log.lock().unwrap().push(format!("{method} {path}"));
    let Some((code, body)) = respond(method, path) else {
        // Hold the connection until the client gives up.
        let _ = reader.read_line(&mut header);
        return;
    };
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {code} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    let mut stream = reader.into_inner();
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(body.as_bytes());
}

/// A list page with its continue token.
pub fn list_page(items: &[Value], next: &str) -> Value {
    json!({"apiVersion": "sympozium.ai/v1alpha1", "kind": "List",
        "metadata": {"resourceVersion": "1", "continue": next}, "items": items})
}

/// A NotFound response.
pub fn not_found(name: &str) -> (u16, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 404,
        "reason": "NotFound", "message": format!("{name} not found"), "details": {"name": name}});
    (404, status)
}
