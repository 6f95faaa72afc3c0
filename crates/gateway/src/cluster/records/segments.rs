//! Splits lines into segments that fit into an object. Pure: the same report gives the same segments on every gateway.

use serde_json::json;
use sympozium_api::digest::{CanonicalJsonError, digest};
use sympozium_api::limits::{RECORD_LINE, RECORD_LINES};
use sympozium_api::names::Digest;
use sympozium_api::run_record::RecordKind;
use sympozium_ipc::receipt::{LineError, Verifier};

use crate::run_api::local::to_json_line;

/// Maximum number of bytes of the lines of one segment, as they are stored. etcd accepts 1.5 MiB, and an object has
/// more than its lines.
pub const MAX_SEGMENT_BYTES: usize = 1 << 20;
/// Maximum number of characters of a truncated line, without the JSON around it.
const MAX_TRUNCATED_CHARS: usize = RECORD_LINE - 128;
/// The domain of the hash of a transcript line: of the line and the hash of the previous one, which for the first is
/// the plan's digest.
const TRANSCRIPT_DOMAIN: &str = "sympozium.ai/transcript/v1";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    pub kind: RecordKind,
    /// From 0.
    pub number: i64,
    pub first_line: i64,
    pub lines: Vec<String>,
    /// The hash that covers everything before this segment; `None` for the first.
    pub previous_head: Option<Digest>,
    /// The hash that covers everything up to the end of this segment.
    pub head: Digest,
}

/// The position of the next segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SegmentPosition {
    pub kind: RecordKind,
    /// Number of segments so far.
    pub segments: i64,
    /// Number of lines so far.
    pub lines: i64,
    /// The hash that covers them.
    pub head: Digest,
}

/// Splits lines, each with the hash that covers it.
fn split_segments(place: SegmentPosition, lines: Vec<(String, Digest)>) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    let mut bytes = 0;
    let mut place = place;
    for (line, head) in lines {
        let more = stored_bytes(&line);
        let fits = bytes + more <= MAX_SEGMENT_BYTES;
        match segments.last_mut() {
            Some(last) if fits && last.lines.len() < RECORD_LINES => {
                last.lines.push(line);
                last.head = head.clone();
                bytes += more;
            }
            _ => {
                segments.push(Segment {
                    kind: place.kind,
                    number: place.segments,
                    first_line: place.lines,
                    lines: vec![line],
                    previous_head: (place.segments > 0).then(|| place.head.clone()),
                    head: head.clone(),
                });
                place.segments += 1;
                bytes = more;
            }
        }
        place.lines += 1;
        place.head = head;
    }
    segments
}

/// Splits receipts.
///
/// # Errors
///
/// Returns an error if they do not follow the previous ones.
pub(super) fn split_receipts(place: SegmentPosition, lines: &[String]) -> Result<Vec<Segment>, LineError> {
    let number = u64::try_from(place.lines).unwrap_or(u64::MAX);
    let mut verifier = Verifier::resume(number, place.head.clone());
    let mut hashed = Vec::with_capacity(lines.len());
    for line in lines {
        verifier.read(line)?;
        hashed.push((line.clone(), verifier.head().clone()));
    }
    Ok(split_segments(place, hashed))
}

/// The part of a transcript that is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TranscriptSegments {
    pub segments: Vec<Segment>,
    /// Bytes of the lines in the segments.
    pub bytes: i64,
    /// Whether there was more.
    pub truncated: bool,
}

/// Splits a transcript: the lines that fit into `room` bytes, up to the first that does not.
///
/// # Errors
///
/// Never, because lines are strings.
pub(super) fn split_transcript(
    place: SegmentPosition,
    lines: &[String],
    room: u64,
) -> Result<TranscriptSegments, CanonicalJsonError> {
    let (mut bytes, mut cut) = (0, false);
    let mut head = place.head.clone();
    let mut hashed = Vec::new();
    for line in lines {
        let line = to_stored_line(&to_json_line(line));
        let more = line.len() as u64 + 1;
        if bytes + more > room {
            cut = true;
            break;
        }
        bytes += more;
        head = digest(TRANSCRIPT_DOMAIN, &(&head, &line))?;
        hashed.push((line, head.clone()));
    }
    Ok(TranscriptSegments {
        segments: split_segments(place, hashed),
        bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
        truncated: cut,
    })
}

/// A line of JSON in its stored form: if it is too long, an object with its beginning as a string.
fn to_stored_line(line: &str) -> String {
    if line.len() <= RECORD_LINE || line.chars().count() <= RECORD_LINE {
        return line.to_owned();
    }
    let (mut characters, mut end) = (0, 0);
    for (place, letter) in line.char_indices() {
        // As escaped in a JSON string.
        characters += match letter {
            '"' | '\\' => 2,
            '\0'..='\x1f' => 6,
            _ => 1,
        };
        if characters > MAX_TRUNCATED_CHARS {
            break;
        }
        end = place + letter.len_utf8();
    }
    json!({ "cut": line[..end], "bytes": line.len() }).to_string()
}

