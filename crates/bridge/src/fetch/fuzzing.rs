//! Fuzz targets for bytes that a model or a server chose, before any of them is trusted. Each target states a property
//! and panics if it does not hold.

use sympozium_ipc::strict_head::{Framing, TargetForm, read_request};

use super::address::Address;
use super::decode::{DecodeProgress, Decoder, Encoding};
use super::frame::BodyFraming;
use super::headers::Headers;

/// The limit of pages in these targets.
const MAX_PAGE_BYTES: usize = 4096;

/// A URL, and in the next line the target of a redirect: an accepted URL has an unambiguous host and path, and a
/// request head that a strict parser accepts.
pub fn fetch_address(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (text, location) = text.split_once('\n').unwrap_or((&text, ""));
    let Ok(address) = Address::parse(text) else {
        return;
    };
    check_address(&address);
    let Ok(next) = address.resolve_redirect(location.as_bytes()) else {
        return;
    };
    assert!(next.is_https() || !address.is_https());
    check_address(&next);
}

fn check_address(address: &Address) {
    let plain = |text: &str| {
        let plain = |byte: u8| byte.is_ascii_graphic() && !b"/@?#\\".contains(&byte);
        !text.is_empty() && text.bytes().all(plain)
    };
    assert!(plain(address.host()), "{address:?}");
    assert!(plain(&address.authority()), "{address:?}");
    assert_ne!(address.port(), 0);
    let (path, authority) = (address.request_target(), address.authority());
    let head = Headers::default().request_head(address);
    match read_request(head.as_bytes(), TargetForm::Server) {
        Ok(read) => {
            assert_eq!(read.target, path);
            assert_eq!(read.fields.first(), Some(&("Host", authority.as_bytes())));
        }
        Err(violation) => panic!("{violation}: {head:?}"),
    }
    // The notation is canonical: parsed again, it is the same, unless escapes have made it too long.
    if let Ok(again) = Address::parse(&address.reported_url(address)) {
        assert_eq!(&again, address);
    }
}

/// A body: the first byte selects framing and encoding, the second the size of the pieces. The output never exceeds the
/// limit.
pub fn fetch_body(data: &[u8]) {
    let &[how, size, ref bytes @ ..] = data else {
        return;
    };
    let framing = match how & 3 {
        0 => None,
        1 => Some(Framing::Length(u64::from(how))),
        _ => Some(Framing::Chunked),
    };
    let encoding = match how >> 6 {
        0 => Encoding::Identity,
        1 => Encoding::Deflate,
        _ => Encoding::Gzip,
    };
    let mut frame = BodyFraming::new(200, framing);
    let mut decoder = Decoder::new(encoding, MAX_PAGE_BYTES);
    'reading: for mut piece in bytes.chunks(usize::from(size).max(1)) {
        let before = piece.len();
        loop {
            match frame.next(&mut piece) {
                Ok(Some(body)) => match decoder.push(body) {
                    Ok(DecodeProgress::More) => {}
                    Ok(DecodeProgress::Full) => break 'reading,
                    Err(_) => return,
                },
                Ok(None) => break,
                Err(_) => return,
            }
        }
        // Bytes that are not consumed come after the end of the body.
        assert!(piece.is_empty() || (frame.is_complete() && piece.len() <= before));
    }
    if let Ok((page, _)) = decoder.finish() {
        assert!(page.len() <= MAX_PAGE_BYTES, "{}", page.len());
    }
}
