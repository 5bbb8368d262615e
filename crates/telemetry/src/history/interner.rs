//! Interner of texts that many runs share.

use std::collections::HashMap;
use std::sync::Arc;

/// Maximum number of texts.
const MAX_NAMES: usize = 200_000;

/// Maximum bytes of a text; records have the whole message.
const MAX_TEXT_BYTES: usize = 300;

const TOO_MANY: &str = "(not listed: too many different messages)";

/// Texts by number. Number 0: none; 1: limit reached.
#[derive(Debug)]
pub(super) struct Names {
    list: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, u32>,
    pub(super) left_out: u64,
}

impl Names {
    pub(super) fn new() -> Self {
        let list = vec!["".into(), TOO_MANY.into()];
        Self { list, numbers: HashMap::new(), left_out: 0 }
    }

    pub(super) fn number(&mut self, text: &str) -> u32 {
        let text = &text[..text.floor_char_boundary(MAX_TEXT_BYTES)];
        if text.is_empty() {
            return 0;
        }
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        if self.list.len() >= MAX_NAMES {
            self.left_out += 1;
            return 1;
        }
        let number = self.list.len() as u32;
        let text: Arc<str> = text.into();
        self.list.push(Arc::clone(&text));
        self.numbers.insert(text, number);
        number
    }

    pub(super) fn text(&self, number: u32) -> Option<&Arc<str>> {
        self.list.get(number as usize).filter(|_| number > 0)
    }

    /// Returns for each number whether its text contains the lowercase `text`.
    pub(super) fn containing(&self, text: &str) -> Vec<bool> {
        self.list.iter().map(|known| contains(known, text)).collect()
    }
}

/// Returns whether a text contains the lowercase `part`, ignoring case.
pub(super) fn contains(text: &str, part: &str) -> bool {
    if part.is_ascii() {
        return contains_bytes(text.as_bytes(), part);
    }
    text.to_lowercase().contains(part)
}

/// Returns whether bytes contain the lowercase ASCII `part`, ignoring case.
pub(super) fn contains_bytes(bytes: &[u8], part: &str) -> bool {
    let part = part.as_bytes();
    part.is_empty() || bytes.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part))
}
