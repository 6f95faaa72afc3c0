//! Text that is kept as far as it will be shown, and counted beyond that.

/// Most bytes that are given up at a cut so that it does not go through a word.
const RAGGED: usize = 80;

/// A text that grows up to a bound, and then only counts.
#[derive(Debug)]
pub struct Kept {
    text: String,
    /// Characters of `text`.
    kept: usize,
    /// Characters in all.
    characters: usize,
    /// Bytes in all: what the writing cost.
    bytes: usize,
    most: usize,
    most_bytes: usize,
    full: Option<Full>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Full {
    Characters,
    Bytes,
}

/// What was kept, at the end.
#[derive(Debug, PartialEq, Eq)]
pub struct Cut {
    pub text: String,
    /// Characters of it.
    pub at: usize,
    /// Characters that there were.
    pub of: usize,
    /// Whether characters were what ran out.
    pub at_characters: bool,
}

impl Kept {
    pub fn new(most: usize, most_bytes: usize) -> Self {
        Self { text: String::new(), kept: 0, characters: 0, bytes: 0, most, most_bytes, full: None }
    }

    pub fn push(&mut self, text: &str) {
        let characters = text.chars().count();
        self.characters += characters;
        self.bytes += text.len();
        if self.full.is_some() {
            return;
        }
        if self.kept + characters <= self.most && self.text.len() + text.len() <= self.most_bytes {
            self.text.push_str(text);
            self.kept += characters;
            return;
        }
        for character in text.chars() {
            if self.kept == self.most {
                self.full = Some(Full::Characters);
                return;
            }
            if self.text.len() + character.len_utf8() > self.most_bytes {
                self.full = Some(Full::Bytes);
                return;
            }
            self.text.push(character);
            self.kept += 1;
        }
    }

    pub fn push_char(&mut self, character: char) {
        self.push(character.encode_utf8(&mut [0; 4]));
    }

    pub fn is_empty(&self) -> bool {
        self.characters == 0
    }

    /// The bytes that were written, kept or not.
    #[cfg(test)]
    pub fn written(&self) -> usize {
        self.bytes
    }

    /// The same bounds, and nothing in it.
    pub fn emptied(self) -> Self {
        Self::new(self.most, self.most_bytes)
    }

    /// What there is, cut between words where that costs little.
    pub fn cut(mut self) -> Cut {
        if self.full.is_some() {
            let from = self.text.floor_char_boundary(self.text.len().saturating_sub(RAGGED));
            let last = self.text.get(from..).unwrap_or_default();
            if let Some(space) = last.rfind([' ', '\n'])
                && from + space > 0
            {
                self.text.truncate(from + space);
                self.kept = self.text.chars().count();
            }
        }
        Cut { text: self.text, at: self.kept, of: self.characters, at_characters: self.full == Some(Full::Characters) }
    }
}
