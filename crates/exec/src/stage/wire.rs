//! The messages between executor, keeper and workers.
//!
//! A job is one length-prefixed message with five descriptors; a worker's replies have a fixed size. Both ends check
//! every number: a worker runs next to hostile commands, so the executor treats its replies as hostile input, and the
//! decoder has a fuzz target.

use std::ffi::{CStr, CString};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// Limit for an encoded job, in bytes: the kernel's own limit for arguments and environment together is 2 MiB at the
/// default stack limit, of which we use at most this.
pub const MAX_JOB_BYTES: usize = 1536 * 1024;
/// Limit for a message on the control socket, in bytes.
pub(crate) const MAX_CONTROL_BYTES: usize = 256 * 1024;
/// stdin, stdout, stderr, working directory, program.
pub(crate) const JOB_DESCRIPTORS: usize = 5;
const MAX_DESCRIPTORS: usize = 8;
const MAGIC: u32 = 0x5359_4d31;
const HEADER_BYTES: usize = 56;
const UNLIMITED: u64 = u64::MAX;

/// One command, as it is sent to a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Execute the script at this path; `None`: execute the fifth descriptor.
    pub script: Option<CString>,
    /// The arguments, program name first.
    pub argv: Vec<CString>,
    /// The environment, `NAME=VALUE`.
    pub envp: Vec<CString>,
    /// Time until the command is terminated.
    pub timeout: Duration,
    /// Time from SIGTERM to SIGKILL.
    pub grace: Duration,
    /// How long descendants may continue once the command itself has ended.
    pub drain: Duration,
    /// `RLIMIT_FSIZE`.
    pub file_bytes: Option<u64>,
    /// `RLIMIT_NOFILE`.
    pub open_files: Option<u64>,
}

impl Job {
    /// Encodes the message, without its descriptors.
    pub fn encode(&self) -> Vec<u8> {
        let strings = || self.script.iter().chain(&self.argv).chain(&self.envp);
        let body: usize = strings().map(|s| s.as_bytes_with_nul().len()).sum();
        let mut out = Vec::with_capacity(HEADER_BYTES + body);
        out.extend_from_slice(&MAGIC.to_le_bytes());
        for number in [HEADER_BYTES + body, usize::from(self.script.is_some()), self.argv.len(), self.envp.len()] {
            out.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
        }
        for span in [self.grace, self.drain] {
            let millis = u32::try_from(span.as_millis()).unwrap_or(u32::MAX);
            out.extend_from_slice(&millis.to_le_bytes());
        }
        out.extend_from_slice(&[0; 4]);
        for number in [
            u64::try_from(self.timeout.as_micros()).unwrap_or(u64::MAX),
            self.file_bytes.unwrap_or(UNLIMITED),
            self.open_files.unwrap_or(UNLIMITED),
        ] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for string in strings() {
            out.extend_from_slice(string.as_bytes_with_nul());
        }
        out
    }

    /// Decodes a complete message.
    pub fn decode(message: &[u8]) -> Result<Self, DecodeError> {
        let mut fields = Fields(message);
        if fields.u32()? != MAGIC {
            return Err(DecodeError::Magic);
        }
        if usize::try_from(fields.u32()?) != Ok(message.len()) {
            return Err(DecodeError::Length);
        }
        let has_script = match fields.u32()? {
            0 => false,
            1 => true,
            _ => return Err(DecodeError::Flags),
        };
        let (argc, envc) = (fields.u32()?, fields.u32()?);
        let (grace, drain) = (fields.u32()?, fields.u32()?);
        if fields.u32()? != 0 {
            return Err(DecodeError::Flags);
        }
        let timeout = Duration::from_micros(fields.u64()?);
        let limited = |value| (value != UNLIMITED).then_some(value);
        let file_bytes = limited(fields.u64()?);
        let open_files = limited(fields.u64()?);
        let script = if has_script { Some(fields.string()?) } else { None };
        let argv = fields.strings(argc)?;
        let envp = fields.strings(envc)?;
        if !fields.0.is_empty() {
            return Err(DecodeError::Length);
        }
        if argv.is_empty() {
            return Err(DecodeError::NoArguments);
        }
        Ok(Self {
            script,
            argv,
            envp,
            timeout,
            grace: Duration::from_millis(grace.into()),
            drain: Duration::from_millis(drain.into()),
            file_bytes,
            open_files,
        })
    }
}

/// Why a message is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DecodeError {
    /// It does not start with the magic number.
    #[error("the message does not start with the protocol's magic number")]
    Magic,
    /// Its length does not match its content.
    #[error("the message's length does not fit its contents")]
    Length,
    /// A flag or kind is unknown to this version.
    #[error("the message has an unknown flag or kind")]
    Flags,
    /// A job without a program name.
    #[error("the job has no arguments")]
    NoArguments,
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(DecodeError::Length)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_le_bytes)
    }

    fn string(&mut self) -> Result<CString, DecodeError> {
        let string = CStr::from_bytes_until_nul(self.0).map_err(|_| DecodeError::Length)?;
        self.0 = &self.0[string.to_bytes_with_nul().len()..];
        Ok(string.to_owned())
    }

    fn strings(&mut self, count: u32) -> Result<Vec<CString>, DecodeError> {
        // Each string has at least its NUL, so the message's own length bounds the allocation.
        let count = usize::try_from(count).map_err(|_| DecodeError::Length)?;
        if count > self.0.len() {
            return Err(DecodeError::Length);
        }
        (0..count).map(|_| self.string()).collect()
    }
}

