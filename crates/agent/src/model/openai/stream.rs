//! An answer as a stream of events.

use serde_json::Value;

use super::calls::Listed;
use super::gathering::{End, Gathering};
use crate::model::events::{Event, Events};
use crate::model::{Answer, Broken, Reader};

/// Reads a stream.
#[derive(Debug)]
pub struct Stream {
    events: Events,
    gathering: Gathering,
    is_done: bool,
}

impl Stream {
    /// From its beginning.
    pub fn new(gathering: Gathering) -> Self {
        Self { events: Events::default(), gathering, is_done: false }
    }

    fn add(&mut self, event: Event<Value>) -> Result<(), Broken> {
        match event {
            // What comes after the end does not count.
            _ if self.is_done => {}
            Event::Done => self.is_done = true,
            Event::Data(chunk) => {
                self.gathering.add(chunk, Listed::InPieces)?;
            }
        }
        Ok(())
    }
}

impl Reader for Stream {
    fn read(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        if self.is_done {
            return Ok(());
        }
        for event in self.events.read(bytes)? {
            self.add(event)?;
        }
        Ok(())
    }

    fn is_whole(&self) -> bool {
        self.is_done || self.gathering.is_whole()
    }

    fn text(&self) -> &str {
        self.gathering.visible()
    }

    fn finish(mut self: Box<Self>) -> Result<Answer, Broken> {
        if !self.is_done {
            match self.events.last() {
                Ok(Some(event)) => self.add(event)?,
                Ok(None) => {}
                // Half an event after the last word takes nothing away.
                Err(_) if self.gathering.has_stopped() => {}
                Err(error) => return Err(error),
            }
        }
        let end = if self.is_done { End::Marked } else { End::Unmarked };
        self.gathering.finish(end)
    }
}
