//! Content that the provider would have to get from elsewhere.
//!
//! An image may be written as an address, and then the provider fetches it: the agent would reach any host, with any words in
//! the address, past the gateway; a server of models in a cluster would reach the cluster. A file may be named by what the
//! provider has kept for the owner of the key. Neither is needed: content can be sent inline. So wherever content has a
//! field that names a place, it holds `data:` and nothing else, however the field's name is written.
//!
//! Calls of tools and their arguments are not content. They are read by the model and by us, and may name what they like.

use serde_json::value::RawValue;

/// Levels of arrays and objects in messages. Results of tools with images in them need seven.
pub const MAX_LEVELS: usize = 16;
/// Fields that hold an address. Compared without regard to letters, as some servers do.
const ADDRESSES: &[&str] = &["audio_url", "file_uri", "file_url", "fileuri", "image_url", "uri", "url", "video_url"];
/// Fields that name what a provider keeps.
const KEPT: &[&str] = &["container_id", "file_id", "file_ids"];
/// How content that is there begins, as it is written: who writes it with escapes has something to hide.
const INLINE: &str = "\"data:";
/// Most bytes of a name that could be one of these, in whichever letters.
const MAX_NAME: usize = 64;

/// Why messages do not go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Remote {
    /// They name a place.
    #[error("must not have content elsewhere, as in `{0}`: send it inline, as `data:`")]
    Place(&'static str),
    /// They are nested too deep to look into.
    #[error("must not be nested more than {MAX_LEVELS} deep")]
    TooDeep,
    /// A name in them cannot be read.
    #[error("must not have a name that cannot be read")]
    Unreadable,
}

/// Whether messages hold all of their content.
pub fn check_messages(messages: &RawValue) -> Result<(), Remote> {
    walk(messages, At::Messages, MAX_LEVELS)
}

/// Whether what is content itself, such as the text of a system, is all there.
pub fn check_content(content: &RawValue) -> Result<(), Remote> {
    walk(content, At::Content, MAX_LEVELS)
}

/// Where in a request we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// The list of messages, or a message of it.
    Messages,
    /// What a message holds, at any depth.
    Content,
    /// The value of a field that holds an address.
    Address(&'static str),
}

/// A list or an object that is open.
#[derive(Debug, Clone, Copy)]
struct Open {
    is_object: bool,
    /// Where its items are, or its names.
    at: At,
    /// Whether a name comes next.
    expects_name: bool,
    /// What the name before the next value makes of it.
    value: Field,
}

/// Once through the text, which was read before and is JSON: it may have many megabytes.
fn walk(value: &RawValue, at: At, levels: usize) -> Result<(), Remote> {
    let json = value.get();
    let bytes = json.as_bytes();
    let mut open: Vec<Open> = Vec::with_capacity(levels);
    let mut index = 0;
    while let Some(byte) = bytes.get(index) {
        let next = match open.last() {
            None => Field::Holds(at),
            Some(open) if open.is_object => open.value,
            Some(open) => Field::Holds(open.at),
        };
        match byte {
            b'{' | b'[' => match next {
                Field::Holds(_) if open.len() == levels => return Err(Remote::TooDeep),
                Field::Holds(at) => {
                    open.push(Open { is_object: *byte == b'{', at, expects_name: true, value: Field::Skipped })
                }
                Field::Skipped | Field::Kept(_) => index = end_of_container(bytes, index),
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
                let text = json.get(index..=end).ok_or(Remote::Unreadable)?;
                match open.last_mut() {
                    Some(open) if open.is_object && open.expects_name => {
                        open.expects_name = false;
                        open.value = named(open.at, text)?;
                    }
                    _ => check_text(next, text)?,
                }
                index = end;
            }
            _ => {}
        }
        index += 1;
    }
    Ok(())
}

fn check_text(is: Field, text: &str) -> Result<(), Remote> {
    match is {
        Field::Holds(At::Address(field)) if !text.starts_with(INLINE) => Err(Remote::Place(field)),
        _ => Ok(()),
    }
}

/// The value of this name, which is in its quotes.
fn named(at: At, quoted: &str) -> Result<Field, Remote> {
    let field = if quoted.contains('\\') {
        let name: String = serde_json::from_str(quoted).map_err(|_| Remote::Unreadable)?;
        field(at, &name)
    } else {
        field(at, quoted.trim_matches('"'))
    };
    match field {
        Field::Kept(name) => Err(Remote::Place(name)),
        field => Ok(field),
    }
}

/// The quote that ends the text which begins here.
fn end_of_text(json: &[u8], start: usize) -> usize {
    let mut index = start + 1;
    while let Some(rest) = json.get(index..) {
        match rest.iter().position(|byte| matches!(byte, b'"' | b'\\')) {
            Some(found) if rest[found] == b'"' => return index + found,
            // What is escaped is no end.
            Some(found) => index += found + 2,
            None => break,
        }
    }
    json.len()
}

/// The bracket that ends the list or object which begins here.
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

/// What a field is to us.
#[derive(Debug, Clone, Copy)]
enum Field {
    Skipped,
    Kept(&'static str),
    Holds(At),
}

fn field(at: At, name: &str) -> Field {
    let others = match at {
        // Calls are beside the content of a message.
        At::Messages => Field::Skipped,
        At::Content | At::Address(_) => Field::Holds(At::Content),
    };
    if name.len() > MAX_NAME {
        return others;
    }
    // The long s and the sign for Kelvin are letters too where letters are not told apart.
    let name = name.to_uppercase().to_lowercase();
    let one_of = |names: &[&'static str]| names.iter().find(|it| **it == name).copied();
    if let Some(name) = one_of(ADDRESSES) {
        return Field::Holds(At::Address(name));
    }
    if let Some(name) = one_of(KEPT) {
        return Field::Kept(name);
    }
    match (at, name.as_str()) {
        (At::Messages, "content") => Field::Holds(At::Content),
        // The arguments of a call, where calls are content.
        (At::Content, "input") => Field::Skipped,
        _ => others,
    }
}

#[cfg(test)]
mod tests;
