//! Text that is kept up to a limit, and counted beyond it.

/// Bytes that are given up to cut between words.
const MAX_RAGGED: usize = 80;

/// A text that grows up to its limits and then only counts.
#[derive(Debug)]
pub struct BoundedText {
    text: String,
    /// Characters of `text`.
    kept_chars: usize,
    /// Characters pushed.
    chars: usize,
    /// Bytes pushed.
    bytes: usize,
    max_chars: usize,
    max_bytes: usize,
    full: Option<Full>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Full {
    Characters,
    Bytes,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Excerpt {
    pub text: String,
    pub kept_chars: usize,
    /// Characters before the cut.
    pub total_chars: usize,
    /// Whether the limit of characters was reached, not that of bytes.
    pub at_char_limit: bool,
}

impl BoundedText {
    pub fn new(max_chars: usize, max_bytes: usize) -> Self {
        Self { text: String::new(), kept_chars: 0, chars: 0, bytes: 0, max_chars, max_bytes, full: None }
    }

    pub fn push(&mut self, text: &str) {
        let chars = text.chars().count();
        self.chars += chars;
        self.bytes += text.len();
        if self.full.is_some() {
            return;
        }
        if self.kept_chars + chars <= self.max_chars && self.text.len() + text.len() <= self.max_bytes {
            self.text.push_str(text);
            self.kept_chars += chars;
            return;
        }
        for character in text.chars() {
            if self.kept_chars == self.max_chars {
                self.full = Some(Full::Characters);
                return;
            }
            if self.text.len() + character.len_utf8() > self.max_bytes {
                self.full = Some(Full::Bytes);
                return;
            }
            self.text.push(character);
            self.kept_chars += 1;
        }
    }

    pub fn push_char(&mut self, character: char) {
        self.push(character.encode_utf8(&mut [0; 4]));
    }

    pub fn is_empty(&self) -> bool {
        self.chars == 0
    }

    #[cfg(test)]
    pub fn bytes_pushed(&self) -> usize {
        self.bytes
    }

    /// An empty text with the same limits.
    pub fn into_empty(self) -> Self {
        Self::new(self.max_chars, self.max_bytes)
    }

    /// Cuts between words where that costs little.
    pub fn cut(mut self) -> Excerpt {
        if self.full.is_some() {
            let from = self.text.floor_char_boundary(self.text.len().saturating_sub(MAX_RAGGED));
            let last = self.text.get(from..).unwrap_or_default();
            if let Some(space) = last.rfind([' ', '\n'])
                && from + space > 0
            {
                self.text.truncate(from + space);
                self.kept_chars = self.text.chars().count();
            }
        }
        Excerpt {
            text: self.text,
            kept_chars: self.kept_chars,
            total_chars: self.chars,
            at_char_limit: self.full == Some(Full::Characters),
        }
    }
}
