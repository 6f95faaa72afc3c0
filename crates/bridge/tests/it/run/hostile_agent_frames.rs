//! An agent that writes HTTP/2 frame by frame, so that it can say what no library would.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use sympozium_harness::{POLL_INTERVAL, TIMEOUT};
use sympozium_ipc::door::SOCKET_NAME;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::net::unix::OwnedWriteHalf;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Types of frames (RFC 9113, section 6).
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
/// Flags.
pub const NONE: u8 = 0;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
/// The window that a stream begins with.
const USUAL_WINDOW: usize = 65_535;
/// The largest frame that everybody takes.
pub const MAX_FRAME: usize = 16_384;
const INITIAL_WINDOW_SIZE: u16 = 4;

/// What the bridge said in its frames.
#[derive(Debug, Default)]
struct ReceivedFrames {
    /// Bodies, by stream.
    bodies: BTreeMap<u32, Vec<u8>>,
    /// Streams that are over, by their end or by a reset.
    over: BTreeMap<u32, bool>,
    gone: bool,
}

/// A connection that is written to by hand.
pub struct Frames {
    write: OwnedWriteHalf,
    heard: Arc<Mutex<ReceivedFrames>>,
    /// Reads what comes, or keeps the other half without reading.
    reader: Reader,
    next: u32,
}

enum Reader {
    Reads(JoinHandle<()>),
    #[expect(dead_code, reason = "kept open, never read: that is the attack")]
    Kept(OwnedReadHalf),
}

impl Frames {
    /// Connects as the agent, and reads what it is told.
    pub async fn connect(door: &Path) -> Self {
        Self::with(door, |read, heard| Reader::Reads(tokio::spawn(listen(read, heard)))).await
    }

    /// Connects as the agent, and never reads a byte.
    pub async fn deaf(door: &Path) -> Self {
        Self::with(door, |read, _| Reader::Kept(read)).await
    }

    async fn with(door: &Path, reader: impl FnOnce(OwnedReadHalf, Arc<Mutex<ReceivedFrames>>) -> Reader) -> Self {
        let (read, write) = socket(door).await.into_split();
        let heard = Arc::new(Mutex::new(ReceivedFrames::default()));
        let reader = reader(read, Arc::clone(&heard));
        let mut frames = Self { write, heard, reader, next: 1 };
        frames.write.write_all(PREFACE).await.expect("a preface");
        // What is sent back is never held up by the window of a stream, unless a test wants it.
        let window = [&INITIAL_WINDOW_SIZE.to_be_bytes()[..], &(64_u32 << 20).to_be_bytes()].concat();
        frames.frame(SETTINGS, NONE, 0, &window).await.expect("settings");
        frames.frame(WINDOW_UPDATE, NONE, 0, &(1_u32 << 30).to_be_bytes()).await.expect("a window");
        frames
    }

    /// One frame.
    pub async fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> io::Result<()> {
        self.write.write_all(&frame(kind, flags, stream, payload)).await
    }

