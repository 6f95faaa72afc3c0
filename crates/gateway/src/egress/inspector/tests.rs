use super::super::tls_records::RETRY_RANDOM;
use super::super::tls_records::examples::{example_hello, example_retry_request};
use super::*;

const CHANGE_CIPHER_SPEC: &[u8] = &[20, 3, 3, 0, 1, 1];
const EARLY_DATA: &[u8] = &[23, 3, 3, 0, 3, 7, 7, 7];

fn inspector(port: u16) -> Inspector {
    Inspector::new(Host::parse("a.example").unwrap(), port)
}

/// The bytes of a tunnel, in order.
enum Step {
    Client(Vec<u8>),
    Server(Vec<u8>),
}

/// How many bytes of the client pass, or why the tunnel is cut. The result must not depend on how the bytes are split.
fn inspect(port: u16, steps: &[Step]) -> Result<usize, Reason> {
    let in_pieces = |size: usize| {
        let mut inspector = inspector(port);
        let mut passed = 0;
        for step in steps {
            match step {
                Step::Client(bytes) => {
                    for piece in bytes.chunks(size) {
                        passed += inspector.push(piece)?.len();
                    }
                }
                Step::Server(bytes) => bytes.chunks(size).for_each(|chunk| inspector.observe(chunk)),
            }
        }
        Ok(passed)
    };
    let whole = in_pieces(usize::MAX);
    for size in [1, 2, 5, 7] {
        assert_eq!(in_pieces(size), whole, "in pieces of {size}");
    }
    whole
}

fn server_hello() -> Vec<u8> {
    let mut bytes = example_retry_request();
    let at = bytes.windows(RETRY_RANDOM.len()).position(|window| window == RETRY_RANDOM);
    bytes[at.unwrap()] ^= 1;
    bytes
}

#[test]
fn what_looks_like_tls_at_any_port_has_to_be_a_hello() {
    let good = example_hello("a.example");
    let warning = [21, 3, 1, 0, 2, 1, 100];
    let all = |bytes: &[u8]| Ok(bytes.len());
    let cut = Err(Reason::HelloMalformed);
    for (first, at_443, elsewhere) in [
        (good.clone(), all(&good), all(&good)),
        // A server that skips what comes before would see the other name.
        ([&[22, 3, 1, 0, 0], &example_hello("b.example")[..]].concat(), cut, cut),
        ([&warning, &example_hello("b.example")[..]].concat(), cut, cut),
        ([CHANGE_CIPHER_SPEC, &example_hello("b.example")].concat(), cut, cut),
        (vec![22, 3, 1, 0, 4, 2, 0, 0, 0], cut, cut),
        (example_hello("b.example"), Err(Reason::OtherServerName), Err(Reason::OtherServerName)),
        (b"SSH-2.0-x".to_vec(), Err(Reason::NotTls), Ok(9)),
        // Held back until it is decided.
        (vec![22], Ok(0), Ok(0)),
        (vec![22, 1, 2], Err(Reason::NotTls), Ok(3)),
    ] {
        let steps = [Step::Client(first.clone())];
        assert_eq!(inspect(TLS_PORT, &steps), at_443, "{first:?} at 443");
        assert_eq!(inspect(8443, &steps), elsewhere, "{first:?} elsewhere");
    }
}

#[test]
fn a_second_hello_names_the_same_server() {
    let first = example_hello("a.example");
    let evil = example_hello("b.example");
    let early = [CHANGE_CIPHER_SPEC, EARLY_DATA].concat();
    let warning = vec![21, 3, 3, 0, 2, 1, 112];
    let client = |parts: &[&[u8]]| Step::Client(parts.concat());
    let server = |parts: &[&[u8]]| Step::Server(parts.concat());
    let retry = example_retry_request();
    let cut = Err(Reason::HelloMalformed);
    for (what, expected, steps) in [
        (
            "another name after a retry",
            Err(Reason::OtherServerName),
            vec![client(&[&first]), server(&[&retry]), client(&[&evil])],
        ),
        (
            "after a warning, early data and a change of ciphers",
            Err(Reason::OtherServerName),
            vec![client(&[&first, &early]), server(&[&warning, &retry]), client(&[&early, &evil])],
        ),
        (
            "the same name",
            Ok(2 * first.len() + early.len()),
            vec![client(&[&first]), server(&[&retry]), client(&[CHANGE_CIPHER_SPEC, &first, EARLY_DATA])],
        ),
        ("not whole yet", Ok(first.len()), vec![client(&[&first]), server(&[&retry]), client(&[&first[..40]])]),
        (
            "another message of the handshake",
            cut,
            vec![client(&[&first]), server(&[&retry]), client(&[&[22, 3, 3, 0, 4, 11, 0, 0, 0]])],
        ),
        ("before the server could ask for it", cut, vec![client(&[&first, &evil]), server(&[&retry])]),
        ("the same, later", cut, vec![client(&[&first]), client(&[CHANGE_CIPHER_SPEC, &evil])]),
        ("no records", cut, vec![client(&[&first, b"GET / HTTP/1.1"])]),
        (
            // TLS 1.2: unencrypted handshake messages, and then encrypted ones.
            "a server that goes on",
            Ok(first.len() + 9 + 6 + evil.len()),
            vec![
                client(&[&first]),
                server(&[&server_hello()]),
                client(&[&[22, 3, 3, 0, 4, 11, 0, 0, 0], CHANGE_CIPHER_SPEC, &evil]),
            ],
        ),
        (
            "a server that speaks no TLS",
            Ok(first.len() + 4),
            vec![client(&[&first]), server(&[b"what?"]), client(&[b"more"])],
        ),
    ] {
        assert_eq!(inspect(TLS_PORT, &steps), expected, "{what}");
    }
}

#[test]
fn it_ends_with_the_answer_of_the_server() {
    let mut inspector = inspector(TLS_PORT);
    inspector.push(&example_hello("a.example")).unwrap();
    assert!(!inspector.is_done());
    let answer = server_hello();
    let (last, before) = answer[..43].split_last().unwrap();
    inspector.observe(before);
    assert!(!inspector.is_done());
    inspector.observe(&[*last]);
    assert!(inspector.is_done());
}
