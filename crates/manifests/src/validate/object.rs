//! Turns documents into objects: kind, namespace and name.

mod metadata;

use sympozium_api::labels::{API_VERSION, GROUP};
use sympozium_api::text::quote;

use super::finding::ObjectName;
use super::{schema, suggest};
use crate::kinds::Kind;
use crate::problem::Problem;
use crate::tree::{Entry, Mark, Node, Path, Value};

/// An object of one of the files.
#[derive(Debug)]
pub struct Object {
    /// The index of its file.
    pub file: usize,
    pub kind: ObjectKind,
    pub name: ObjectName,
    pub node: Node,
    /// Whether it conforms to its schema, as far as that was checked.
    pub is_valid: bool,
    /// Whether the command line named its file for this object. Then it is used even if an object of that name is
    /// shipped.
    pub is_explicit: bool,
    /// Whether an API server has stored it. Only then our programs wrote its status: the author of a file can write any.
    pub is_stored: bool,
}

/// A kind of ours, or of another API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectKind {
    Sympozium(Kind),
    /// Read only to resolve references of our objects.
    Other(String),
}

impl Object {
    pub fn is_kind(&self, kind: Kind) -> bool {
        self.kind == ObjectKind::Sympozium(kind)
    }
}

/// Reads documents into objects. A `List` becomes its items.
pub struct ObjectReader<'a> {
    pub file: usize,
    pub default_namespace: &'a str,
    pub objects: &'a mut Vec<Object>,
    pub problems: &'a mut dyn FnMut(Option<&ObjectName>, String, Problem),
}

