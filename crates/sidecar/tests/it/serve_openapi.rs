//! The description of the server agrees with the server.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::serve_http::Answer;
use crate::serve_server::{Server, TOKENS};

/// One request for each response that a test can cause: method, path, token, body, status.
const REQUESTS: &[(&str, &str, bool, &str, u16)] = &[
    ("POST", "/skill/{name}=true", true, "", 200),
    ("POST", "/skill/{name}=true", true, r#"{"timeout": 31}"#, 202),
    ("POST", "/skill/{name}=true", true, r#"{"args": 1}"#, 400),
    ("POST", "/skill/{name}=true", false, "", 401),
    ("POST", "/skill/{name}=there-is-none", true, "", 404),
    ("GET", "/task/{id}=x", true, "", 404),
    ("GET", "/task/{id}=x", false, "", 401),
    ("DELETE", "/task/{id}=x", true, "", 404),
    ("DELETE", "/task/{id}=x", false, "", 401),
    ("GET", "/skills", true, "", 200),
    ("GET", "/skills", false, "", 401),
    ("GET", "/healthz", false, "", 200),
    ("GET", "/metrics", true, "", 200),
    ("GET", "/metrics", false, "", 401),
    ("GET", "/openapi.json", false, "", 200),
];

fn document(server: &Server) -> Value {
    let answer = server.client().send("GET", "/openapi.json", &[], b"");
    assert_eq!(answer.status, 200);
    answer.json()
}

fn follow<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    match value["$ref"].as_str() {
        None => value,
        Some(reference) => {
            document.pointer(reference.trim_start_matches('#')).unwrap_or_else(|| panic!("{reference} leads nowhere"))
        }
    }
}

fn path_of(template: &str) -> (&str, String) {
    match template.split_once('=') {
        None => (template, template.to_owned()),
        Some((path, value)) => {
            let start = path.split('{').next().expect("there is one");
            (path, format!("{start}{value}"))
        }
    }
}

#[test]
fn answers_are_as_described() {
    let server = Server::start();
    let document = document(&server);
    for &(method, template, with_token, body, status) in REQUESTS {
        let (template, path) = path_of(template);
        let token = [("X-Skill-Token", TOKENS[0])];
        let headers = if with_token { &token[..] } else { &[] };
        let answer = server.client().send(method, &path, headers, body.as_bytes());
        let what = format!("{method} {path} {body}");
        assert_eq!(answer.status, status, "{what}: {answer:?}");
        let operation = &document["paths"][template][method.to_ascii_lowercase()];
        let described = &operation["responses"][status.to_string()];
        assert!(described.is_object(), "{what}: {status} is not described");
        agrees(&document, follow(&document, described), &answer, &what);
        let needs_token = operation["security"] != serde_json::json!([]);
        assert!(with_token || !needs_token || status == 401, "{what}");
    }
}

/// The answer's type is one of those described, and its fields are exactly those.
fn agrees(document: &Value, described: &Value, answer: &Answer, what: &str) {
    let kind = answer.header("content-type").and_then(|kind| kind.split(';').next());
    let schema = &described["content"][kind.unwrap_or_default()]["schema"];
    assert!(schema.is_object(), "{what}: {kind:?} is not described");
    let schema = follow(document, schema);
    if schema["type"] != "object" || schema["properties"].is_null() {
        return;
    }
    let body = answer.json();
    let fields: BTreeSet<&str> = (body.as_object().expect("it is an object").keys()).map(String::as_str).collect();
    let known = schema["properties"].as_object().expect("it is an object");
    let known: BTreeSet<&str> = known.keys().map(String::as_str).collect();
    let required: BTreeSet<&str> =
        (schema["required"].as_array().into_iter().flatten()).filter_map(Value::as_str).collect();
    assert!(fields.is_subset(&known), "{what}: {fields:?} of {known:?}");
    assert!(required.is_subset(&fields), "{what}: {fields:?} lack some of {required:?}");
}

#[test]
fn methods_and_paths_are_exactly_those_described() {
    let server = Server::start();
    let document = document(&server);
    let mut described = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().expect("it is an object") {
        let methods: BTreeSet<String> = (operations.as_object().expect("it is an object").keys())
            .filter(|key| *key != "parameters")
            .map(|method| method.to_ascii_uppercase())
            .collect();
        for method in &methods {
            described.insert((method.clone(), path.clone()));
        }
        let concrete = path.replace("{name}", "true").replace("{id}", "x");
        let answer = server.client().send("PATCH", &concrete, &[], b"");
        assert_eq!(answer.status, 405, "{path}");
        let allowed = answer.header("allow").expect("the header Allow").split(',');
        let allowed: BTreeSet<_> = allowed.filter(|method| *method != "HEAD").map(str::to_owned).collect();
        assert_eq!(allowed, methods, "{path}");
    }
    let tried: BTreeSet<_> =
        (REQUESTS.iter()).map(|(method, path, ..)| ((*method).to_owned(), path_of(path).0.to_owned())).collect();
    assert_eq!(described, tried);
}

#[test]
fn fields_of_a_call_are_exactly_those_described() {
    let server = Server::start();
    let document = document(&server);
    let call = &document["components"]["schemas"]["Call"]["properties"];
    let fields: Vec<_> = call.as_object().expect("it is an object").keys().collect();
    let answer = server.call("true", r#"{"unknown": 1}"#);
    let list: Vec<_> = fields.iter().map(|field| format!("`{field}`")).collect();
    let expected = format!("unknown field `unknown`, expected one of {}", list.join(", "));
    assert!(answer.error().starts_with(&expected), "{answer:?}");
}
