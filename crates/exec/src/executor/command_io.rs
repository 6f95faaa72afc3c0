//! The streams of one running command: standard input, both outputs, and the worker's replies.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::cancel::Cancel;
use crate::outcome::{CapturedOutput, Stream};
use crate::request::{DRAIN_LIMIT, Request};
use crate::stage::wire::{self, ControlByte, REPLY_BYTES, WorkerReply};

/// Size of one read or write. On the thread's stack: many threads may run commands.
const CHUNK_BYTES: usize = 8 * 1024;
/// A worker that has not replied this long after it should have is not relied on any more. Longer than the worker
/// itself tries to kill a tree.
const WORKER_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) struct CommandIo<'a> {
    worker: &'a OwnedFd,
    stdin: Option<(OwnedFd, &'a [u8])>,
    stdout: Output,
    stderr: Output,
    output_bytes: usize,
    lingering: bool,
    sent_drained: bool,
    deadline: Instant,
}

struct Output {
    /// `None` at the end of the stream.
    pipe: Option<OwnedFd>,
    captured: CapturedOutput,
}

impl<'a> CommandIo<'a> {
    /// Sends the job to the worker.
    pub(super) fn start(
        worker: &'a OwnedFd,
        job: &[u8],
        request: &'a Request,
        null: &OwnedFd,
        directory: &OwnedFd,
        program: &OwnedFd,
    ) -> io::Result<Self> {
        let (stdout, stdout_theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stderr, stderr_theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        let stdin = if request.stdin.is_empty() {
            None
        } else {
            let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
            // Only our end: the two ends of a pipe have separate flags.
            rustix::io::ioctl_fionbio(&ours, true)?;
            Some((theirs, ours))
        };
        let stdin_theirs = stdin.as_ref().map_or(null, |(theirs, _)| theirs);
        wire::send(
            worker,
            job,
            &[stdin_theirs.as_fd(), stdout_theirs.as_fd(), stderr_theirs.as_fd(), directory.as_fd(), program.as_fd()],
        )?;
        let longest = request.timeout + request.grace + DRAIN_LIMIT + WORKER_TIMEOUT;
        Ok(Self {
            worker,
            stdin: stdin.map(|(_, ours)| (ours, request.stdin.as_slice())),
            stdout: Output::new(stdout)?,
            stderr: Output::new(stderr)?,
            output_bytes: request.output_bytes,
            lingering: false,
            sent_drained: false,
            deadline: Instant::now() + longest,
        })
    }

    /// Writes and reads until the worker reports that all processes of the command have ended.
    pub(super) fn run(
        mut self,
        mut cancel: Option<&Cancel>,
        watch: &mut dyn FnMut(Stream, &[u8]),
    ) -> io::Result<(WorkerReply, CapturedOutput, CapturedOutput)> {
        let cap = self.output_bytes;
        let mut chunk = [0; CHUNK_BYTES];
        loop {
            let ready = self.wait(cancel)?;
            if ready.cancel {
                wire::send(self.worker, &[ControlByte::Cancel as u8], &[])?;
                cancel = None;
            }
            if ready.stdin {
                self.write_stdin();
            }
            if ready.stdout {
                let mut watch = |bytes: &[u8]| watch(Stream::Stdout, bytes);
                self.stdout.read(&mut chunk, cap, &mut watch)?;
            }
            if ready.stderr {
                let mut watch = |bytes: &[u8]| watch(Stream::Stderr, bytes);
                self.stderr.read(&mut chunk, cap, &mut watch)?;
            }
            if ready.worker {
                match self.receive_reply()? {
                    WorkerReply::Lingering => self.lingering = true,
                    answer => {
                        // All processes of the command have ended, so the pipes contain everything that will come. (A
                        // descriptor that was passed over a socket could keep them open: never wait.)
                        let mut out = |bytes: &[u8]| watch(Stream::Stdout, bytes);
                        self.stdout.read_rest(&mut chunk, cap, &mut out)?;
                        let mut err = |bytes: &[u8]| watch(Stream::Stderr, bytes);
                        self.stderr.read_rest(&mut chunk, cap, &mut err)?;
                        return Ok((answer, self.stdout.captured, self.stderr.captured));
                    }
                }
            }
            let drained = self.stdout.pipe.is_none() && self.stderr.pipe.is_none();
            if self.lingering && drained && !self.sent_drained {
                self.sent_drained = true;
                wire::send(self.worker, &[ControlByte::Drained as u8], &[])?;
            }
        }
    }

    fn receive_reply(&self) -> io::Result<WorkerReply> {
        let mut message = [0; REPLY_BYTES];
        if !wire::receive(self.worker, &mut message, &mut Vec::new())? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        WorkerReply::decode(&message).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    fn write_stdin(&mut self) {
        let Some((pipe, rest)) = &mut self.stdin else {
            return;
        };
        match rustix::io::write(&*pipe, &rest[..rest.len().min(CHUNK_BYTES)]) {
            Ok(written) => *rest = &rest[written..],
            Err(Errno::AGAIN | Errno::INTR) => return,
            // The command does not read the rest. Not an error: `head` does not either.
            Err(_) => *rest = &[],
        }
        if rest.is_empty() {
            self.stdin = None;
        }
    }

    fn wait(&self, cancel: Option<&Cancel>) -> io::Result<Ready> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let watched = [
            Some((self.worker.as_fd(), PollFlags::IN)),
            self.stdin.as_ref().map(|(pipe, _)| (pipe.as_fd(), PollFlags::OUT)),
            self.stdout.pipe.as_ref().map(|pipe| (pipe.as_fd(), PollFlags::IN)),
            self.stderr.pipe.as_ref().map(|pipe| (pipe.as_fd(), PollFlags::IN)),
            cancel.map(|cancel| (cancel.as_fd(), PollFlags::IN)),
        ];
        let mut fds: Vec<_> =
            watched.iter().flatten().map(|&(fd, flags)| PollFd::from_borrowed_fd(fd, flags)).collect();
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut fds, timeout.as_ref()) {
            Err(Errno::INTR) => return Ok(Ready::default()),
            other => other?,
        };
        let mut polled = fds.iter();
        let [worker, stdin, stdout, stderr, cancel] = watched
            .map(|source| source.and_then(|_| polled.next()))
            .map(|fd| fd.is_some_and(|fd| !fd.revents().is_empty()));
        Ok(Ready { worker, stdin, stdout, stderr, cancel })
    }
}

