//! Builds nodes from the parser's events, and counts them.

mod scalar;

use std::collections::{HashMap, HashSet};

use granit_parser::{Event, ScalarStyle, Span, Tag};
use sympozium_api::text::quote;

use super::super::limits::{MAX_COPIED_BYTES, MAX_DEPTH, MAX_DOCUMENTS, MAX_NODES, MAX_SCALAR_BYTES};
use super::super::problem::{Problem, Problems};
use super::super::tree::{Entry, Mark, Node, Value};
use super::{Budget, mark, too_deep};

/// Why parsing stops, and how much is lost.
pub enum Stop {
    Document(Problem),
    /// This document and all that follow in the file.
    File(Problem),
}

pub struct Builder<'a> {
    pub problems: &'a mut Problems,
    budget: &'a mut Budget,
    /// The collections that are open, outermost first.
    open_collections: Vec<OpenCollection>,
    /// The complete values that have an anchor.
    anchors: HashMap<usize, AnchoredNode>,
    root: Option<Node>,
}

struct OpenCollection {
    at: Mark,
    /// 0 if there is none.
    anchor: usize,
    size: Size,
    content: Content,
}

enum Content {
    List(Vec<Node>),
    Map(OpenMap),
}

#[derive(Default)]
struct OpenMap {
    entries: Vec<Entry>,
    /// A key that waits for its value.
    key: Option<Key>,
    merge: Option<(Mark, Vec<Node>)>,
}

enum Key {
    Name(String, Mark),
    /// `<<`.
    Merge(Mark),
}

struct AnchoredNode {
    node: Node,
    size: Size,
}

/// The cost of a copy of a value.
#[derive(Clone, Copy)]
struct Size {
    nodes: usize,
    bytes: usize,
    height: usize,
}

impl<'a> Builder<'a> {
    pub fn new(budget: &'a mut Budget, problems: &'a mut Problems) -> Self {
        Self { problems, budget, open_collections: Vec::new(), anchors: HashMap::new(), root: None }
    }

    /// The document that just ended, unless it is empty.
    pub fn finish_document(&mut self) -> Option<Node> {
        self.anchors.clear();
        let root = self.root.take();
        root.filter(|node| node.value != Value::Null)
    }

    pub fn abandon_document(&mut self) {
        self.open_collections.clear();
        self.anchors.clear();
        self.root = None;
    }

    pub fn handle_event(&mut self, event: Event<'_>, span: &Span) -> Result<(), Stop> {
        let at = mark(span.start.line(), span.start.col());
        match event {
            Event::DocumentStart(..) => self.count_document(at),
            Event::Scalar(text, style, anchor, tag) => self.add_scalar(&text, style, anchor, tag.as_deref(), at),
            Event::SequenceStart(_, anchor, tag) => {
                self.expect_tag(tag.as_deref(), "seq", at);
                self.open_collection(anchor, Content::List(Vec::new()), at)
            }
            Event::MappingStart(_, anchor, tag) => {
                self.expect_tag(tag.as_deref(), "map", at);
                self.open_collection(anchor, Content::Map(OpenMap::default()), at)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close_collection(),
            Event::Alias(id) => self.add_alias(id, at),
            // Stream events; comments are disabled.
            _ => Ok(()),
        }
    }

    fn count_document(&mut self, at: Mark) -> Result<(), Stop> {
        let Some(left) = self.budget.documents.checked_sub(1) else {
            let message = format!("more than {MAX_DOCUMENTS} documents in total");
            return Err(Stop::File(Problem::error("too-large", at, message).with_hint("check fewer files at a time")));
        };
        self.budget.documents = left;
        Ok(())
    }

    fn count_nodes(&mut self, nodes: usize, at: Mark) -> Result<(), Stop> {
        let Some(left) = self.budget.nodes.checked_sub(nodes) else {
            let message = format!("more than {MAX_NODES} values in total, including copies by aliases");
            return Err(Stop::File(
                Problem::error("too-large", at, message).with_hint("check fewer files at a time, or use fewer aliases"),
            ));
        };
        self.budget.nodes = left;
        Ok(())
    }

    fn count_copy(&mut self, size: Size, at: Mark) -> Result<(), Stop> {
        self.count_nodes(size.nodes, at)?;
        let Some(left) = self.budget.copied_bytes.checked_sub(size.bytes) else {
            let message = format!("aliases copy more than {} MiB of text", MAX_COPIED_BYTES >> 20);
            return Err(Stop::File(Problem::error("too-large", at, message).with_hint("use fewer aliases")));
        };
        self.budget.copied_bytes = left;
        Ok(())
    }

    fn add_scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        anchor: usize,
        tag: Option<&Tag>,
        at: Mark,
    ) -> Result<(), Stop> {
        self.count_nodes(1, at)?;
        if text.len() > MAX_SCALAR_BYTES {
            let message = format!("a string of more than {} MiB", MAX_SCALAR_BYTES >> 20);
            return Err(Stop::Document(
                Problem::error("too-large", at, message).with_hint("Kubernetes does not store objects of that size"),
            ));
        }
        if text.contains('\0') {
            self.problems.add(
                Problem::error("syntax", at, "the string contains a NUL character")
                    .with_hint("remove it: programs cannot use such strings"),
            );
        }
        if self.is_key_next() {
            return self.add_key(text, style, anchor, tag, at);
        }
        let value = self.resolve(text, style, tag, at);
        let size = Size { nodes: 1, bytes: text.len(), height: 0 };
        self.add_node(Node { at, value }, anchor, size)
    }

