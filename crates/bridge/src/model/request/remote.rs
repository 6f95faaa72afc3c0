//! Finds content that the provider would fetch from elsewhere.
//!
//! An image may be given as a URL, which the provider fetches: the agent would reach any host past the gateway, with
//! any text in the URL, and a model server in a cluster would reach the cluster. A file may be given as the ID of what
//! the provider has stored for the owner of the key. Neither is needed, because content can be sent inline. So in
//! content, every field that holds a URL must hold a `data:` URL, however its name is written.
//!
//! Tool calls and their arguments are not content. The model and the bridge read them, and they may name anything.

use serde_json::value::RawValue;

/// Maximum nesting depth of messages. Tool results with images need seven levels.
pub const MAX_LEVELS: usize = 16;
/// Fields that hold a URL. Compared without case, as some servers do.
const URL_FIELDS: &[&str] = &["audio_url", "file_uri", "file_url", "fileuri", "image_url", "uri", "url", "video_url"];
/// Fields that name objects stored at the provider.
const STORED_FIELDS: &[&str] = &["container_id", "file_id", "file_ids"];
/// The beginning of inline content as raw JSON: an escaped one is refused, because an honest agent does not escape it.
const INLINE_PREFIX: &str = "\"data:";
/// Maximum number of bytes of a name that can match, in any case.
const MAX_NAME: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RemoteContent {
    /// They refer to content elsewhere.
    #[error("must not have content elsewhere, as in `{0}`: send it inline, as `data:`")]
    Reference(&'static str),
    #[error("must not be nested more than {MAX_LEVELS} deep")]
    TooDeep,
    #[error("must not have a name that cannot be read")]
    Unreadable,
}

/// Checks that messages have no remote content.
pub fn check_messages(messages: &RawValue) -> Result<(), RemoteContent> {
    walk(messages, Position::Messages, MAX_LEVELS)
}

/// Checks that content, such as a system prompt, is not remote.
pub fn check_content(content: &RawValue) -> Result<(), RemoteContent> {
    walk(content, Position::Content, MAX_LEVELS)
}

/// The position in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    /// The list of messages, or a message of it.
    Messages,
    /// The content of a message, at any depth.
    Content,
    /// The value of a field that holds a URL.
    Address(&'static str),
}

/// An open list or object.
#[derive(Debug, Clone, Copy)]
struct Container {
    is_object: bool,
    /// The position of its items or fields.
    position: Position,
    expects_name: bool,
    /// What the last name says about the next value.
    value: FieldKind,
}

/// One pass over text that was parsed before and is valid JSON: it may have many megabytes.
fn walk(value: &RawValue, at: Position, levels: usize) -> Result<(), RemoteContent> {
    let json = value.get();
    let bytes = json.as_bytes();
    let mut open: Vec<Container> = Vec::with_capacity(levels);
    let mut index = 0;
    while let Some(byte) = bytes.get(index) {
        let next = match open.last() {
            None => FieldKind::Checked(at),
            Some(open) if open.is_object => open.value,
            Some(open) => FieldKind::Checked(open.position),
        };
        match byte {
            b'{' | b'[' => match next {
                FieldKind::Checked(_) if open.len() == levels => return Err(RemoteContent::TooDeep),
                FieldKind::Checked(at) => open.push(Container {
                    is_object: *byte == b'{',
                    position: at,
                    expects_name: true,
                    value: FieldKind::Skipped,
                }),
                FieldKind::Skipped | FieldKind::Stored(_) => index = end_of_container(bytes, index),
            },
            b'}' | b']' => {
                open.pop();
            }
            b',' => {
                if let Some(open) = open.last_mut() {
                    open.expects_name = true;
                }
            }
            b'"' => {
                let end = end_of_text(bytes, index);
                let text = json.get(index..=end).ok_or(RemoteContent::Unreadable)?;
                match open.last_mut() {
                    Some(open) if open.is_object && open.expects_name => {
                        open.expects_name = false;
                        open.value = classify_name(open.position, text)?;
                    }
                    _ => check_value(next, text)?,
                }
                index = end;
            }
            _ => {}
        }
        index += 1;
    }
    Ok(())
}

fn check_value(is: FieldKind, text: &str) -> Result<(), RemoteContent> {
    match is {
        FieldKind::Checked(Position::Address(field)) if !text.starts_with(INLINE_PREFIX) => {
            Err(RemoteContent::Reference(field))
        }
        _ => Ok(()),
    }
}

/// Classifies the value of a field by its quoted name.
fn classify_name(at: Position, quoted: &str) -> Result<FieldKind, RemoteContent> {
    let field = if quoted.contains('\\') {
        let name: String = serde_json::from_str(quoted).map_err(|_| RemoteContent::Unreadable)?;
        classify_field(at, &name)
    } else {
        classify_field(at, quoted.trim_matches('"'))
    };
    match field {
        FieldKind::Stored(name) => Err(RemoteContent::Reference(name)),
        field => Ok(field),
    }
}

/// The index of the quote that ends the string at `start`.
fn end_of_text(json: &[u8], start: usize) -> usize {
    let mut index = start + 1;
    while let Some(rest) = json.get(index..) {
        match rest.iter().position(|byte| matches!(byte, b'"' | b'\\')) {
            Some(found) if rest[found] == b'"' => return index + found,
            // An escaped quote does not end the string.
            Some(found) => index += found + 2,
            None => break,
        }
    }
    json.len()
}

/// The index of the bracket that ends the container at `start`.
fn end_of_container(json: &[u8], start: usize) -> usize {
    let (mut depth, mut index) = (0_usize, start);
    while let Some(byte) = json.get(index) {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 1 => break,
            b'}' | b']' => depth -= 1,
            b'"' => index = end_of_text(json, index),
            _ => {}
        }
        index += 1;
    }
    index
}

/// What a field means for the check.
#[derive(Debug, Clone, Copy)]
enum FieldKind {
    Skipped,
    Stored(&'static str),
    Checked(Position),
}

fn classify_field(at: Position, name: &str) -> FieldKind {
    let others = match at {
        // Tool calls are beside the content of a message.
        Position::Messages => FieldKind::Skipped,
        Position::Content | Position::Address(_) => FieldKind::Checked(Position::Content),
    };
    if name.len() > MAX_NAME {
        return others;
    }
    // Both conversions, because the long s and the Kelvin sign are equal to ASCII letters in a comparison without case.
    let name = name.to_uppercase().to_lowercase();
    let one_of = |names: &[&'static str]| names.iter().find(|known| **known == name).copied();
    if let Some(name) = one_of(URL_FIELDS) {
        return FieldKind::Checked(Position::Address(name));
    }
    if let Some(name) = one_of(STORED_FIELDS) {
        return FieldKind::Stored(name);
    }
    match (at, name.as_str()) {
        (Position::Messages, "content") => FieldKind::Checked(Position::Content),
        // The arguments of a call, where calls are content.
        (Position::Content, "input") => FieldKind::Skipped,
        _ => others,
    }
}

#[cfg(test)]
mod tests;
