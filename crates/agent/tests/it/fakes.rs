//! What is behind the gateway: fake hosts, and a scheduler that records requests.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use sympozium_gateway::NetworkAccess;
use sympozium_gateway::plans::RunFacts;
use sympozium_gateway::resolve::ResolveError;
use sympozium_gateway::run_api::{HandlerError, Scheduler};
use sympozium_ipc::run_api::{
    MessageRequest, ScheduleRequest, SubrunResult, SubrunsAnswer, SubrunsRequest, TextAnswer,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Resolves names to servers of the test. Clones share their hosts.
#[derive(Clone, Default)]
pub struct Internet(Arc<Mutex<HashMap<String, (IpAddr, SocketAddr)>>>);

impl Internet {
    /// Adds a host with a public address whose ports all lead to `to`.
    pub fn host(&self, name: &str, to: SocketAddr) {
        let mut hosts = self.0.lock().expect("not poisoned");
        let number = u8::try_from(hosts.len() + 1).expect("few");
        // A public address for the gateway; nothing connects to it.
        let address = IpAddr::from(Ipv4Addr::new(1, 2, 3, number));
        hosts.insert(name.to_owned(), (address, to));
    }

    /// Adds a host that answers every request with this page.
    pub async fn page(&self, name: &str, content_type: &str, body: &str) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        self.host(name, listener.local_addr().expect("an address"));
        let length = body.len();
        let answer =
            format!("HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\r\n{body}");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = stream.read_u8().await else {
                        break;
                    };
                    head.push(byte);
                }
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        });
    }
}

impl NetworkAccess for Internet {
    type Stream = TcpStream;

    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        let hosts = self.0.lock().expect("not poisoned");
        let (address, _) = hosts.get(name).ok_or(ResolveError::NotFound)?;
        Ok(vec![*address])
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let server = {
            let hosts = self.0.lock().expect("not poisoned");
            let found = hosts.values().find(|(it, _)| *it == address.ip());
            found.map(|(_, server)| *server)
        };
        let server = server.ok_or(io::ErrorKind::ConnectionRefused)?;
        let stream = TcpStream::connect(server).await?;
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}

/// Records requests. Slack is not connected.
#[derive(Clone, Default)]
pub struct FakeScheduler(Arc<Mutex<Vec<Value>>>);

impl FakeScheduler {
    pub fn requests(&self) -> Vec<Value> {
        self.0.lock().expect("not poisoned").clone()
    }

    fn record(&self, request: impl serde::Serialize) {
        let request = serde_json::to_value(request).expect("JSON");
        self.0.lock().expect("not poisoned").push(request);
    }
}

fn text_answer(text: &str) -> TextAnswer {
    TextAnswer { text: text.to_owned() }
}

impl Scheduler for FakeScheduler {
    async fn schedule(&self, _: &Arc<RunFacts>, it: ScheduleRequest) -> Result<TextAnswer, HandlerError> {
        self.record(it);
        Ok(text_answer("scheduled for later"))
    }

    async fn message(&self, _: &Arc<RunFacts>, it: MessageRequest) -> Result<TextAnswer, HandlerError> {
        if it.channel == "slack" {
            return Err(HandlerError::Unavailable("slack is not connected".to_owned()));
        }
        self.record(it);
        Ok(text_answer("sent to people"))
    }

    async fn subruns(&self, _: &Arc<RunFacts>, it: SubrunsRequest) -> Result<SubrunsAnswer, HandlerError> {
        let result = |id: &str| SubrunResult {
            id: id.to_owned(),
            run: Some("below".to_owned()),
            response: Some("forty-two".to_owned()),
            error: None,
        };
        let results = it.tasks.iter().map(|task| result(&task.id)).collect();
        self.record(it);
        Ok(SubrunsAnswer { results })
    }
}
