//! Requests that the model server received, in either format.

use serde_json::Value;
use sympozium_api::run_plan::WireFormat;
use sympozium_testkit::model_server::Recorded;

pub struct ModelRequest {
    pub body: Value,
    wire: WireFormat,
}

/// The result of a call in a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolResult {
    pub id: String,
    pub text: String,
}

impl ModelRequest {
    pub fn of(recorded: &Recorded) -> Self {
        let wire = match recorded.path.as_str() {
            "/v1/messages" => WireFormat::Anthropic,
            _ => WireFormat::OpenAi,
        };
        let body = serde_json::from_slice(&recorded.body).expect("a request is JSON");
        Self { body, wire }
    }

    pub fn messages(&self) -> &[Value] {
        self.body["messages"].as_array().expect("messages")
    }

    /// System messages.
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

    /// Texts of the user without results, one by one even if a message has several.
    pub fn user(&self) -> Vec<String> {
        let user = self.messages().iter().filter(|it| it["role"] == "user");
        user.flat_map(|it| texts(&it["content"])).collect()
    }

    /// Results of all calls, in order.
    pub fn results(&self) -> Vec<ToolResult> {
        self.messages().iter().flat_map(results).collect()
    }

    pub fn result_texts(&self) -> Vec<String> {
        self.results().into_iter().map(|it| it.text).collect()
    }

    pub fn last(&self) -> String {
        self.result_texts().pop().expect("a result")
    }

    /// Names of the offered tools.
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

    pub fn may_call(&self) -> bool {
        let choice = &self.body["tool_choice"];
        let none = choice == "none" || choice["type"] == "none";
        !none && !self.tools().is_empty()
    }

    /// Invariants of every request: one system prompt, first, and every call is followed by its result and nothing
    /// else.
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

/// Ids of a message's calls.
fn calls(message: &Value) -> Vec<String> {
    let id = |it: &Value| it["id"].as_str().expect("an id").to_owned();
    let of_openai = message["tool_calls"].as_array().into_iter().flatten();
    let blocks = message["content"].as_array().into_iter().flatten();
    let of_anthropic = blocks.filter(|it| it["type"] == "tool_use");
    of_openai.chain(of_anthropic).map(id).collect()
}

fn results(message: &Value) -> Vec<ToolResult> {
    let shown =
        |id: &Value, content: &Value| ToolResult { id: id.as_str().expect("an id").to_owned(), text: text(content) };
    if message["role"] == "tool" {
        return vec![shown(&message["tool_call_id"], &message["content"])];
    }
    let blocks = message["content"].as_array().into_iter().flatten();
    blocks
        .filter(|block| block["type"] == "tool_result")
        .map(|block| shown(&block["tool_use_id"], &block["content"]))
        .collect()
}

/// Plain or in blocks.
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
