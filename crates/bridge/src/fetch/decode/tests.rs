use std::io::Read as _;

use flate2::Compression;
use flate2::read::{DeflateEncoder, GzEncoder, ZlibEncoder};
use proptest::prelude::*;

use super::*;

/// Decodes a body that arrives in pieces of this size.
fn decoded(encoding: Encoding, bytes: &[u8], size: usize, most: usize) -> Result<(Vec<u8>, bool), InvalidBody> {
    let mut decoder = Decoder::new(encoding, most);
    for piece in bytes.chunks(size) {
        if decoder.push(piece)? == DecodeProgress::Full {
            break;
        }
    }
    decoder.finish()
}

/// In every encoding.
fn encoded(body: &[u8]) -> [(Encoding, Vec<u8>); 4] {
    let level = Compression::default();
    let (mut gzip, mut zlib, mut raw) = (Vec::new(), Vec::new(), Vec::new());
    GzEncoder::new(body, level).read_to_end(&mut gzip).unwrap();
    ZlibEncoder::new(body, level).read_to_end(&mut zlib).unwrap();
    DeflateEncoder::new(body, level).read_to_end(&mut raw).unwrap();
    [(Encoding::Identity, body.to_vec()), (Encoding::Gzip, gzip), (Encoding::Deflate, zlib), (Encoding::Deflate, raw)]
}

#[test]
fn encodings_by_their_names() {
    let of = |values: &[&str]| Encoding::from_headers(values.iter().map(|value| value.as_bytes()));
    for (values, expected) in [
        (&[][..], Some(Encoding::Identity)),
        (&["identity"], Some(Encoding::Identity)),
        (&[""], Some(Encoding::Identity)),
        (&["GZIP"], Some(Encoding::Gzip)),
        (&["x-gzip"], Some(Encoding::Gzip)),
        (&["deflate"], Some(Encoding::Deflate)),
        (&["br"], None),
        (&["zstd"], None),
        (&["gzip, gzip"], None),
        (&["gzip", "gzip"], None),
        (&["identity", "gzip"], None),
    ] {
        assert_eq!(of(values), expected, "{values:?}");
    }
}

#[test]
fn a_bomb_stops_at_the_bound() {
    // 16 MiB of zeros are compressed to 16 KiB.
    let nothing = std::io::repeat(0).take(16 << 20);
    let mut bomb = Vec::new();
    GzEncoder::new(nothing, Compression::best()).read_to_end(&mut bomb).unwrap();
    let most = 1 << 20;
    let mut decoder = Decoder::new(Encoding::Gzip, most);
    let stopped = bomb.chunks(1024).position(|chunk| decoder.push(chunk).unwrap() == DecodeProgress::Full);
    // About a sixteenth of it had to be read.
    assert!(stopped.is_some_and(|index| index <= 3), "{stopped:?}");
    let (page, truncated) = decoder.finish().unwrap();
    assert_eq!((page.len(), truncated), (most, true));
    assert!(page.capacity() <= 2 * most);
}

#[test]
fn a_body_that_becomes_nothing_stops_too() {
    // Empty stored blocks, none of them the last one.
    let empty = b"\x00\x00\x00\xff\xff".repeat(100_000);
    let (page, truncated) = decoded(Encoding::Deflate, &empty, 4096, 1000).unwrap();
    assert_eq!((page.len(), truncated), (0, true));
    let head = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff";
    let members = [&head[..], &empty].concat();
    let (page, truncated) = decoded(Encoding::Gzip, &members, 4096, 1000).unwrap();
    assert_eq!((page.len(), truncated), (0, true));
}

#[test]
fn several_members_are_one_page() {
    let [_, (_, gzip), ..] = encoded(b"abc");
    let twice = [&*gzip, &*gzip].concat();
    let page = decoded(Encoding::Gzip, &twice, 7, 100).unwrap();
    assert_eq!(page, (b"abcabc".to_vec(), false));
}

#[test]
fn what_is_not_compressed_as_it_says_is_no_page() {
    for encoding in [Encoding::Gzip, Encoding::Deflate] {
        for bytes in [&b"<html>"[..], b"\xff\xff\xff\xff", b"x", b"\x1f\x8b\x08"] {
            let refused = decoded(encoding, bytes, 2, 100);
            assert_eq!(refused, Err(INVALID_ENCODING), "{encoding:?} {bytes:?}");
        }
        // A response without a body.
        assert_eq!(decoded(encoding, b"", 1, 100), Ok((Vec::new(), false)));
    }
    for (encoding, bytes) in encoded(b"a page that is long enough to be cut").into_iter().skip(1) {
        for end in 1..bytes.len() {
            let cut = decoded(encoding, &bytes[..end], 5, 100);
            assert_eq!(cut, Err(INVALID_ENCODING), "{encoding:?} {end}");
        }
    }
    let [_, (_, mut gzip), ..] = encoded(b"abc");
    let checksum = gzip.len() - 8;
    gzip[checksum] ^= 1;
    assert_eq!(decoded(Encoding::Gzip, &gzip, 99, 100), Err(INVALID_ENCODING));
}

proptest! {
    #[test]
    fn a_page_is_what_was_compressed_up_to_the_bound(
        body in prop::collection::vec(prop::sample::select(vec![0_u8, 1, 255]), 0..3000),
        size in 1_usize..500,
        most in 0_usize..4000,
    ) {
        for (encoding, bytes) in encoded(&body) {
            let (page, truncated) = decoded(encoding, &bytes, size, most).unwrap();
            prop_assert_eq!(&page, &body[..body.len().min(most)]);
            prop_assert_eq!(truncated, body.len() > most);
        }
    }

    #[test]
    fn no_bytes_panic_or_become_more_than_the_bound(
        bytes in prop::collection::vec(any::<u8>(), 0..500),
        size in 1_usize..50,
        most in 0_usize..200,
    ) {
        for encoding in [Encoding::Identity, Encoding::Gzip, Encoding::Deflate] {
            if let Ok((page, _)) = decoded(encoding, &bytes, size, most) {
                prop_assert!(page.len() <= most);
            }
        }
    }

    #[test]
    fn damage_never_becomes_more_than_the_bound(
        body in prop::collection::vec(prop::sample::select(vec![0_u8, 1, 255]), 0..3000),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        size in 1_usize..500,
        most in 0_usize..4000,
    ) {
        for (encoding, mut bytes) in encoded(&body).into_iter().skip(1) {
            for (place, value) in &damage {
                let place = place.index(bytes.len());
                bytes[place] = *value;
            }
            if let Ok((page, _)) = decoded(encoding, &bytes, size, most) {
                prop_assert!(page.len() <= most);
            }
        }
    }
}
