//! What is beyond the gateway: names that lead to servers of the test, and who does what is done later or elsewhere.

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

/// The internet of a test. A copy is the same one.
#[derive(Clone, Default)]
pub struct Internet(Arc<Mutex<HashMap<String, (IpAddr, SocketAddr)>>>);

impl Internet {
    /// A host with a public address, at any port of which is this server.
    pub fn host(&self, name: &str, to: SocketAddr) {
        let mut hosts = self.0.lock().expect("not poisoned");
        let number = u8::try_from(hosts.len() + 1).expect("few");
        // Public as far as the gateway knows; nothing here ever connects there.
        let address = IpAddr::from(Ipv4Addr::new(1, 2, 3, number));
        hosts.insert(name.to_owned(), (address, to));
    }

    /// A host that answers every request with this page.
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
        let place = {
            let hosts = self.0.lock().expect("not poisoned");
            let found = hosts.values().find(|(it, _)| *it == address.ip());
            found.map(|(_, place)| *place)
        };
        let place = place.ok_or(io::ErrorKind::ConnectionRefused)?;
        let stream = TcpStream::connect(place).await?;
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}

/// Does what it is asked, and remembers it. Slack is connected to nothing.
#[derive(Clone, Default)]
pub struct Doing(Arc<Mutex<Vec<Value>>>);

impl Doing {
    /// What it was asked.
    pub fn seen(&self) -> Vec<Value> {
        self.0.lock().expect("not poisoned").clone()
    }

    fn saw(&self, request: impl serde::Serialize) {
        let request = serde_json::to_value(request).expect("JSON");
        self.0.lock().expect("not poisoned").push(request);
    }
}

fn told(text: &str) -> TextAnswer {
    TextAnswer { text: text.to_owned() }
}

impl Scheduler for Doing {
    async fn schedule(&self, _: &Arc<RunFacts>, it: ScheduleRequest) -> Result<TextAnswer, HandlerError> {
        self.saw(it);
        Ok(told("scheduled for later"))
    }

    async fn message(&self, _: &Arc<RunFacts>, it: MessageRequest) -> Result<TextAnswer, HandlerError> {
        if it.channel == "slack" {
            return Err(HandlerError::Unavailable("slack is not connected".to_owned()));
        }
        self.saw(it);
        Ok(told("sent to people"))
    }

    async fn subruns(&self, _: &Arc<RunFacts>, it: SubrunsRequest) -> Result<SubrunsAnswer, HandlerError> {
        let result = |id: &str| SubrunResult {
            id: id.to_owned(),
            run: Some("below".to_owned()),
            response: Some("forty-two".to_owned()),
            error: None,
        };
        let results = it.tasks.iter().map(|task| result(&task.id)).collect();
        self.saw(it);
        Ok(SubrunsAnswer { results })
    }
}