/// A worker's reply about its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerReply {
    /// The command has ended, descendants live; send [`ControlByte::Drained`] when their output is not needed.
    Lingering,
    /// All processes of the command have ended.
    Ended(CommandEnd),
    /// The command did not start, with this error number.
    NotStarted(i32),
    /// Descendants could not be killed. The worker stays with them and takes no further job.
    Survivors(u32),
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandEnd {
    /// The raw wait status.
    pub status: i32,
    /// Our timer ended it.
    pub timed_out: bool,
    /// The executor cancelled it.
    pub cancelled: bool,
    /// CPU time in user mode, descendants included.
    pub user: Duration,
    /// CPU time in the kernel, descendants included.
    pub system: Duration,
    /// The largest resident set of any of its processes.
    pub max_resident_bytes: u64,
    /// Number of descendants that outlived the command and were killed.
    pub killed: u32,
}

/// Size of every reply.
pub const REPLY_BYTES: usize = 48;

impl WorkerReply {
    /// Encodes the message.
    pub fn encode(&self) -> [u8; REPLY_BYTES] {
        let mut out = [0; REPLY_BYTES];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        match self {
            Self::Lingering => put(0, &[1]),
            Self::Ended(ended) => {
                put(0, &[2]);
                put(1, &[u8::from(ended.timed_out), u8::from(ended.cancelled)]);
                put(4, &ended.status.to_le_bytes());
                put(8, &micros(ended.user).to_le_bytes());
                put(16, &micros(ended.system).to_le_bytes());
                put(24, &ended.max_resident_bytes.to_le_bytes());
                put(32, &ended.killed.to_le_bytes());
            }
            Self::NotStarted(errno) => {
                put(0, &[3]);
                put(4, &errno.to_le_bytes());
            }
            Self::Survivors(count) => {
                put(0, &[4]);
                put(32, &count.to_le_bytes());
            }
        }
        out
    }

