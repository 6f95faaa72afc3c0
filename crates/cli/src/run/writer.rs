//! Writes to a stream that may be slow, stopped or closed, without blocking the run.
//!
//! A terminal that is stopped by Ctrl-S, and a pipe without a reader, block the writer. The run is realised in this
//! process, so a thread of its own writes. A closed stream is no longer written to, which is not an error.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};

use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::{mpsc, oneshot};

/// Pieces that are queued.
const MAX_QUEUED: usize = 1_024;

/// A stream. Pieces are written in order.
#[derive(Debug)]
pub struct Writer {
    pieces: mpsc::Sender<Piece>,
    done: oneshot::Receiver<()>,
}

#[derive(Debug)]
enum Piece {
    Text(String),
    /// Signals when everything before it is written.
    Mark(oneshot::Sender<()>),
}

impl Writer {
    /// Starts the thread that writes to this stream.
    pub fn start(stream: OwnedFd) -> anyhow::Result<Self> {
        let (pieces, waiting) = mpsc::channel(MAX_QUEUED);
        let (is_done, done) = oneshot::channel();
        std::thread::Builder::new()
            .name("writer".to_owned())
            .spawn(move || {
                write_pieces(File::from(stream), waiting);
                // The receiver may be gone, because the process is about to exit.
                let _ = is_done.send(());
            })
            .context("cannot start a thread")?;
        Ok(Self { pieces, done })
    }

    /// Queues a text. Returns false if the queue is full.
    pub fn try_write(&self, text: String) -> bool {
        self.pieces.try_send(Piece::Text(text)).is_ok()
    }

    /// Queues a text, and waits for room in the queue.
    pub async fn write(&self, text: String) {
        // The thread lives as long as `self`.
        let _ = self.pieces.send(Piece::Text(text)).await;
    }

    /// The receiver is signalled when everything queued so far is written. `None` if the queue is full.
    pub fn flush_marker(&self) -> Option<oneshot::Receiver<()>> {
        let (reached, mark) = oneshot::channel();
        self.pieces.try_send(Piece::Mark(reached)).ok()?;
        Some(mark)
    }

    /// Waits until everything is written.
    pub async fn flush(&self) {
        let (reached, mark) = oneshot::channel();
        if self.pieces.send(Piece::Mark(reached)).await.is_ok() {
            let _ = mark.await;
        }
    }

    /// Whether the queue is empty.
    pub fn is_idle(&self) -> bool {
        self.pieces.capacity() == MAX_QUEUED
    }

    /// Waits until everything is written, and ends the thread.
    pub async fn finish(self) {
        drop(self.pieces);
        let _ = self.done.await;
    }
}

fn write_pieces(mut stream: File, mut pieces: mpsc::Receiver<Piece>) {
    let mut is_open = true;
    while let Some(piece) = pieces.blocking_recv() {
        match piece {
            Piece::Text(text) if is_open => is_open = write_all(&mut stream, text.as_bytes()).is_ok(),
            Piece::Text(_) => {}
            Piece::Mark(reached) => drop(reached.send(())),
        }
    }
}

fn write_all(stream: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Another process that shares the stream has made it nonblocking.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(&stream.as_fd(), PollFlags::OUT)], None)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[tokio::test]
    async fn what_is_written_arrives_in_its_order() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let writer = Writer::start(write).unwrap();
        for number in 0..10 {
            assert!(writer.try_write(format!("{number}\n")));
        }
        writer.flush().await;
        assert!(writer.is_idle());
        writer.finish().await;
        let mut text = String::new();
        File::from(read).read_to_string(&mut text).unwrap();
        assert_eq!(text, "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n");
    }

    #[tokio::test]
    async fn a_reader_that_is_gone_is_no_failure() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        drop(read);
        let writer = Writer::start(write).unwrap();
        for _ in 0..3 {
            writer.write("x".to_owned()).await;
        }
        writer.finish().await;
    }

    #[tokio::test]
    async fn a_reader_that_sleeps_stops_nobody() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let writer = Writer::start(write).unwrap();
        let piece = "x".repeat(64 << 10);
        let taken = (0..3 * MAX_QUEUED).take_while(|_| writer.try_write(piece.clone()));
        assert!(taken.count() < 3 * MAX_QUEUED);
        assert!(!writer.is_idle());
        drop(read);
        writer.finish().await;
    }
}