impl ObjectReader<'_> {
    /// Recurses as deep as lists are nested, which the loader bounds.
    pub fn read_document(&mut self, node: Node) {
        let Value::Map(_) = &node.value else {
            let message = format!("a document must be an object, not {}", node.value.type_name());
            let problem = Problem::error("not-an-object", node.at, message)
                .with_hint("a document needs `apiVersion:` and `kind:`");
            return self.report(problem);
        };
        let api_version = self.required_text(&node, "apiVersion");
        let kind = self.required_text(&node, "kind");
        let (Some(api_version), Some(kind)) = (api_version, kind) else {
            return;
        };
        if let Some(items) = list_items(&node, &api_version, &kind) {
            for item in items {
                self.read_document(item);
            }
            return;
        }
        let Some(kind) = self.resolve_kind(&node, &api_version, kind) else {
            return;
        };
        self.add_object(node, kind);
    }

    fn add_object(&mut self, mut node: Node, kind: ObjectKind) {
        let text = |field: &str| {
            let metadata = node.get("metadata");
            let value = metadata.and_then(|metadata| metadata.get(field)).and_then(Node::as_text);
            value.unwrap_or_default().to_owned()
        };
        let namespace = text("namespace");
        let name = ObjectName {
            kind: match &kind {
                ObjectKind::Sympozium(kind) => kind.name().to_owned(),
                ObjectKind::Other(kind) => kind.clone(),
            },
            namespace: if namespace.is_empty() { self.default_namespace.to_owned() } else { namespace },
            name: text("name"),
        };
        let mut is_sound = true;
        if let ObjectKind::Sympozium(ours) = kind {
            metadata::check(&node, &mut |path, problem| {
                is_sound = false;
                (self.problems)(Some(&name), path.to_string(), problem);
            });
            if ours.row().has_skill_list {
                self.expand_skills(&mut node, &name);
            }
        }
        self.objects.push(Object {
            file: self.file,
            kind,
            name,
            node,
            is_valid: is_sound,
            is_explicit: false,
            is_stored: false,
        });
    }

    /// `skills: [k8s-ops]` is short for `skills: [{skillPackRef: k8s-ops}]`; the API server accepts only the long form.
    fn expand_skills(&mut self, node: &mut Node, name: &ObjectName) {
        let spec = entry_mut(node, "spec");
        let Some(skills) = spec.and_then(|spec| entry_mut(spec, "skills")) else {
            return;
        };
        let Value::List(skills) = &mut skills.value else {
            return;
        };
        for (index, skill) in skills.iter_mut().enumerate() {
            let Value::Text(pack) = &mut skill.value else {
                continue;
            };
            let pack = std::mem::take(pack);
            let message = format!("{} is the short form of a skill, which kubectl does not accept", quote(&pack));
            let problem = Problem::warning("short-form", skill.at, message)
                .with_hint(format!("write `- skillPackRef: {pack}` to apply it with kubectl"));
            (self.problems)(Some(name), format!("spec.skills[{index}]"), problem);
            let reference = Node { at: skill.at, value: Value::Text(pack) };
            skill.value = Value::Map(vec![Entry { key: "skillPackRef".to_owned(), at: skill.at, node: reference }]);
        }
    }

    fn required_text(&mut self, node: &Node, field: &str) -> Option<String> {
        match node.get(field).map(|value| (value.at, value.as_text())) {
            Some((_, Some(text))) if !text.is_empty() => Some(text.to_owned()),
            Some((at, _)) => {
                let message = format!("`{field}` must be a string that is not empty");
                let problem = Problem::error("type", at, message);
                self.report_field(field, problem.with_hint("a document needs `apiVersion:` and `kind:`"));
                None
            }
            None => {
                let problem = Problem::error("required", node.at, format!("`{field}` is missing"));
                self.report_field(field, problem.with_hint("a document needs `apiVersion:` and `kind:`"));
                None
            }
        }
    }

    fn resolve_kind(&mut self, node: &Node, api_version: &str, kind: String) -> Option<ObjectKind> {
        let known = Kind::from_name(&kind);
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        if api_version == API_VERSION {
            if let Some(known) = known {
                return Some(ObjectKind::Sympozium(known));
            }
            let at = field_mark(node, "kind");
            let message = format!("{API_VERSION} has no kind {}", quote(&kind));
            let names: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
            let hint = match suggest::closest(&kind, names.iter().copied()) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => format!("the kinds are {}", schema::join_names(&names)),
            };
            self.report_field("kind", Problem::error("unknown-kind", at, message).with_hint(hint));
            return None;
        }
        // One of our kinds with a version that no other API can have is a typing error; `Agent` of another group is
        // not.
        let is_slip =
            group == GROUP || known.is_some() && (group.is_empty() || suggest::closest(group, [GROUP]).is_some());
        if !is_slip {
            return Some(ObjectKind::Other(kind));
        }
        let at = field_mark(node, "apiVersion");
        let message = format!("there is no version {} of {}", quote(api_version), quote(&kind));
        self.report_field(
            "apiVersion",
            Problem::error("unknown-version", at, message).with_hint(format!("write `apiVersion: {API_VERSION}`")),
        );
        None
    }

    fn report(&mut self, problem: Problem) {
        (self.problems)(None, String::new(), problem);
    }

    fn report_field(&mut self, field: &str, problem: Problem) {
        (self.problems)(None, field.to_owned(), problem);
    }
}

/// The items of a `List`, and of the lists of our kinds. Other kinds with that suffix are unknown to us.
fn list_items(node: &Node, api_version: &str, kind: &str) -> Option<Vec<Node>> {
    let is_list = match api_version {
        "v1" => kind == "List",
        API_VERSION => kind.ends_with("List"),
        _ => false,
    };
    let items = node.get("items").filter(|_| is_list)?.as_list()?;
    Some(items.to_vec())
}

fn entry_mut<'a>(node: &'a mut Node, key: &str) -> Option<&'a mut Node> {
    match &mut node.value {
        Value::Map(entries) => entries.iter_mut().find(|entry| entry.key == key).map(|entry| &mut entry.node),
        _ => None,
    }
}

fn field_mark(node: &Node, field: &str) -> Mark {
    node.get(field).map_or(node.at, |value| value.at)
}

type Sink<'a> = dyn FnMut(Path<'_>, Problem) + 'a;
