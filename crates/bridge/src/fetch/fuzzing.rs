//! The bodies of fuzz targets: bytes that a model or a server chose, before anything of them is trusted. Each one states a
//! property and panics when it does not hold.

use sympozium_ipc::strict_head::{Framing, Targets, read_request};

use super::address::Address;
use super::decode::{Decoder, Encoding, Progress};
use super::frame::Frame;
use super::headers::Headers;

/// The bound on pages here.
const MOST: usize = 4096;

/// An address, and in the next line one that a server redirects to: what is taken of them has a host and a path that say
/// one thing only, and a head that a strict reader takes.
pub fn fetch_address(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (text, location) = text.split_once('\n').unwrap_or((&text, ""));
    let Ok(address) = Address::parse(text) else {
        return;
    };
    check_address(&address);
    let Ok(next) = address.redirected(location.as_bytes()) else {
        return;
    };
    assert!(next.is_encrypted() || !address.is_encrypted());
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
    let (path, authority) = (address.path(), address.authority());
    let head = Headers::default().head(address);
    match read_request(head.as_bytes(), Targets::Server) {
        Ok(read) => {
            assert_eq!(read.target, path);
            assert_eq!(read.fields.first(), Some(&("Host", authority.as_bytes())));
        }
        Err(violation) => panic!("{violation}: {head:?}"),
    }
    // It is one way to write it: read again, it is the same, unless escapes have made it too long.
    if let Ok(again) = Address::parse(&address.shown(address)) {
        assert_eq!(&again, address);
    }
}

/// A body: the first byte says how it is framed and compressed, the second in which pieces it comes. It never becomes
/// more than the bound.
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
    let mut frame = Frame::new(200, framing);
    let mut decoder = Decoder::new(encoding, MOST);
    'reading: for mut piece in bytes.chunks(usize::from(size).max(1)) {
        let before = piece.len();
        loop {
            match frame.next(&mut piece) {
                Ok(Some(body)) => match decoder.push(body) {
                    Ok(Progress::More) => {}
                    Ok(Progress::Full) => break 'reading,
                    Err(_) => return,
                },
                Ok(None) => break,
                Err(_) => return,
            }
        }
        // What is not taken comes after the end.
        assert!(piece.is_empty() || (frame.is_over() && piece.len() <= before));
    }
    if let Ok((page, _)) = decoder.finish() {
        assert!(page.len() <= MOST, "{}", page.len());
    }
}
