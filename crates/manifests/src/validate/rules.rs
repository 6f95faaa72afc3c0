//! The CEL rules of the kinds that admission does not cover. The API server enforces them; they are repeated here so
//! that users see violations earlier.

use super::schema::Sink;
use crate::kinds::Kind;
use crate::problem::Problem;
use crate::tree::{Node, Path, Value};

/// Reports what an object's spec breaks.
pub type Rule = fn(spec: &Node, sink: &mut Sink<'_>);

/// Reports each rule that `object` breaks.
pub fn check(kind: Kind, object: &Node, sink: &mut Sink<'_>) {
    if let (Some(rule), Some(spec)) = (kind.row().rule, object.get("spec")) {
        rule(spec, sink);
    }
}

pub fn check_schedule(spec: &Node, sink: &mut Sink<'_>) {
    let root = Path::Root;
    let path = root.field("spec");
    match (text(spec, "agentRef"), text(spec, "instanceRef")) {
        (None, None) if !has(spec, "agentRef") && !has(spec, "instanceRef") => {
            let problem = Problem::error("rule", spec.at, "a schedule needs an agent");
            sink(path.field("agentRef"), problem.with_hint("set `agentRef` to the name of an agent in this namespace"));
        }
        (Some(agent), Some(instance)) if agent != instance => {
            let at = spec.locate("instanceRef");
            let message = "`agentRef` and `instanceRef` name the same agent, and differ";
            sink(
                path.field("instanceRef"),
                Problem::error("rule", at, message).with_hint("set one of them, or both to the same name"),
            );
        }
        _ => {}
    }
}

pub fn check_model(spec: &Node, sink: &mut Sink<'_>) {
    let root = Path::Root;
    let path = root.field("spec");
    if let Some(source) = spec.get("source")
        && !has(source, "url")
        && !has(source, "modelID")
    {
        let problem = Problem::error("rule", source.at, "the model comes from nowhere");
        sink(path.field("source"), problem.with_hint("set an address in `url`, or a name in `modelID`"));
    }
    if let Some(inference) = spec.get("inference")
        && text(inference, "serverType") == Some("custom")
        && !has(inference, "image")
    {
        let at = inference.locate("serverType");
        sink(
            path.field("inference"),
            Problem::error("rule", at, "a `custom` server needs an image").with_hint("set `image`"),
        );
    }
}

/// The API server drops nulls before it evaluates rules.
fn has(node: &Node, field: &str) -> bool {
    node.get(field).is_some_and(|child| child.value != Value::Null)
}

fn text<'a>(node: &'a Node, field: &str) -> Option<&'a str> {
    node.get(field).and_then(Node::as_text)
}
