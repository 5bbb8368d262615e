//! Tokenizer: bytes, special tokens, and words of syllables. Every text has one tokenization, and
//! generated tokens are always that one.

use std::borrow::Cow;

pub(super) const BEGIN: i32 = 256;
pub const END: i32 = 257;
pub(super) const SYSTEM: i32 = 258;
pub(super) const USER: i32 = 259;
pub(super) const ASSISTANT: i32 = 260;
pub(super) const TOOL: i32 = 261;
pub(super) const TOOLS: i32 = 262;
pub(super) const CALL: i32 = 263;
pub(super) const CALL_END: i32 = 264;
pub(super) const FIRST_WORD: i32 = 272;

/// Number of words of up to three syllables.
const MAX_WORDS: u32 = 80 + 80 * 80 + 80 * 80 * 80;

const CONSONANTS: &[u8; 16] = b"bdfghklmnprstvwz";
const VOWELS: &[u8; 5] = b"aeiou";
const SPECIAL: [&str; 9] = [
    "<|begin|>",
    "<|end|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    "<|tools|>",
    "<|tool_call|>",
    "<|/tool_call|>",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokenizer {
    words: u32,
}

impl Tokenizer {
    /// Returns the tokenizer of a vocabulary with 1 to `MAX_WORDS` words.
    pub fn new(words: u32) -> Self {
        Self { words: words.clamp(1, MAX_WORDS) }
    }

    pub const fn word_count(self) -> u32 {
        self.words
    }

    pub fn is_valid_token(self, id: i32) -> bool {
        (0..FIRST_WORD.saturating_add_unsigned(self.words)).contains(&id)
    }

    /// Tokenizes a text. Special tokens are never recognized in it.
    pub fn encode(self, text: &str) -> Vec<i32> {
        let bytes = text.as_bytes();
        let mut tokens = Vec::with_capacity(bytes.len() / 4 + 4);
        let mut at = 0;
        while at < bytes.len() {
            if let Some((word, len)) = self.word_at(&bytes[at..]) {
                tokens.push(word);
                at += len;
            } else {
                tokens.push(i32::from(bytes[at]));
                at += 1;
            }
        }
        tokens
    }

    /// Tokenizes a text in bytes only: the same text, other tokens.
    pub fn encode_bytes(self, text: &str) -> Vec<i32> {
        text.bytes().map(i32::from).collect()
    }

    /// Returns the bytes of a token; special and unknown tokens have none.
    pub fn bytes(self, id: i32) -> Cow<'static, [u8]> {
        match u8::try_from(id) {
            Ok(byte) => Cow::Owned(vec![byte]),
            Err(_) if id >= FIRST_WORD && self.is_valid_token(id) => {
                Cow::Owned(spell(id.abs_diff(FIRST_WORD)))
            }
            Err(_) => Cow::Borrowed(&[]),
        }
    }

    /// Returns the text of tokens, special ones by name. Invalid UTF-8 is replaced.
    pub fn decode(self, tokens: &[i32]) -> String {
        let mut bytes = Vec::with_capacity(tokens.len() * 4);
        for &id in tokens {
            match usize::try_from(id - BEGIN).ok().and_then(|index| SPECIAL.get(index)) {
                Some(name) => bytes.extend_from_slice(name.as_bytes()),
                None => bytes.extend_from_slice(&self.bytes(id)),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Finds the longest word at the beginning, and its length.
    fn word_at(self, bytes: &[u8]) -> Option<(i32, usize)> {
        if bytes.first() != Some(&b' ') {
            return None;
        }
        let mut found = None;
        let (mut value, mut base, mut count) = (0_u32, 0_u32, 1_u32);
        for (number, pair) in bytes[1..].chunks_exact(2).take(3).enumerate() {
            let Some(syllable) = syllable(pair) else { break };
            value = value * 80 + syllable;
            count *= 80;
            if base + value < self.words {
                found = Some((FIRST_WORD.saturating_add_unsigned(base + value), 3 + 2 * number));
            }
            base += count;
        }
        found
    }
}

fn syllable(pair: &[u8]) -> Option<u32> {
    let consonant = CONSONANTS.iter().position(|c| *c == pair[0])?;
    let vowel = VOWELS.iter().position(|v| *v == pair[1])?;
    u32::try_from(consonant * VOWELS.len() + vowel).ok()
}

/// Spells a word: a space, then one to three syllables.
fn spell(index: u32) -> Vec<u8> {
    let (mut rest, mut count, mut syllables) = (index, 80, 1);
    while rest >= count {
        rest -= count;
        count *= 80;
        syllables += 1;
    }
    let mut word = vec![b' '; 1 + 2 * syllables];
    for pair in word[1..].chunks_exact_mut(2).rev() {
        let syllable = (rest % 80) as usize;
        pair[0] = CONSONANTS[syllable / VOWELS.len()];
        pair[1] = VOWELS[syllable % VOWELS.len()];
        rest /= 80;
    }
    word
}

/// Incremental UTF-8 decoder.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    pending: Vec<u8>,
}

impl Decoder {
    /// Takes the bytes of a token, and returns the characters that they complete.
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        loop {
            match str::from_utf8(&self.pending) {
                Ok(text_part) => {
                    text.push_str(text_part);
                    self.pending.clear();
                    return text;
                }
                Err(error) => {
                    let good = error.valid_up_to();
                    text.push_str(&String::from_utf8_lossy(&self.pending[..good]));
                    let Some(bad) = error.error_len() else {
                        self.pending.drain(..good);
                        return text;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    self.pending.drain(..good + bad);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_spelled_back() {
        let tokenizer = Tokenizer::new(MAX_WORDS);
        for index in [0, 1, 79, 80, 81, 6479, 6480, 6481, MAX_WORDS - 1] {
            let word = String::from_utf8(spell(index)).unwrap();
            let id = FIRST_WORD.saturating_add_unsigned(index);
            assert_eq!(tokenizer.encode(&word), [id], "{word}");
        }
    }

    #[test]
    fn characters_are_returned_once_complete() {
        let mut decoder = Decoder::default();
        let pieces: Vec<String> = "a語".bytes().map(|byte| decoder.push(&[byte])).collect();
        assert_eq!(pieces, ["a", "", "", "語"]);
    }
}