/// Bytes of a text as the API server stores it: it escapes more than JSON requires.
pub(super) fn stored_bytes(text: &str) -> usize {
    // Two quotes and a comma.
    text.chars().map(stored_char_bytes).sum::<usize>() + 3
}

pub(super) fn stored_char_bytes(letter: char) -> usize {
    match letter {
        '"' | '\\' => 2,
        '\0'..='\x1f' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => 6,
        other => other.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use sympozium_ipc::receipt::{Chain, Event};

    use super::*;

    fn place(kind: RecordKind) -> SegmentPosition {
        SegmentPosition { kind, segments: 0, lines: 0, head: Digest::new("sha256:00") }
    }

    fn chain(count: u64) -> (Vec<String>, Digest) {
        let mut chain = Chain::new(Digest::new("sha256:00"));
        let line = |number| {
            let (run, by) = ("u".to_owned(), "b".to_owned());
            chain.add(number, Event::Started { run, by }).unwrap().text
        };
        let lines = (0..count).map(line).collect();
        (lines, chain.head().clone())
    }

    #[test]
    fn pieces_follow_from_each_other_and_hold_every_line_once() {
        let (lines, head) = chain(600);
        let all = split_receipts(place(RecordKind::Receipts), &lines).unwrap();
        assert_eq!(all.iter().map(|segment| segment.lines.len()).collect::<Vec<_>>(), [256, 256, 88]);
        assert_eq!(all.iter().map(|segment| segment.first_line).collect::<Vec<_>>(), [0, 256, 512]);
        let joined: Vec<String> = all.iter().flat_map(|segment| segment.lines.clone()).collect();
        assert_eq!(joined, lines);
        let heads: Vec<_> = all.iter().map(|segment| segment.previous_head.clone()).collect();
        assert_eq!(heads, [None, Some(all[0].head.clone()), Some(all[1].head.clone())]);
        assert_eq!(all[2].head, head);
        // In two reports they are other segments of the same chain.
        let first = split_receipts(place(RecordKind::Receipts), &lines[..100]).unwrap();
        let next =
            SegmentPosition { segments: 1, lines: 100, head: first[0].head.clone(), ..place(RecordKind::Receipts) };
        let second = split_receipts(next.clone(), &lines[100..200]).unwrap();
        assert_eq!((second[0].number, second[0].first_line), (1, 100));
        assert_eq!(second[0].previous_head.as_ref(), Some(&first[0].head));
        assert!(split_receipts(next, &lines[101..]).is_err());
    }

    #[test]
    fn a_piece_stays_below_what_is_stored_whatever_is_in_it() {
        let line = format!("\"{}\"", "<".repeat(RECORD_LINE - 2));
        let lines = vec![line; 100];
        let stored = split_transcript(place(RecordKind::Transcript), &lines, u64::MAX).unwrap();
        assert!(stored.segments.len() > 1 && !stored.truncated);
        for segment in &stored.segments {
            let bytes: usize = segment.lines.iter().map(|line| stored_bytes(line)).sum();
            assert!(bytes <= MAX_SEGMENT_BYTES, "{bytes}");
        }
        let count: usize = stored.segments.iter().map(|segment| segment.lines.len()).sum();
        assert_eq!(count, 100);
    }

    #[test]
    fn long_lines_are_cut_and_say_so() {
        let fits = format!("\"{}\"", "é".repeat(RECORD_LINE - 2));
        assert_eq!(to_stored_line(&fits), fits);
        for filling in ["x", "é", "\\\"", "\u{10ffff}"] {
            let line = format!("\"{}\"", filling.repeat(RECORD_LINE));
            let short = to_stored_line(&line);
            assert!(short.chars().count() <= RECORD_LINE, "{filling}");
            let read: serde_json::Value = serde_json::from_str(&short).unwrap();
            let beginning = read["cut"].as_str().unwrap();
            assert!(line.starts_with(beginning) && beginning.len() > 1000, "{filling}");
            assert_eq!(read["bytes"], line.len());
        }
    }

    #[test]
    fn a_transcript_ends_where_there_is_no_room() {
        let lines = ["{}", "{\"a\":1}", "{}"].map(str::to_owned);
        let split = |room| {
            let stored = split_transcript(place(RecordKind::Transcript), &lines, room).unwrap();
            let count: usize = stored.segments.iter().map(|segment| segment.lines.len()).sum();
            (count, stored.bytes, stored.truncated)
        };
        assert_eq!(split(14), (3, 14, false));
        assert_eq!(split(13), (2, 11, true));
        // Later lines would look as if nothing were missing before them.
        assert_eq!(split(10), (1, 3, true));
        assert_eq!(split(0), (0, 0, true));
    }
}
