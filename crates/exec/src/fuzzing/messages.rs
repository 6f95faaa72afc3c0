//! The messages between executor, keeper and workers.

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::outcome::Termination;
use crate::stage::keeper::{KeeperReply, KeeperRequest};
use crate::stage::setup::{StageReply, StageSetup};
use crate::stage::wire::{self, DecodeError, Job, REPLY_BYTES, WorkerReply};

/// The amount that fits into a socket's buffer without a reader, whatever the machine's defaults.
const MAX_STREAM_BYTES: usize = 64 * 1024;

/// A job has one message and a message one job; nothing can be cut off or added unnoticed.
pub fn job(data: &[u8]) {
    check_job(data);
    // A mutation that changes the length would otherwise never get past the header.
    if let Some(body) = data.get(8..) {
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let repaired = [&MAGIC[..], &length.to_le_bytes(), body].concat();
        check_job(&repaired);
    }
}

const MAGIC: [u8; 4] = *b"1MYS";

fn check_job(message: &[u8]) {
    let Ok(job) = Job::decode(message) else {
        return;
    };
    assert!(!job.argv.is_empty(), "a command without a name");
    assert_eq!(job.encode(), message, "one job, two messages");
    let (_, cut) = message.split_last().expect("a job has a header");
    assert!(Job::decode(cut).is_err(), "a cut job was taken");
    let padded = [message, &[0]].concat();
    assert_eq!(Job::decode(&padded), Err(DecodeError::Length));
}

/// Any bytes on a worker's socket, in any chunks, are interpreted by the protocol: late control bytes are skipped, and
/// a job counts only when it is complete and has its five descriptors.
pub fn job_stream(data: &[u8]) {
    let Some((&count, stream)) = data.split_first() else {
        return;
    };
    let stream = &stream[..stream.len().min(MAX_STREAM_BYTES)];
    let count = usize::from(count % 8);
    let (ours, theirs) = pair();
    if !stream.is_empty() {
        wire::send(&ours, stream, &vec![ours.as_fd(); count]).expect("it fits into the buffer");
    }
    shutdown(&ours, Shutdown::Write).expect("the socket is open");

    let received = wire::receive_job(&theirs, &mut Vec::new());
    let received = received.map(|job| job.map(|(job, _)| job));
    assert_same(received, expected_job(stream, count));
}

fn expected_job(stream: &[u8], descriptors: usize) -> Expected<Job> {
    let words = stream.iter().take_while(|byte| b"CD".contains(byte)).count();
    match (stream.len(), stream[words..].split_at_checked(8)) {
        (0, _) => Expected::Gone,
        (1..8, _) => Expected::Refused,
        (_, None) => Expected::Gone,
        (_, Some((header, _))) => {
            let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let job = stream[words..]
                .get(..length)
                .filter(|_| length <= wire::MAX_JOB_BYTES && descriptors == 5)
                .and_then(|message| Job::decode(message).ok());
            job.map_or(Expected::Refused, Expected::Message)
        }
    }
}

/// A worker runs next to hostile commands. Its replies decode to exactly their content.
pub fn answer(data: &[u8]) {
    let mut message = [0; REPLY_BYTES];
    let length = data.len().min(REPLY_BYTES);
    message[..length].copy_from_slice(&data[..length]);
    let decoded = WorkerReply::decode(&message);
    assert_eq!(decoded.is_ok(), (1..=4).contains(&message[0]));
    let Ok(answer) = decoded else {
        return;
    };
    let encoded = answer.encode();
    assert_eq!(WorkerReply::decode(&encoded), Ok(answer));
    for (at, (&out, &came)) in encoded.iter().zip(&message).enumerate() {
        let flag = matches!(at, 1 | 2) && out == 1 && came != 0;
        assert!(out == 0 || out == came || flag, "byte {at} was invented");
    }
    if let WorkerReply::Ended(ended) = answer {
        let ending = Termination::from_status(ended.status);
        let as_in_a_shell = match ending {
            Termination::Exited(_) => 0..=255,
            Termination::Signaled(_) => 129..=255,
        };
        assert!(as_in_a_shell.contains(&ending.exit_code()), "{ending:?}");
    }
}

/// Control messages survive the socket and a second encoding. The first byte selects the type.
pub fn control_message(data: &[u8]) {
    let Some((&kind, body)) = data.split_first() else {
        return;
    };
    let body = &body[..body.len().min(MAX_STREAM_BYTES)];
    match kind {
        b'S' => check_control::<StageSetup>(body),
        b'H' => check_control::<StageReply>(body),
        b'A' => check_control::<KeeperRequest>(body),
        _ => check_control::<KeeperReply>(body),
    }
}

fn check_control<T: Serialize + DeserializeOwned>(body: &[u8]) {
    let json = |value: &T| serde_json::to_vec(value).expect("it came from JSON");
    let (ours, theirs) = pair();
    let length = u32::try_from(body.len()).expect("it was cut");
    let framed = [&length.to_le_bytes(), body].concat();
    wire::send(&ours, &framed, &[]).expect("it fits into the buffer");
    shutdown(&ours, Shutdown::Write).expect("the socket is open");
    let received = wire::receive_json::<T>(&theirs);
    let Ok(value) = serde_json::from_slice::<T>(body) else {
        assert!(received.is_err(), "garbage was taken");
        return;
    };
    let (received, descriptors) = received.expect("it decodes").expect("it was sent");
    assert!(descriptors.is_empty());
    let once = json(&value);
    assert_eq!(json(&received), once);
    let again = serde_json::from_slice::<T>(&once).expect("we wrote it");
    assert_eq!(json(&again), once, "it changes on the way");
}

/// The frames around control messages: no length makes the reader block, read too much, or lose its position.
pub fn control_stream(data: &[u8]) {
    let mut stream = &data[..data.len().min(MAX_STREAM_BYTES)];
    let (ours, theirs) = pair();
    if !stream.is_empty() {
        wire::send(&ours, stream, &[]).expect("it fits into the buffer");
    }
    shutdown(&ours, Shutdown::Write).expect("the socket is open");
    loop {
        let expected = expected_message(&mut stream);
        let goes_on = matches!(expected, Expected::Message(_));
        let received = wire::receive_json::<Value>(&theirs);
        assert_same(received.map(|received| received.map(|(value, _)| value)), expected);
        if !goes_on {
            return;
        }
    }
}

fn expected_message(stream: &mut &[u8]) -> Expected<Value> {
    if stream.is_empty() {
        return Expected::Gone;
    }
    let body = stream.split_first_chunk::<4>().and_then(|(length, rest)| {
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        rest.split_at_checked(length)
    });
    let Some((body, rest)) = body else {
        return Expected::Refused;
    };
    *stream = rest;
    serde_json::from_slice(body).map_or(Expected::Refused, Expected::Message)
}

/// The expected result of reading a stream.
#[derive(Debug)]
enum Expected<T> {
    Message(T),
    Refused,
    Gone,
}

fn assert_same<T: Debug + PartialEq>(received: io::Result<Option<T>>, expected: Expected<T>) {
    match (received, expected) {
        (Ok(Some(received)), Expected::Message(expected)) => assert_eq!(received, expected),
        (Ok(None), Expected::Gone) => {}
        // EOF, or invalid bytes: any other error would be an accident of the socket.
        (Err(error), Expected::Refused) => {
            assert!(matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData), "{error:?}")
        }
        (received, expected) => panic!("{received:?}, but {expected:?}"),
    }
}

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .expect("descriptors are left, unless an earlier input leaked them")
}
