use proptest::prelude::*;
use sympozium_ipc::credential::{Claims, KEY_BYTES, KeyRing};
use sympozium_ipc::strict_head::{TargetForm, read_request};
use tokio::io::duplex;

use super::*;

fn credential() -> Credential {
    let keys = KeyRing::single("k1", [7; KEY_BYTES]).unwrap();
    let claims = Claims { run: "r".to_owned(), name: "web".to_owned(), expires: 1 };
    keys.sign(&claims).unwrap()
}

/// Reads an answer that arrives in pieces of this size, after which the gateway closes.
async fn read_in_pieces(text: &[u8], size: usize) -> Result<Bytes, TunnelError> {
    let (mut near, mut far) = duplex(size);
    let text = text.to_vec();
    let writing = tokio::spawn(async move {
        // The reader may have stopped before the end.
        let _ = far.write_all(&text).await;
    });
    let read = read_answer(&mut near).await;
    drop(near);
    writing.await.unwrap();
    read
}

#[test]
fn hosts_that_fit_into_a_line() {
    for (host, expected) in
        [("a.example", "a.example:443"), ("10.0.0.1", "10.0.0.1:443"), ("::1", "[::1]:443"), ("[::1]", "[::1]:443")]
    {
        assert_eq!(target_authority(host, 443).unwrap(), expected);
    }
    let long = "a".repeat(256);
    for host in
        ["", "[]", "a b", "a\r\nProxy-Authorization: x", "a/b", "u@a", "a%41", "a?", "b\u{fc}cher.example", &long]
    {
        let refused = target_authority(host, 443);
        assert!(matches!(refused, Err(TunnelError::Host(_))), "{host}");
    }
}

#[test]
fn the_head_is_one_that_a_strict_reader_takes_and_has_the_credential() {
    let credential = credential();
    let head = connect_head(&credential, "a.example:443");
    let read = read_request(head.as_bytes(), TargetForm::Proxy).unwrap();
    assert_eq!((read.method, read.target), ("CONNECT", "a.example:443"));
    let pair = format!("{}:{}", credential.user, *credential.password);
    let authorization = format!("Basic {}", STANDARD.encode(pair));
    let expected: Fields<'_> = vec![("Host", b"a.example:443"), ("Proxy-Authorization", authorization.as_bytes())];
    assert_eq!(read.fields, expected);
}

#[tokio::test]
async fn what_follows_a_yes_is_the_tunnels() {
    let text = b"HTTP/1.1 200 Connection established\r\n\r\nSSH-2.0";
    assert_eq!(read_in_pieces(text, 4096).await.unwrap(), "SSH-2.0");
    // What was not read with the head is still unread.
    assert_eq!(read_in_pieces(text, 1).await.unwrap(), "");
}

#[tokio::test]
async fn a_no_keeps_its_words_within_bounds() {
    let refused = |body: &str, header: &str| {
        let length = body.len();
        format!("HTTP/1.1 403 Forbidden\r\n{header}Content-Length: {length}\r\n\r\n{body}")
    };
    let long = "x".repeat(5000);
    let word = "Sympozium-Reason: not-in-plan\r\n";
    for (text, expected_reason, expected) in [
        (refused("error: no\nhint: yes\n", word), Some("not-in-plan"), "no\nhint: yes"),
        (refused("error: \x1b[31mred\n", ""), None, "[31mred"),
        (refused("", "Sympozium-Reason: <b>\r\n"), None, "the gateway answers 403"),
        (refused(&long, word), Some("not-in-plan"), &long[..1024]),
        // Shorter than announced, and without a length.
        ("HTTP/1.1 403 no\r\nContent-Length: 99\r\n\r\nerror: no".to_owned(), None, "no"),
        ("HTTP/1.1 403 no\r\n\r\nno".to_owned(), None, "no"),
        ("HTTP/1.1 403 no\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno".to_owned(), None, "the gateway answers 403"),
    ] {
        for size in [1, 7, 8192] {
            match read_in_pieces(text.as_bytes(), size).await {
                Err(TunnelError::Refused { status: 403, reason, message }) => {
                    assert_eq!((reason.as_deref(), &*message), (expected_reason, expected))
                }
                other => panic!("{other:?} for {text:?}"),
            }
        }
    }
}

#[tokio::test]
async fn what_is_no_answer_is_none() {
    let long = format!("HTTP/1.1 200 OK\r\nA: {}", "x".repeat(20_000));
    for text in [
        "",
        "HTTP/1.1 200 OK\r\n",
        "HTTP/2 200 OK\r\n\r\n",
        "SSH-2.0-x\r\n\r\n",
        "HTTP/1.1 200 OK\n\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        &long,
    ] {
        let read = read_in_pieces(text.as_bytes(), 64).await;
        assert!(matches!(read, Err(TunnelError::NotAProxy)), "{text:?}");
    }
}

proptest! {
    #[test]
    fn no_answer_panics_or_is_a_yes_without_saying_so(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let read = runtime.block_on(read_in_pieces(&bytes, 512));
        prop_assert!(read.is_err() || bytes.starts_with(b"HTTP/1."));
    }

    #[test]
    fn no_host_leaves_its_line(host in ".{0,40}") {
        if let Ok(target) = target_authority(&host, 1) {
            let head = connect_head(&credential(), &target);
            let read = read_request(head.as_bytes(), TargetForm::Proxy).unwrap();
            prop_assert_eq!(read.target, target);
            prop_assert_eq!(read.fields.len(), 2);
        }
    }
}
