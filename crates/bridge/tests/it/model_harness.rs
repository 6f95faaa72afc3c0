//! A model server behind a real gateway, and the bridge's model in front of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use sympozium_api::RunPlan;
use sympozium_bridge::egress_client::EgressClient;
use sympozium_bridge::key::ProviderKey;
use sympozium_bridge::model::{AnswerBody, AnswerError, ExchangeStats, Model, ModelError, ModelParts};
use sympozium_harness::TIMEOUT;
use sympozium_harness::credential::{now, sign};
use sympozium_harness::plan::{Public, STORED_PLAN, credential};
use sympozium_ipc::door::{Refusal, RefusalCode};
use sympozium_testkit::model_server::{ModelServer, Settings};

use crate::support::{GatewayHarness, RUN, Transport};

pub const HOST: &str = "model.test";
pub const KEY: &str = "sk-test-0123456789abcdef";
const ADDRESS: [u8; 4] = [1, 2, 3, 4];

/// What a test chooses.
pub struct Setting {
    pub wire: &'static str,
    pub provider: &'static str,
    pub path: &'static str,
    pub server: Settings,
    pub encrypted: bool,
    /// The name in the plan, which need not be the one that the server has a certificate for.
    pub host: &'static str,
    /// How the bridge speaks to the gateway.
    pub transport: Transport,
    /// What the gateway lets through.
    pub reach: &'static str,
    pub key: Option<&'static str>,
    pub headers: Vec<(&'static str, &'static str)>,
    pub secret_headers: Vec<(&'static str, &'static str)>,
    pub limits: Value,
}

impl Setting {
    pub fn open_ai() -> Self {
        Self {
            wire: "openAi",
            provider: "openai",
            path: "/v1/chat/completions",
            server: Settings::new(),
            encrypted: false,
            host: HOST,
            transport: Transport::Unix,
            reach: "model.test 8080",
            key: Some(KEY),
            headers: Vec::new(),
            secret_headers: Vec::new(),
            limits: json!({}),
        }
    }

    pub fn anthropic() -> Self {
        Self { wire: "anthropic", provider: "anthropic", path: "/v1/messages", ..Self::open_ai() }
    }

    pub fn limit(mut self, name: &str, value: u64) -> Self {
        self.limits[name] = json!(value);
        self
    }

    fn port(&self) -> u16 {
        if self.encrypted { 443 } else { 8080 }
    }

    fn plan(&self) -> RunPlan {
        let endpoint = json!({
            "encrypted": self.encrypted, "host": self.host, "port": self.port(), "path": self.path,
        });
        let headers: serde_json::Map<String, Value> =
            self.headers.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        plan(
            json!({
                "provider": self.provider, "model": "m-1", "wire": self.wire, "endpoint": endpoint, "headers": headers,
            }),
            &self.limits,
        )
    }

    pub async fn start(self) -> ModelHarness {
        self.try_start().await.expect("a model")
    }

    pub async fn try_start(self) -> Result<ModelHarness, ModelError> {
        let plan = self.plan();
        let port = self.port();
        let credentials = [credential("model", Public::Closed, &[self.reach])];
        let gateway = GatewayHarness::with(self.transport, Default::default(), &credentials).await;
        let server = self.server.start().expect("a server");
        for host in [HOST, "other.test"] {
            gateway.internet.name(host, &[&[ADDRESS.into()]]);
        }
        gateway.internet.route(SocketAddr::from((ADDRESS, port)), server.address());
        let authority = gateway.authority.pem();
        let mut client = EgressClient::new(gateway.address.clone(), Some(authority.as_bytes())).expect("a client");
        if let Some(pem) = server.ca_pem() {
            client = client.with_extra_roots(pem.as_bytes()).expect("an authority");
        }
        let headers = self.secret_headers.iter().map(|(name, value)| {
            let name = HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        });
        let model = Model::new(ModelParts {
            plan: &plan,
            egress: Arc::new(client),
            // Longer than any deadline that a test lets pass: tunnels end with their credential.
            credential: Some(sign(RUN, "model", now() + 3600)),
            key: self.key.map(key),
            headers: headers.collect(),
            script: None,
        })?;
        Ok(ModelHarness { gateway, server, model: Arc::new(model) })
    }
}