    fn add_key(
        &mut self,
        text: &str,
        style: ScalarStyle,
        anchor: usize,
        tag: Option<&Tag>,
        at: Mark,
    ) -> Result<(), Stop> {
        if tag.is_some_and(|tag| tag.core_suffix() != Some("str")) {
            self.report_tag(at);
        }
        let is_plain = style == ScalarStyle::Plain && tag.is_none();
        let key = if is_plain && text == "<<" {
            Key::Merge(at)
        } else {
            if is_plain {
                self.check_plain_key(text, at)?;
            }
            Key::Name(text.to_owned(), at)
        };
        if anchor != 0 {
            let value = Value::Text(text.to_owned());
            let size = Size { nodes: 1, bytes: text.len(), height: 0 };
            self.store_anchor(anchor, &Node { at, value }, size)?;
        }
        if let Some(Content::Map(map)) = self.open_collections.last_mut().map(|open| &mut open.content) {
            map.key = Some(key);
        }
        Ok(())
    }

    fn open_collection(&mut self, anchor: usize, content: Content, at: Mark) -> Result<(), Stop> {
        self.count_nodes(1, at)?;
        if self.open_collections.len() >= MAX_DEPTH {
            return Err(Stop::Document(too_deep(at)));
        }
        if self.is_key_next() {
            return Err(Stop::Document(
                Problem::error("key", at, "a list or an object cannot be a key")
                    .with_hint("put the key in quotes if it is a string, as in \"{{ name }}\""),
            ));
        }
        let size = Size { nodes: 1, bytes: 0, height: 1 };
        self.open_collections.push(OpenCollection { at, anchor, size, content });
        Ok(())
    }

    fn close_collection(&mut self) -> Result<(), Stop> {
        let Some(open) = self.open_collections.pop() else {
            return Ok(());
        };
        let value = match open.content {
            Content::List(nodes) => Value::List(nodes),
            Content::Map(map) => Value::Map(self.close_map(map)),
        };
        let node = Node { at: open.at, value };
        self.add_node(node, open.anchor, open.size)
    }

    /// Each key once, followed by merged entries whose keys are not present yet.
    fn close_map(&mut self, map: OpenMap) -> Vec<Entry> {
        let mut entries = map.entries;
        let mut by_key: Vec<usize> = (0..entries.len()).collect();
        // A stable sort: of equal keys the first in the file stays first.
        by_key.sort_by(|&one, &other| entries[one].key.cmp(&entries[other].key));
        let mut repeated = Vec::new();
        let mut first = 0;
        for position in 1..by_key.len() {
            let (original, here) = (&entries[by_key[first]], &entries[by_key[position]]);
            if original.key == here.key {
                let line = original.at.line;
                let message = format!("duplicate key {}; the first one is on line {line}", quote(&here.key));
                self.problems.add(Problem::error("duplicate-key", here.at, message).with_hint("keep one of the two"));
                repeated.push(by_key[position]);
            } else {
                first = position;
            }
        }
        if !repeated.is_empty() {
            let repeated: HashSet<usize> = repeated.into_iter().collect();
            let mut index = 0;
            entries.retain(|_| {
                index += 1;
                !repeated.contains(&(index - 1))
            });
        }
        if let Some((_, sources)) = map.merge {
            let mut known: HashSet<String> = entries.iter().map(|entry| entry.key.clone()).collect();
            for source in sources {
                let Value::Map(merged) = source.value else {
                    continue;
                };
                let new = merged.into_iter().filter(|merged| known.insert(merged.key.clone()));
                entries.extend(new);
            }
        }
        entries
    }

