//! A document as a tree in which every value has its position.

use std::fmt;

use serde_json::Number;

/// A position in a file; both count from 1, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    pub line: u32,
    pub column: u32,
}

impl Mark {
    /// The start of a file, for problems of the file as a whole.
    pub const START: Self = Self { line: 1, column: 1 };
}

/// A value and where it starts.
///
/// A value from an alias or a merge has the position of its definition, not of its use.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    pub at: Mark,
    pub value: Value,
}

/// The types of JSON.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Node>),
    /// In the order of the file, without duplicate keys.
    Map(Vec<Entry>),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub key: String,
    /// The position of the key.
    pub at: Mark,
    pub node: Node,
}

impl Node {
    /// The value of `key`, if this is a mapping that has it.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|entry| &entry.node)
    }

    /// The entry of `key`, if this is a mapping that has it.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|entry| entry.key == key),
            _ => None,
        }
    }

    pub fn as_text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn as_list(&self) -> Option<&[Node]> {
        match &self.value {
            Value::List(nodes) => Some(nodes),
            _ => None,
        }
    }

    /// The value without positions. The loader bounds the depth, so recursion is bounded.
    pub fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(value) => (*value).into(),
            Value::Number(value) => value.clone().into(),
            Value::Text(text) => text.as_str().into(),
            Value::List(nodes) => nodes.iter().map(Node::to_json).collect(),
            Value::Map(entries) => entries.iter().map(|entry| (entry.key.clone(), entry.node.to_json())).collect(),
        }
    }

    /// A value that was not read from a file. All of it has one position.
    pub fn from_json(value: serde_json::Value, at: Mark) -> Self {
        let value = match value {
            serde_json::Value::Null => Value::Null,
            serde_json::Value::Bool(value) => Value::Bool(value),
            serde_json::Value::Number(value) => Value::Number(value),
            serde_json::Value::String(text) => Value::Text(text),
            serde_json::Value::Array(all) => {
                let nodes = all.into_iter().map(|item| Self::from_json(item, at));
                Value::List(nodes.collect())
            }
            serde_json::Value::Object(all) => {
                let entries = all.into_iter().map(|(key, value)| Entry { key, at, node: Self::from_json(value, at) });
                Value::Map(entries.collect())
            }
        };
        Self { at, value }
    }

    /// Sets a field, and creates mappings on the way to it. The new value has the position of the one that it replaces,
    /// or of its parent.
    pub fn set(&mut self, path: &[&str], value: serde_json::Value) {
        let Some((key, rest)) = path.split_first() else {
            *self = Self::from_json(value, self.at);
            return;
        };
        let at = self.at;
        if !matches!(self.value, Value::Map(_)) {
            self.value = Value::Map(Vec::new());
        }
        let Value::Map(entries) = &mut self.value else {
            return;
        };
        match entries.iter_mut().find(|entry| entry.key == *key) {
            Some(entry) => entry.node.set(rest, value),
            None => {
                let mut node = Self { at, value: Value::Map(Vec::new()) };
                node.set(rest, value);
                entries.push(Entry { key: (*key).to_owned(), at, node });
            }
        }
    }

    /// Removes a field, if it exists.
    pub fn remove(&mut self, path: &[&str]) {
        let Value::Map(entries) = &mut self.value else {
            return;
        };
        match path {
            [] => {}
            [key] => entries.retain(|entry| entry.key != *key),
            [key, rest @ ..] => {
                if let Some(entry) = entries.iter_mut().find(|entry| entry.key == *key) {
                    entry.node.remove(rest);
                }
            }
        }
    }

    /// The value at a path of keys.
    pub fn get_path(&self, path: &[&str]) -> Option<&Node> {
        path.iter().try_fold(self, |node, key| node.get(key))
    }

    /// The position of the field at `path`, or of its closest existing parent.
    ///
    /// The path has the form of [`Path`]: `spec.skills[0].params[a.b]`.
    pub fn locate(&self, path: &str) -> Mark {
        self.walk(path).0
    }

    /// The position of the field at `path`, if it exists.
    pub fn find(&self, path: &str) -> Option<Mark> {
        let (at, is_whole) = self.walk(path);
        is_whole.then_some(at)
    }

    /// The last existing position on the path, and whether it is the end of the path.
    fn walk(&self, path: &str) -> (Mark, bool) {
        let mut node = self;
        let mut at = self.at;
        for step in steps(path) {
            let found = match (&node.value, step.parse::<usize>()) {
                (Value::List(nodes), Ok(index)) => nodes.get(index).map(|node| (node.at, node)),
                _ => node.entry(step).map(|entry| (entry.at, &entry.node)),
            };
            match found {
                Some((mark, inner)) => (at, node) = (mark, inner),
                None => return (at, false),
            }
        }
        (at, true)
    }
}

impl Value {
    /// The type, with its article.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(number) if number.is_f64() => "a number",
            Self::Number(_) => "an integer",
            Self::Text(_) => "a string",
            Self::List(_) => "a list",
            Self::Map(_) => "an object",
        }
    }
}

