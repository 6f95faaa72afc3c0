//! What the model was told, read from the requests that came to it, in either format.

use serde_json::Value;
use sympozium_api::run_plan::WireFormat;
use sympozium_testkit::model_server::Recorded;

/// A request.
pub struct Said {
    pub body: Value,
    wire: WireFormat,
}

/// The result of a call, as the model reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    pub id: String,
    pub text: String,
}

impl Said {
    /// A request as it came.
    pub fn of(recorded: &Recorded) -> Self {
        let wire = match recorded.path.as_str() {
            "/v1/messages" => WireFormat::Anthropic,
            _ => WireFormat::OpenAi,
        };
        let body = serde_json::from_slice(&recorded.body).expect("a request is JSON");
        Self { body, wire }
    }

    /// Its messages.
    pub fn messages(&self) -> &[Value] {
        self.body["messages"].as_array().expect("messages")
    }

    /// Everything that is said with the voice of the system.
    pub fn system(&self) -> Vec<String> {
        match self.wire {
            WireFormat::OpenAi => {
                let system = |it: &&Value| it["role"] == "system" || it["role"] == "developer";
                let messages = self.messages().iter().filter(system);
                messages.map(|it| text(&it["content"])).collect()
            }
            WireFormat::Anthropic => vec![text(&self.body["system"])],
        }
    }

    /// What the user said, without results: each thing by itself, also where several are in one message.
    pub fn user(&self) -> Vec<String> {
        let user = self.messages().iter().filter(|it| it["role"] == "user");
        user.flat_map(|it| texts(&it["content"])).collect()
    }

    /// The results of all calls, in order.
    pub fn results(&self) -> Vec<Shown> {
        self.messages().iter().flat_map(results).collect()
    }

    /// The texts of them.
    pub fn shown(&self) -> Vec<String> {
        self.results().into_iter().map(|it| it.text).collect()
    }

    /// The text of the last.
    pub fn last(&self) -> String {
        self.shown().pop().expect("a result")
    }

    /// Names of the tools that the model is offered.
    pub fn tools(&self) -> Vec<&str> {
        let tools = self.body["tools"].as_array();
        tools
            .into_iter()
            .flatten()
            .filter_map(|tool| match self.wire {
                WireFormat::OpenAi => tool.pointer("/function/name"),
                WireFormat::Anthropic => tool.get("name"),
            })
            .filter_map(Value::as_str)
            .collect()
    }

    /// Whether the model may call tools.
    pub fn may_call(&self) -> bool {
        let choice = &self.body["tool_choice"];
        let none = choice == "none" || choice["type"] == "none";
        !none && !self.tools().is_empty()
    }

    /// What holds of every request, whatever was left out of it: the system speaks once and first, and every call is
    /// followed by its result and nothing else is.
    pub fn check(&self) {
        assert_eq!(self.system().len(), 1, "{}", self.body);
        let messages = self.messages();
        if self.wire == WireFormat::OpenAi {
            assert_eq!(messages[0]["role"], "system");
        }
        let mut open: Vec<String> = Vec::new();
        for message in messages {
            let (calls, results) = (calls(message), results(message));
            for result in results {
                assert!(!open.is_empty(), "a result without a call: {message}");
                assert_eq!(open.remove(0), result.id, "{message}");
            }
            if self.wire == WireFormat::Anthropic && message["role"] == "user" {
                assert!(open.is_empty(), "not all results in one message: {message}");
            }
            if !calls.is_empty() || message["role"] != "tool" {
                assert!(open.is_empty(), "calls without results: {open:?}");
            }
            open = if calls.is_empty() { open } else { calls };
        }
        assert!(open.is_empty(), "calls without results: {open:?}");
    }
}

/// The ids of a message's calls.
fn calls(message: &Value) -> Vec<String> {
    let id = |it: &Value| it["id"].as_str().expect("an id").to_owned();
    let of_openai = message["tool_calls"].as_array().into_iter().flatten();
    let blocks = message["content"].as_array().into_iter().flatten();
    let of_anthropic = blocks.filter(|it| it["type"] == "tool_use");
    of_openai.chain(of_anthropic).map(id).collect()
}

fn results(message: &Value) -> Vec<Shown> {
    let shown = |id: &Value, content: &Value| Shown { id: id.as_str().expect("an id").to_owned(), text: text(content) };
    if message["role"] == "tool" {
        return vec![shown(&message["tool_call_id"], &message["content"])];
    }
    let blocks = message["content"].as_array().into_iter().flatten();
    blocks.filter(|it| it["type"] == "tool_result").map(|it| shown(&it["tool_use_id"], &it["content"])).collect()
}

/// A content, plain or in blocks of text.
fn text(content: &Value) -> String {
    texts(content).concat()
}

fn texts(content: &Value) -> Vec<String> {
    match content {
        Value::String(text) => vec![text.clone()],
        Value::Array(blocks) => {
            let texts = blocks.iter().filter(|it| it["type"] == "text");
            let texts = texts.filter_map(|it| it["text"].as_str());
            texts.map(str::to_owned).collect()
        }
        _ => Vec::new(),
    }
}