    fn add_alias(&mut self, id: usize, at: Mark) -> Result<(), Stop> {
        let Some(anchored) = self.anchors.get(&id) else {
            return Err(Stop::Document(
                Problem::error("alias", at, "the alias is inside the value of its own anchor")
                    .with_hint("write the value instead of the alias"),
            ));
        };
        let size = anchored.size;
        if self.open_collections.len() + size.height > MAX_DEPTH {
            return Err(Stop::Document(too_deep(at)));
        }
        self.count_copy(size, at)?;
        let Some(node) = self.anchors.get(&id).map(|anchored| anchored.node.clone()) else {
            return Ok(());
        };
        if !self.is_key_next() {
            return self.add_node(node, 0, size);
        }
        match (node.value, self.open_collections.last_mut().map(|open| &mut open.content)) {
            (Value::Text(text), Some(Content::Map(map))) => {
                map.key = Some(Key::Name(text, at));
                Ok(())
            }
            _ => Err(Stop::Document(
                Problem::error("key", at, "an alias of a value that is not a string cannot be a key")
                    .with_hint("write the key instead of the alias"),
            )),
        }
    }

    /// Adds a complete value to its parent.
    fn add_node(&mut self, node: Node, anchor: usize, size: Size) -> Result<(), Stop> {
        if anchor != 0 {
            self.store_anchor(anchor, &node, size)?;
        }
        let Some(parent) = self.open_collections.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        parent.size.nodes += size.nodes;
        parent.size.bytes += size.bytes;
        parent.size.height = parent.size.height.max(size.height + 1);
        match &mut parent.content {
            Content::List(nodes) => nodes.push(node),
            Content::Map(map) => match map.key.take() {
                Some(Key::Name(key, at)) => {
                    parent.size.bytes += key.len();
                    map.entries.push(Entry { key, at, node });
                }
                Some(Key::Merge(at)) => return self.add_merge(at, node),
                // `is_key_next` handles keys.
                None => {}
            },
        }
        Ok(())
    }

    fn add_merge(&mut self, at: Mark, node: Node) -> Result<(), Stop> {
        let refuse = || {
            Stop::Document(
                Problem::error("key", at, "`<<` takes an object or a list of objects")
                    .with_hint("put it in quotes if it is meant as a key"),
            )
        };
        let is_map = |node: &Node| matches!(node.value, Value::Map(_));
        let sources = match node.value {
            Value::Map(_) => vec![node],
            Value::List(nodes) if nodes.iter().all(is_map) => nodes,
            _ => return Err(refuse()),
        };
        if let Some(Content::Map(map)) = self.open_collections.last_mut().map(|open| &mut open.content) {
            if let Some((first, _)) = map.merge {
                let message = format!("duplicate key `<<`; the first one is on line {}", first.line);
                self.problems.add(
                    Problem::error("duplicate-key", at, message)
                        .with_hint("merge several with one list: <<: [*one, *other]"),
                );
            } else {
                map.merge = Some((at, sources));
            }
        }
        Ok(())
    }

    fn store_anchor(&mut self, anchor: usize, node: &Node, size: Size) -> Result<(), Stop> {
        // Otherwise anchors within anchors would store a copy per level for free.
        self.count_copy(size, node.at)?;
        let node = node.clone();
        self.anchors.insert(anchor, AnchoredNode { node, size });
        Ok(())
    }

    fn is_key_next(&self) -> bool {
        match self.open_collections.last().map(|open| &open.content) {
            Some(Content::Map(map)) => map.key.is_none(),
            _ => false,
        }
    }

    fn expect_tag(&mut self, tag: Option<&Tag>, wanted: &str, at: Mark) {
        if tag.is_some_and(|tag| tag.core_suffix() != Some(wanted)) {
            self.report_tag(at);
        }
    }

    fn report_tag(&mut self, at: Mark) {
        self.problems.add(
            Problem::error("tag", at, "a tag that manifests do not use")
                .with_hint("remove the word that starts with `!`, or put the value in quotes"),
        );
    }
}