/// The steps of a path: names between dots, and the text between brackets as one step.
fn steps(path: &str) -> impl Iterator<Item = &str> {
    let mut rest = path;
    std::iter::from_fn(move || {
        rest = rest.strip_prefix('.').unwrap_or(rest);
        if let Some(inner) = rest.strip_prefix('[') {
            let end = inner.find(']').unwrap_or(inner.len());
            let step = &inner[..end];
            rest = inner.get(end + 1..).unwrap_or("");
            return Some(step);
        }
        let end = rest.find(['.', '[']).unwrap_or(rest.len());
        let (step, after) = rest.split_at(end);
        rest = after;
        (!step.is_empty()).then_some(step)
    })
}

/// A path of fields from the object's root, as the API server writes it.
///
/// A chain of borrowed steps, so that walking a tree allocates nothing until a finding formats the path.
#[derive(Debug, Clone, Copy)]
pub enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

impl<'a> Path<'a> {
    pub fn field(&'a self, name: &'a str) -> Self {
        Self::Field(self, name)
    }

    pub fn index(&'a self, index: usize) -> Self {
        Self::Index(self, index)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Index(parent, index) => write!(formatter, "{parent}[{index}]"),
            Self::Field(parent, name) => {
                let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_$".contains(&byte);
                if name.is_empty() || !name.bytes().all(is_plain) {
                    return write!(formatter, "{parent}[{name}]");
                }
                match parent {
                    Self::Root => formatter.write_str(name),
                    _ => write!(formatter, "{parent}.{name}"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(line: u32, text: &str) -> Node {
        let at = Mark { line, column: 5 };
        Node { at, value: Value::Text(text.to_owned()) }
    }

    fn map(line: u32, entries: Vec<(&str, Node)>) -> Node {
        let at = Mark { line, column: 1 };
        let entries = entries.into_iter().map(|(key, node)| Entry {
            key: key.to_owned(),
            at: Mark { line: node.at.line, column: 2 },
            node,
        });
        Node { at, value: Value::Map(entries.collect()) }
    }

    #[test]
    fn paths_are_written_as_the_api_server_writes_them() {
        let root = Path::Root;
        let spec = root.field("spec");
        let skills = spec.field("skills");
        let second = skills.index(1);
        let label = second.field("example.com/tier");
        assert_eq!(root.to_string(), "");
        assert_eq!(label.to_string(), "spec.skills[1][example.com/tier]");
        assert_eq!(root.field("a.b").to_string(), "[a.b]");
    }

    #[test]
    fn a_path_locates_its_field_or_the_closest_parent() {
        let list = Node {
            at: Mark { line: 3, column: 3 },
            value: Value::List(vec![text(3, "a"), map(4, vec![("x.y/z", text(5, "b"))])]),
        };
        let root = map(1, vec![("spec", map(2, vec![("skills", list)]))]);
        let line = |path: &str| root.locate(path).line;
        assert_eq!(line(""), 1);
        assert_eq!(line("spec"), 2);
        assert_eq!(line("spec.skills[0]"), 3);
        assert_eq!(line("spec.skills[1]"), 4);
        assert_eq!(line("spec.skills[1][x.y/z]"), 5);
        assert_eq!(line("spec.skills[7].name"), 3);
        assert_eq!(line("spec.missing.name"), 2);
        assert_eq!(line("[[].."), 1);
        assert_eq!(root.find("spec.missing"), None);
        assert_eq!(root.find("spec.skills").map(|at| at.line), Some(3));
    }

    #[test]
    fn a_tree_converts_to_and_from_json() {
        let root = map(1, vec![("a", text(1, "b"))]);
        assert_eq!(root.to_json(), serde_json::json!({"a": "b"}));
        let value = serde_json::json!({"a": [1, null, {"b": true}], "c": "d"});
        let node = Node::from_json(value.clone(), Mark::START);
        assert_eq!(node.to_json(), value);
    }

    #[test]
    fn a_set_value_has_the_position_of_the_replaced_one() {
        use serde_json::json;
        let mut root = map(1, vec![("spec", map(2, vec![("task", text(3, "old"))]))]);
        root.set(&["spec", "task"], json!("new"));
        root.set(&["spec", "model", "model"], json!("m"));
        root.set(&["metadata"], json!({"name": "n"}));
        let expected = json!({
            "spec": {"task": "new", "model": {"model": "m"}}, "metadata": {"name": "n"},
        });
        assert_eq!(root.to_json(), expected);
        assert_eq!(root.locate("spec.task").line, 3);
        assert_eq!(root.locate("spec.model.model").line, 2);
        let task = root.get_path(&["spec", "task"]).and_then(Node::as_text);
        assert_eq!(task, Some("new"));
        root.remove(&["spec", "model"]);
        root.remove(&["spec", "nothing", "below"]);
        root.remove(&["metadata"]);
        assert_eq!(root.to_json(), json!({"spec": {"task": "new"}}));
        assert_eq!(root.get_path(&["spec", "model"]), None);
        // A value that is not a mapping becomes one.
        root.set(&["spec", "task", "mode"], json!("x"));
        assert_eq!(root.to_json(), json!({"spec": {"task": {"mode": "x"}}}));
    }
}