#[derive(Default)]
struct Ready {
    worker: bool,
    stdin: bool,
    stdout: bool,
    stderr: bool,
    cancel: bool,
}

impl Output {
    /// Never blocks: a command can open its output for reading, by `/proc/self/fd/1`, and be faster than we are after a
    /// poll.
    fn new(pipe: OwnedFd) -> io::Result<Self> {
        // Only our end: the two ends of a pipe have separate flags.
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok(Self { pipe: Some(pipe), captured: CapturedOutput::default() })
    }

    /// Reads once; to be called when the pipe is readable.
    fn read(&mut self, chunk: &mut [u8], cap: usize, watch: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let Some(pipe) = &self.pipe else {
            return Ok(());
        };
        match rustix::io::read(pipe, &mut *chunk) {
            Ok(0) => self.pipe = None,
            Ok(read) => {
                watch(&chunk[..read]);
                self.captured.append(&chunk[..read], cap);
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Reads what is there now, and nothing that comes later: a process that was given the other end, over a socket,
    /// could write for ever.
    fn read_rest(&mut self, chunk: &mut [u8], cap: usize, watch: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let Some(pipe) = self.pipe.take() else {
            return Ok(());
        };
        let mut left = usize::try_from(rustix::io::ioctl_fionread(&pipe)?).unwrap_or(usize::MAX);
        while left > 0 {
            let room = chunk.len().min(left);
            match rustix::io::read(&pipe, &mut chunk[..room]) {
                Ok(0) | Err(Errno::AGAIN) => break,
                Ok(read) => {
                    left -= read;
                    watch(&chunk[..read]);
                    self.captured.append(&chunk[..read], cap);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn output_that_another_process_read_is_not_waited_for() {
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut stream = Output::new(ours).unwrap();
        // The poll reported data, and the command read it back.
        stream.read(&mut [0; 10], 100, &mut |_| {}).unwrap();
        assert!(stream.pipe.is_some() && stream.captured.bytes.is_empty());
        drop(theirs);
    }

    #[test]
    fn a_process_that_still_writes_is_not_waited_for() {
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut theirs = std::fs::File::from(theirs);
        theirs.write_all(&[b'x'; 1000]).unwrap();
        // Like a writer that is always faster: there is more before each read.
        let mut chunk = [0; 10];
        let mut stream = Output::new(ours).unwrap();
        let flood = std::thread::spawn(move || while theirs.write_all(&[b'y'; 4096]).is_ok() {});
        stream.read_rest(&mut chunk, 100, &mut |_| {}).unwrap();
        assert_eq!(stream.captured.bytes.len(), 100);
        assert!(stream.captured.total_bytes <= 64 * 1024, "{}", stream.captured.total_bytes);
        assert!(stream.pipe.is_none());
        flood.join().unwrap();
    }
}
