//! Requests that a verifier accepts, and that it refuses.

use proptest::prelude::*;

use super::*;
use crate::id::RequestId;

fn key(seed: u8) -> RequestKey {
    let mut bytes = [0; KEY_BYTES];
    for (at, byte) in (0..).zip(&mut bytes) {
        *byte = seed.wrapping_add(at);
    }
    RequestKey(Zeroizing::new(bytes))
}

fn at(milliseconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(milliseconds)
}

const NOW: u64 = 1_699_999_990_000;
const LATER: u64 = 1_700_000_000_000;

fn request(number: u64) -> ExecRequest {
    ExecRequest {
        target: Some("demo".to_owned()),
        timeout: Some(30),
        ..ExecRequest::new(RequestId::from_nanoseconds(number), "echo hi")
    }
}

fn signed(signer: &mut Signer, number: u64) -> ExecRequest {
    let mut request = request(number);
    signer.sign(&mut request, at(LATER)).unwrap();
    request
}

fn set(request: &mut ExecRequest, field: &str, value: Value) {
    let meta = request.meta.get_or_insert_with(Map::new);
    meta.insert(field.to_owned(), value);
}

#[test]
fn the_mac_is_the_documented_one() {
    let request = signed(&mut Signer::new(key(0)), 1);
    // Computed with Python's hmac: over DOMAIN, a NUL and
    // {"_meta":{"counter":1,"expiresAtMs":1700000000000},"command":"echo hi","id":"1","target":"demo","timeout":30}
    let expected = "d31dd996dac648471101f96c04b5a0edfa86135614712b196f1f8596090b73c3";
    assert_eq!(request.meta.as_ref().unwrap()[MAC], expected);
    assert_eq!(Verifier::new(key(0)).check(&request, at(NOW)), Ok(1));
}

#[test]
fn counters_grow_and_each_is_good_once() {
    let mut signer = Signer::new(key(0));
    let mut verifier = Verifier::new(key(0));
    for number in 1..=3 {
        let request = signed(&mut signer, number);
        assert_eq!(verifier.check(&request, at(NOW)), Ok(number));
        verifier.advance(number);
        let replayed = VerifyError::Replayed { counter: number, last: number };
        assert_eq!(verifier.check(&request, at(NOW)), Err(replayed));
    }
    let mut exhausted = Signer { key: key(0), last_counter: MAX_COUNTER };
    let error = exhausted.sign(&mut request(9), at(LATER)).unwrap_err();
    assert!(matches!(error, SignError::Exhausted), "{error}");
}

#[test]
fn everything_else_is_refused_and_changes_nothing() {
    type Change = fn(&mut ExecRequest);
    let cases: [(&str, Change, VerifyError); 16] = [
        ("no _meta", |request| request.meta = None, VerifyError::Unsigned),
        (
            "no mac",
            |request| {
                request.meta.as_mut().unwrap().remove(MAC);
            },
            VerifyError::Unsigned,
        ),
        ("a mac that is no text", |request| set(request, MAC, 7.into()), VerifyError::Unsigned),
        ("half a mac", |request| set(request, MAC, "d31dd996".into()), VerifyError::Unsigned),
        ("another mac", |request| set(request, MAC, "0".repeat(64).into()), VerifyError::Forged),
        ("another command", |request| request.command.push('x'), VerifyError::Forged),
        ("another id", |request| request.id = RequestId::from_nanoseconds(222), VerifyError::Forged),
        ("another target", |request| request.target = Some("other".to_owned()), VerifyError::Forged),
        ("no target", |request| request.target = None, VerifyError::Forged),
        ("another directory", |request| request.work_dir = Some("/".to_owned()), VerifyError::Forged),
        ("more time", |request| request.timeout = Some(31), VerifyError::Forged),
        ("arguments", |request| request.args.push("x".to_owned()), VerifyError::Forged),
        ("a program", |request| request.argv.push("sh".to_owned()), VerifyError::Forged),
        ("input", |request| request.stdin = Some(String::new()), VerifyError::Forged),
        ("a later counter", |request| set(request, COUNTER, 2.into()), VerifyError::Forged),
        ("a later expiry", |request| set(request, EXPIRES, (LATER + 1).into()), VerifyError::Forged),
    ];
    let genuine = signed(&mut Signer::new(key(0)), 1);
    let verifier = Verifier::new(key(0));
    for (what, change, problem) in cases {
        let mut changed = genuine.clone();
        change(&mut changed);
        assert_eq!(verifier.check(&changed, at(NOW)), Err(problem), "{what}");
        assert_eq!(verifier.check(&genuine, at(NOW)), Ok(1), "after {what}");
    }
    assert_eq!(Verifier::new(key(1)).check(&genuine, at(NOW)), Err(VerifyError::Forged), "another skill's key");
    assert_eq!(verifier.check(&genuine, at(LATER)), Err(VerifyError::Expired));
    assert_eq!(verifier.check(&genuine, at(LATER - 1)), Ok(1));
}

