use proptest::prelude::*;

use super::*;
use crate::fetch::fuzzing::fetch_body;

/// Reads a body that arrives in pieces of this size. Returns it with the final state.
fn read(mut frame: BodyFraming, bytes: &[u8], size: usize) -> Result<(Vec<u8>, BodyFraming), InvalidBody> {
    let mut body = Vec::new();
    for mut piece in bytes.chunks(size.max(1)) {
        while let Some(data) = frame.next(&mut piece)? {
            body.extend_from_slice(data);
        }
    }
    Ok((body, frame))
}

fn chunked() -> BodyFraming {
    BodyFraming::new(200, Some(Framing::Chunked))
}

#[test]
fn bodies_by_their_length_or_the_end() {
    let length = BodyFraming::new(200, Some(Framing::Length(3)));
    assert!(!length.is_complete() && !length.may_close());
    let (body, left) = read(length, b"abcdef", 2).unwrap();
    assert_eq!((&*body, left.is_complete()), (&b"abc"[..], true));
    let (body, left) = read(BodyFraming::new(200, None), b"abc", 2).unwrap();
    assert_eq!((&*body, left.is_complete(), left.may_close()), (&b"abc"[..], false, true));
    for status in [204, 304] {
        assert!(BodyFraming::new(status, Some(Framing::Chunked)).is_complete());
    }
}

#[test]
fn chunks() {
    for text in [
        "3\r\nabc\r\n0\r\n\r\n",
        "1\r\na\r\n02\r\nbc\r\n0\r\nTrailer: x\r\n\r\n",
        "3;name=\"value\"\r\nabc\r\n0;last\r\n\r\n",
        "3\r\nabc\r\n0\r\nwhatever",
    ] {
        for size in 1..8 {
            let (body, left) = read(chunked(), text.as_bytes(), size).unwrap();
            assert_eq!((&*body, left.is_complete()), (&b"abc"[..], true), "{text:?}");
        }
    }
}

#[test]
fn chunks_that_are_none() {
    let long = format!("1;{}\r\na\r\n", "x".repeat(300));
    for text in [
        "\r\n",
        "x\r\n",
        "-1\r\n",
        "+1\r\n",
        " 1\r\n",
        "1 \r\na",
        "0x1\r\na",
        "1\na\n",
        "1\r\nab\r\n",
        "1\r\na\n",
        "1\ra",
        "1;\0\r\na",
        "1\r\na\r\n\r\n",
        ";x\r\n",
        "FFFFFFFFFFFFFFFF\r\n",
        "0000000000000001\r\n",
        &long,
    ] {
        for size in [1, 3, 400] {
            let read = read(chunked(), text.as_bytes(), size);
            assert!(read.is_err(), "{text:?}: {read:?}");
        }
    }
}

#[test]
fn chunks_that_break_off_are_not_whole() {
    let text = b"3\r\nabc\r\n0\r\n";
    for end in 0..text.len() {
        let (_, left) = read(chunked(), &text[..end], 4).unwrap();
        assert!(!left.may_close(), "{end}");
    }
}

proptest! {
    #[test]
    fn chunks_are_what_went_into_them(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..10),
        size in 1_usize..60,
    ) {
        let mut text = Vec::new();
        for piece in &pieces {
            text.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            text.extend_from_slice(piece);
            text.extend_from_slice(b"\r\n");
        }
        text.extend_from_slice(b"0\r\n\r\n");
        let (body, left) = read(chunked(), &text, size).unwrap();
        prop_assert_eq!(body, pieces.concat());
        prop_assert!(left.is_complete());
    }

    #[test]
    fn how_bytes_come_does_not_matter(bytes in "[0-9a-f;\r\n]{0,60}", size in 1_usize..20) {
        let whole = read(chunked(), bytes.as_bytes(), bytes.len());
        prop_assert_eq!(read(chunked(), bytes.as_bytes(), size), whole);
    }

    #[test]
    fn no_body_panics_or_becomes_more_than_the_bound(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        fetch_body(&bytes);
    }
}
