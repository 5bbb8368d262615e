//! Words that many runs share, kept once.

use std::collections::HashMap;
use std::sync::Arc;

/// How many different words there may be.
const MAX_NAMES: usize = 200_000;

/// How many bytes of a message are kept with a run; all of it is in its record.
const LONGEST: usize = 300;

/// Says that there were too many.
const TOO_MANY: &str = "(there were too many different messages to keep this one here)";

/// Words by number. Number 0 is nothing.
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

    /// Returns the number of words.
    pub(super) fn number(&mut self, words: &str) -> u32 {
        let words = &words[..words.floor_char_boundary(LONGEST)];
        if words.is_empty() {
            return 0;
        }
        if let Some(number) = self.numbers.get(words) {
            return *number;
        }
        if self.list.len() >= MAX_NAMES {
            self.left_out += 1;
            return 1;
        }
        let number = self.list.len() as u32;
        let words: Arc<str> = words.into();
        self.list.push(Arc::clone(&words));
        self.numbers.insert(words, number);
        number
    }

    /// Returns the words of a number; none of nothing.
    pub(super) fn text(&self, number: u32) -> Option<&Arc<str>> {
        self.list.get(number as usize).filter(|_| number > 0)
    }

    /// Tells of every number whether its words contain others, in small letters.
    pub(super) fn containing(&self, text: &str) -> Vec<bool> {
        self.list.iter().map(|words| contains(words, text)).collect()
    }
}

/// Tells whether words contain others, which are in small letters.
pub(super) fn contains(words: &str, text: &str) -> bool {
    if text.is_ascii() {
        let (words, text) = (words.as_bytes(), text.as_bytes());
        return words.windows(text.len().max(1)).any(|part| part.eq_ignore_ascii_case(text))
            || text.is_empty();
    }
    words.to_lowercase().contains(text)
}