    /// Bytes as they are.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write.write_all(bytes).await
    }

    /// The number of a new stream.
    pub fn stream(&mut self) -> u32 {
        let stream = self.next;
        self.next += 2;
        stream
    }

    /// Begins a request, and gives its stream.
    pub async fn begin(&mut self, method: &str, path: &[u8]) -> io::Result<u32> {
        let stream = self.stream();
        let head = head(method, path);
        self.frame(HEADERS, END_HEADERS, stream, &head).await?;
        Ok(stream)
    }

    /// A whole request whose body fits into the first window, and its stream.
    pub async fn request(&mut self, method: &str, path: &[u8], body: &[u8]) -> io::Result<u32> {
        assert!(body.len() <= USUAL_WINDOW, "more than may be sent at once");
        let stream = self.begin(method, path).await?;
        let mut pieces = body.chunks(MAX_FRAME).peekable();
        if pieces.peek().is_none() {
            self.frame(DATA, END_STREAM, stream, b"").await?;
        }
        while let Some(piece) = pieces.next() {
            let flags = if pieces.peek().is_none() { END_STREAM } else { NONE };
            self.frame(DATA, flags, stream, piece).await?;
        }
        Ok(stream)
    }

    /// Takes a request back.
    pub async fn reset(&mut self, stream: u32) -> io::Result<()> {
        self.write.write_all(&reset(stream)).await
    }

    /// Waits until a stream is over, or the whole connection; gives what was said on it.
    pub async fn answer(&self, stream: u32) -> Vec<u8> {
        let waited = timeout(TIMEOUT, async {
            loop {
                {
                    let heard = self.heard.lock().expect("not poisoned");
                    if heard.gone || heard.over.contains_key(&stream) {
                        return heard.bodies.get(&stream).cloned().unwrap_or_default();
                    }
                }
                sleep(POLL_INTERVAL).await;
            }
        });
        waited.await.expect("an answer")
    }

    /// Whether the bridge has closed the connection.
    pub fn is_gone(&self) -> bool {
        self.heard.lock().expect("not poisoned").gone
    }

    /// Says that nothing more will come, and goes on listening.
    pub async fn half_close(&mut self) {
        self.write.shutdown().await.expect("a shutdown");
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        if let Reader::Reads(task) = &self.reader {
            task.abort();
        }
    }
}

/// A connection to the door as soon as there is one.
pub async fn socket(door: &Path) -> UnixStream {
    let socket = door.join(SOCKET_NAME);
    let connected = timeout(TIMEOUT, async {
        loop {
            match UnixStream::connect(&socket).await {
                Ok(stream) => return stream,
                Err(_) => sleep(POLL_INTERVAL).await,
            }
        }
    });
    connected.await.expect("a door")
}

/// The bytes of one frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short payload").to_be_bytes();
    let mut bytes = Vec::with_capacity(9 + payload.len());
    bytes.extend_from_slice(&length[1..]);
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// The frame that takes a request back.
pub fn reset(stream: u32) -> Vec<u8> {
    const CANCEL: u32 = 8;
    frame(RST_STREAM, NONE, stream, &CANCEL.to_be_bytes())
}

/// The head of a request, in the plainest HPACK that there is: literals that are not indexed (RFC 7541, section 6.2.2).
pub fn head(method: &str, path: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in [(":method", method.as_bytes()), (":scheme", b"http"), (":path", path)] {
        field(&mut bytes, name.as_bytes(), value);
    }
    bytes
}

/// One field of a head.
pub fn field(bytes: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    bytes.push(0);
    for text in [name, value] {
        match u8::try_from(text.len()) {
            Ok(length @ 0..=126) => bytes.push(length),
            _ => {
                // An integer that does not fit into seven bits (RFC 7541, section 5.1).
                bytes.push(127);
                let mut rest = text.len() - 127;
                while rest >= 128 {
                    bytes.push((rest % 128) as u8 | 128);
                    rest /= 128;
                }
                bytes.push(rest as u8);
            }
        }
        bytes.extend_from_slice(text);
    }
}

async fn listen(mut read: OwnedReadHalf, heard: Arc<Mutex<ReceivedFrames>>) {
    loop {
        let mut start = [0; 9];
        let mut payload = Vec::new();
        let read = async {
            read.read_exact(&mut start).await?;
            payload.resize(u32::from_be_bytes([0, start[0], start[1], start[2]]) as usize, 0);
            read.read_exact(&mut payload).await
        };
        let ended = read.await.is_err();
        let (kind, flags) = (start[3], start[4]);
        let stream = u32::from_be_bytes([start[5], start[6], start[7], start[8]]);
        let mut heard = heard.lock().expect("not poisoned");
        if ended || kind == GOAWAY {
            heard.gone = true;
            return;
        }
        match kind {
            DATA => heard.bodies.entry(stream).or_default().extend_from_slice(&payload),
            RST_STREAM => {
                heard.over.insert(stream, false);
            }
            _ => {}
        }
        if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
            heard.over.insert(stream, true);
        }
    }
}