    /// Decodes a message.
    pub fn decode(message: &[u8; REPLY_BYTES]) -> Result<Self, DecodeError> {
        let mut fields = Fields(message);
        let [kind, timed_out, cancelled, _] = fields.array()?;
        let status = fields.array().map(i32::from_le_bytes)?;
        let (user, system) = (fields.u64()?, fields.u64()?);
        let max_resident_bytes = fields.u64()?;
        let count = fields.u32()?;
        Ok(match kind {
            1 => Self::Lingering,
            2 => Self::Ended(CommandEnd {
                status,
                timed_out: timed_out != 0,
                cancelled: cancelled != 0,
                user: Duration::from_micros(user),
                system: Duration::from_micros(system),
                max_resident_bytes,
                killed: count,
            }),
            3 => Self::NotStarted(status),
            4 => Self::Survivors(count),
            _ => return Err(DecodeError::Flags),
        })
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// One byte from the executor to a worker with a running command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ControlByte {
    /// End the command now.
    Cancel = b'C',
    /// The output is not read any more: do not wait for descendants.
    Drained = b'D',
}

impl ControlByte {
    /// Whether it is such a byte; no job starts with one.
    fn is_control_byte(byte: u8) -> bool {
        [Self::Cancel, Self::Drained].iter().any(|&word| word as u8 == byte)
    }
}

/// Sends all of `message`; the descriptors are attached to its first byte.
pub(crate) fn send(socket: impl AsFd, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut rest = message;
    while !rest.is_empty() {
        let sent = retry_on_interrupt(|| sendmsg(&socket, &[IoSlice::new(rest)], &mut ancillary, SendFlags::NOSIGNAL))?;
        ancillary.clear();
        rest = &rest[sent..];
    }
    Ok(())
}

/// Fills `buffer`; attached descriptors are added to `descriptors`. `false`: the peer is gone.
pub(crate) fn receive(socket: impl AsFd, buffer: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<bool> {
    let mut filled = 0;
    while filled < buffer.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = retry_on_interrupt(|| {
            recvmsg(&socket, &mut [IoSliceMut::new(&mut buffer[filled..])], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        })?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        match received.bytes {
            0 if filled == 0 => return Ok(false),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => filled += bytes,
        }
    }
    Ok(true)
}

/// Receives one job with its descriptors. `None`: the executor is gone.
pub(crate) fn receive_job(
    socket: impl AsFd,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<(Job, [OwnedFd; JOB_DESCRIPTORS])>> {
    let mut descriptors = Vec::with_capacity(JOB_DESCRIPTORS);
    buffer.resize(8, 0);
    if !receive(&socket, buffer, &mut descriptors)? {
        return Ok(None);
    }
    // A control byte that was sent while the last command ended is obsolete.
    while buffer.first().is_some_and(|&byte| ControlByte::is_control_byte(byte)) {
        buffer.rotate_left(1);
        if !receive(&socket, &mut buffer[7..], &mut descriptors)? {
            return Ok(None);
        }
    }
    let mut header = Fields(buffer);
    let invalid = |error: DecodeError| io::Error::new(io::ErrorKind::InvalidData, error);
    header.u32().map_err(invalid)?;
    let length = usize::try_from(header.u32().map_err(invalid)?).unwrap_or(usize::MAX);
    if !(HEADER_BYTES..=MAX_JOB_BYTES).contains(&length) {
        return Err(invalid(DecodeError::Length));
    }
    buffer.resize(length, 0);
    if !receive(&socket, &mut buffer[8..], &mut descriptors)? {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let job = Job::decode(buffer).map_err(invalid)?;
    let descriptors = descriptors.try_into().map_err(|_| invalid(DecodeError::Flags))?;
    Ok(Some((job, descriptors)))
}

/// Sends a control message: four bytes of length, then JSON.
pub(crate) fn send_json(
    socket: impl AsFd,
    value: &impl serde::Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let body = serde_json::to_vec(value)?;
    let length = u32::try_from(body.len())
        .ok()
        .filter(|_| body.len() <= MAX_CONTROL_BYTES)
        .ok_or(io::ErrorKind::InvalidInput)?;
    let mut message = length.to_le_bytes().to_vec();
    message.extend_from_slice(&body);
    send(socket, &message, descriptors)
}

/// Receives a control message. `None`: the peer is gone.
pub(crate) fn receive_json<T: serde::de::DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut descriptors = Vec::new();
    let mut length = [0; 4];
    if !receive(&socket, &mut length, &mut descriptors)? {
        return Ok(None);
    }
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > MAX_CONTROL_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length];
    if !receive(&socket, &mut body, &mut descriptors)? {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some((serde_json::from_slice(&body)?, descriptors)))
}

fn retry_on_interrupt<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.map_err(Into::into),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn string() -> impl Strategy<Value = CString> {
        proptest::collection::vec(1u8..=255, 0..20).prop_map(|bytes| CString::new(bytes).unwrap())
    }

    fn job() -> impl Strategy<Value = Job> {
        (
            proptest::option::of(string()),
            proptest::collection::vec(string(), 1..6),
            proptest::collection::vec(string(), 0..6),
            0..=u64::MAX,
            any::<u32>(),
            any::<u32>(),
            proptest::option::of(0..u64::MAX),
            proptest::option::of(0..u64::MAX),
        )
            .prop_map(|(script, argv, envp, timeout, grace, drain, file_bytes, open_files)| Job {
                script,
                argv,
                envp,
                timeout: Duration::from_micros(timeout),
                grace: Duration::from_millis(grace.into()),
                drain: Duration::from_millis(drain.into()),
                file_bytes,
                open_files,
            })
    }

    #[test]
    fn late_words_do_not_disturb_the_next_job() {
        let (ours, theirs) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let job = Job {
            script: None,
            argv: vec![c"true".into()],
            envp: Vec::new(),
            timeout: Duration::from_secs(1),
            grace: Duration::ZERO,
            drain: Duration::ZERO,
            file_bytes: None,
            open_files: None,
        };
        let fds = [ours.as_fd(); JOB_DESCRIPTORS];
        for words in [&[][..], &[ControlByte::Drained as u8], &[ControlByte::Cancel as u8; 9]] {
            if !words.is_empty() {
                send(&ours, words, &[]).unwrap();
            }
            send(&ours, &job.encode(), &fds).unwrap();
            let (received, _) = receive_job(&theirs, &mut Vec::new()).unwrap().unwrap();
            assert_eq!(received, job);
        }
    }

    proptest! {
        #[test]
        fn jobs_survive_the_round_trip(job in job()) {
            prop_assert_eq!(Job::decode(&job.encode()), Ok(job));
        }

        #[test]
        fn a_cut_or_padded_job_is_refused(job in job(), cut in 1usize..40) {
            let whole = job.encode();
            let short = &whole[..whole.len().saturating_sub(cut)];
            prop_assert!(Job::decode(short).is_err());
            let mut long = whole.clone();
            long.push(0);
            prop_assert!(Job::decode(&long).is_err());
        }

        #[test]
        fn answers_never_panic(bytes in proptest::array::uniform32(any::<u8>())) {
            let mut message = [0; REPLY_BYTES];
            message[..32].copy_from_slice(&bytes);
            if let Ok(answer) = WorkerReply::decode(&message) {
                prop_assert_eq!(WorkerReply::decode(&answer.encode()), Ok(answer));
            }
        }
    }
}