fn key(text: &str) -> ProviderKey {
    let bytes = text.as_bytes().to_vec().into();
    let key = ProviderKey::new("API_KEY".into(), bytes).expect("a header can hold it");
    key.expect("it is not empty")
}

/// A plan with this model, the tools that requests here offer, and these limits.
pub fn plan(model: Value, limits: &Value) -> RunPlan {
    let mut plan: Value = serde_json::from_str(STORED_PLAN).expect("JSON");
    plan["model"] = model;
    plan["tools"] = json!([{
        "name": "read_file", "gate": "allow", "acts": { "by": "agent" }, "description": "d", "parameters": {},
        "limits": { "timeoutSeconds": 1, "argumentBytes": 1, "outputBytes": 1, "concurrent": 1, "perMinute": 1 },
    }]);
    for (name, value) in limits.as_object().expect("limits") {
        plan["limits"][name] = value.clone();
    }
    serde_json::from_value(plan).expect("a plan")
}

pub struct ModelHarness {
    pub gateway: GatewayHarness,
    pub server: ModelServer,
    pub model: Arc<Model>,
}

/// An answer, read to its end.
#[derive(Debug)]
pub struct Whole {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
    pub end: Result<(), AnswerError>,
}

impl ModelHarness {
    /// Asks, reads all of the answer, and returns what was recorded of its end.
    pub async fn ask(&self, body: &Value) -> (Result<Whole, Refusal>, ExchangeStats) {
        ask(&self.model, body).await
    }

    /// Asks, and leaves the answer to the test.
    pub async fn begin(&self, body: &Value) -> (Result<Response<AnswerBody>, Refusal>, Receiver<ExchangeStats>) {
        begin(&self.model, body).await
    }

    /// The message of what must be refused because of the model's endpoint.
    pub async fn fails(&self, body: &Value) -> (String, ExchangeStats) {
        let (answer, spent) = self.ask(body).await;
        let refusal = answer.expect_err("no answer");
        assert_eq!(refusal.code, RefusalCode::Model, "{}", refusal.message);
        assert_eq!(spent.error.as_ref(), Some(&refusal.message));
        (refusal.message, spent)
    }
}

pub async fn begin(
    model: &Arc<Model>,
    body: &Value,
) -> (Result<Response<AnswerBody>, Refusal>, Receiver<ExchangeStats>) {
    let (sender, ended) = channel();
    let body = Bytes::from(body.to_string());
    let asking = model.ask(body, move |spent| {
        let _ = sender.send(spent);
    });
    let answer = tokio::time::timeout(TIMEOUT, asking).await;
    (answer.expect("an answer in time"), ended)
}

pub async fn ask(model: &Arc<Model>, body: &Value) -> (Result<Whole, Refusal>, ExchangeStats) {
    let (answer, ended) = begin(model, body).await;
    let whole = match answer {
        Ok(response) => Ok(read(response).await),
        Err(refusal) => Err(refusal),
    };
    let spent = ended.try_recv().expect("it was recorded");
    // The other end is gone: it is recorded once.
    assert!(ended.recv().is_err());
    (whole, spent)
}

pub async fn read(response: Response<AnswerBody>) -> Whole {
    let (head, mut body) = response.into_parts();
    let mut text = Vec::new();
    let mut end = Ok(());
    while let Some(frame) = tokio::time::timeout(TIMEOUT, body.frame()).await.expect("more in time") {
        match frame {
            Ok(frame) => text.extend_from_slice(frame.data_ref().expect("no trailers pass")),
            Err(error) => end = Err(error),
        }
    }
    Whole { status: head.status.as_u16(), headers: head.headers, body: String::from_utf8(text).expect("UTF-8"), end }
}

/// A request of a runner.
pub fn request(streamed: bool) -> Value {
    json!({
        "model": "m-1",
        "max_tokens": 100,
        "messages": [{ "role": "user", "content": "hello" }],
        "stream": streamed,
    })
}

/// Bytes in the strings of a request, its names among them.
pub fn text_length(request: &Value) -> u64 {
    match request {
        Value::String(text) => text.len() as u64,
        Value::Array(all) => all.iter().map(text_length).sum(),
        Value::Object(all) => {
            let entries = all.iter();
            let entries = entries.map(|(name, value)| name.len() as u64 + text_length(value));
            entries.sum()
        }
        _ => 0,
    }
}