#[test]
fn a_key_is_never_printed() {
    let digits = key(0).to_hex();
    let shown = [format!("{:?}", key(0)), format!("{:?}", Signer::new(key(0))), format!("{:?}", Verifier::new(key(0)))];
    for text in shown {
        assert!(!text.contains(&digits[..8]) && !text.contains("1, 2, 3"), "{text}");
    }
    assert_ne!(*RequestKey::generate().unwrap().0, *RequestKey::generate().unwrap().0);
    assert_ne!(StartNonce::generate().unwrap(), StartNonce::generate().unwrap());
}

/// A change of the bytes of a file.
#[derive(Debug, Clone)]
enum Damage {
    Set(prop::sample::Index, u8),
    Insert(prop::sample::Index, u8),
    Remove(prop::sample::Index),
    Truncate(prop::sample::Index),
    Repeat(prop::sample::Index, prop::sample::Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        (index(), any::<u8>()).prop_map(|(at, byte)| Damage::Set(at, byte)),
        (index(), any::<u8>()).prop_map(|(at, byte)| Damage::Insert(at, byte)),
        index().prop_map(Damage::Remove),
        index().prop_map(Damage::Truncate),
        (index(), index()).prop_map(|(from, to)| Damage::Repeat(from, to)),
    ]
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        match self {
            Self::Set(at, byte) => {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            Self::Insert(at, byte) => bytes.insert(at.index(bytes.len()), *byte),
            Self::Remove(at) => drop(bytes.remove(at.index(bytes.len()))),
            Self::Truncate(at) => bytes.truncate(at.index(bytes.len())),
            Self::Repeat(from, to) => {
                let (from, to) = (from.index(bytes.len()), to.index(bytes.len()));
                let piece = bytes[from.min(to)..from.max(to)].to_vec();
                bytes.splice(from..from, piece);
            }
        }
    }
}

proptest! {
    /// Whatever is done to a file: what is accepted is exactly what the bridge signed.
    #[test]
    fn a_changed_file_is_the_same_request_or_refused(
        damage in prop::collection::vec(damage(), 1..4),
        command in "\\PC{1,20}",
        words in prop::collection::vec("\\PC{0,8}", 0..3),
        stdin in prop::option::of("\\PC{0,8}"),
    ) {
        let mut genuine = request(1);
        genuine.command = command;
        genuine.args = words;
        genuine.stdin = stdin;
        Signer::new(key(0)).sign(&mut genuine, at(LATER)).unwrap();
        let mut bytes = genuine.to_json().unwrap();
        damage.iter().for_each(|damage| damage.apply(&mut bytes));
        let verifier = Verifier::new(key(0));
        if let Ok(read) = ExecRequest::parse(&bytes, &genuine.id)
            && verifier.check(&read, at(NOW)).is_ok()
        {
            prop_assert_eq!(read, genuine);
        }
    }

    /// However requests are delivered, repeated and mixed with forgeries: none is served twice, none after a later one,
    /// and no forgery prevents a genuine one from being served.
    #[test]
    fn no_delivery_serves_a_request_twice_or_out_of_order(
        deliveries in prop::collection::vec((0..8_usize, any::<bool>()), 0..40),
    ) {
        let mut signer = Signer::new(key(0));
        let requests: Vec<ExecRequest> = (1..=8).map(|number| signed(&mut signer, number)).collect();
        let mut verifier = Verifier::new(key(0));
        let mut served = Vec::new();
        for (which, is_forged) in deliveries {
            let mut request = requests[which].clone();
            if is_forged {
                set(&mut request, COUNTER, MAX_COUNTER.into());
                prop_assert_eq!(verifier.check(&request, at(NOW)), Err(VerifyError::Forged));
                continue;
            }
            let expected = which as u64 + 1 > verifier.last_counter();
            let checked = verifier.check(&request, at(NOW));
            prop_assert_eq!(checked.is_ok(), expected);
            if let Ok(counter) = checked {
                verifier.advance(counter);
                served.push(counter);
            }
        }
        prop_assert!(served.is_sorted_by(|one, next| one < next), "{served:?}");
    }

    #[test]
    fn digits_are_read_back_and_anything_else_is_not(bytes: [u8; 16], other in "\\PC{0,40}") {
        let nonce = StartNonce(bytes);
        prop_assert_eq!(StartNonce::from_hex(&nonce.to_hex()), Some(nonce));
        if let Some(read) = StartNonce::from_hex(&other) {
            prop_assert_eq!(read.to_hex(), other);
        }
    }
}
