//! Tokens of a command: names, `key=value` settings, flags and quoted texts.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rollway_core::{BatchId, GroupPolicy, OnExhausted};

/// A parse error: line, description and token.
#[derive(Debug)]
pub(super) struct BadScript {
    pub(super) line: usize,
    what: String,
    word: String,
}

impl BadScript {
    pub(super) fn new(line: usize, what: impl Into<String>, word: &str) -> Self {
        Self { line, what: what.into(), word: word.to_owned() }
    }
}

impl fmt::Display for BadScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: `{}`", self.what, self.word)
    }
}

#[derive(Clone)]
struct Word {
    text: String,
    quoted: bool,
}

/// Tokens of one command. Each is removed when it is used, and [`end`](Self::end) rejects the rest, so
/// that no token is without effect.
#[derive(Clone)]
pub(super) struct CommandTokens {
    pub(super) line: usize,
    name: String,
    rest: Vec<Word>,
}

/// Splits a line into its commands, which are separated by semicolons.
pub(super) fn split(line: usize, text: &str) -> Result<Vec<CommandTokens>, BadScript> {
    let mut commands: Vec<Vec<Word>> = vec![Vec::new()];
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let Some(words) = commands.last_mut() else {
            break;
        };
        match c {
            ';' => commands.push(Vec::new()),
            '"' => {
                let quoted: String = chars.by_ref().take_while(|c| *c != '"').collect();
                // The closing quote was consumed, or the line ended without one.
                if text.matches('"').count() % 2 == 1 {
                    return Err(BadScript::new(line, "a quote without its end", &quoted));
                }
                words.push(Word { text: quoted, quoted: true });
            }
            c if c.is_whitespace() => {}
            c => {
                let mut word = String::from(c);
                while let Some(c) = chars.next_if(|c| !c.is_whitespace() && *c != ';') {
                    word.push(c);
                }
                words.push(Word { text: word, quoted: false });
            }
        }
    }
    let named = commands.into_iter().filter(|words| !words.is_empty());
    Ok(named
        .map(|mut words| CommandTokens { line, name: words.remove(0).text, rest: words })
        .collect())
}

impl CommandTokens {
    /// Returns the first token: the command.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn bad(&self, what: impl Into<String>, word: &str) -> BadScript {
        BadScript::new(self.line, what, word)
    }

    /// Removes the next token; the error for a missing one names `what`.
    pub(super) fn next(&mut self, what: &str) -> Result<String, BadScript> {
        if self.rest.is_empty() {
            return Err(self.bad(format!("{what} is missing after"), &self.name));
        }
        Ok(self.rest.remove(0).text)
    }

    /// Removes the next token if it is not quoted.
    pub(super) fn next_bare(&mut self) -> Option<String> {
        let bare = self.rest.first().is_some_and(|word| !word.quoted);
        bare.then(|| self.rest.remove(0).text)
    }

    /// Removes the next token, a batch id. A quoted number is a text.
    pub(super) fn batch(&mut self) -> Result<BatchId, BadScript> {
        if self.rest.is_empty() {
            return Err(self.bad("a batch is missing after", &self.name));
        }
        let word = self.rest.remove(0);
        Ok(match word.text.parse::<i64>() {
            Ok(number) if !word.quoted => BatchId::Number(number),
            _ => BatchId::from(word.text.as_str()),
        })
    }

    /// Removes the quoted text.
    pub(super) fn quoted(&mut self) -> Option<String> {
        let at = self.rest.iter().position(|word| word.quoted)?;
        Some(self.rest.remove(at).text)
    }

    /// Removes a flag, and returns whether it was present.
    pub(super) fn flag(&mut self, name: &str) -> bool {
        let is = |word: &Word| !word.quoted && word.text == name;
        let at = self.rest.iter().position(is);
        at.map(|at| self.rest.remove(at)).is_some()
    }

    /// Removes a token together with the following one, which is returned.
    pub(super) fn following(&mut self, name: &str) -> Result<Option<String>, BadScript> {
        let is = |word: &Word| !word.quoted && word.text == name;
        let Some(at) = self.rest.iter().position(is) else {
            return Ok(None);
        };
        if at + 1 == self.rest.len() {
            return Err(self.bad("a word is missing after", name));
        }
        self.rest.remove(at);
        Ok(Some(self.rest.remove(at).text))
    }

    /// Removes a `key=value` and returns the value.
    pub(super) fn value(&mut self, key: &str) -> Option<String> {
        let of = |word: &Word| -> Option<String> {
            let (name, value) = word.text.split_once('=').filter(|_| !word.quoted)?;
            (name == key).then(|| value.to_owned())
        };
        let at = self.rest.iter().position(|word| of(word).is_some())?;
        of(&self.rest.remove(at))
    }

    /// Removes a `key=value` and parses the value.
    pub(super) fn get<T: TokenValue>(&mut self, key: &str) -> Result<Option<T>, BadScript> {
        let Some(word) = self.value(key) else {
            return Ok(None);
        };
        match T::read(&word) {
            Some(value) => Ok(Some(value)),
            None => Err(self.bad(format!("no value for `{key}`"), &word)),
        }
    }

    /// Sets `place` to the value of a `key=value`, if present.
    pub(super) fn set<T: TokenValue>(&mut self, key: &str, place: &mut T) -> Result<(), BadScript> {
        if let Some(value) = self.get(key)? {
            *place = value;
        }
        Ok(())
    }

    /// Parses a token.
    pub(super) fn read<T: TokenValue>(&self, what: &str, word: &str) -> Result<T, BadScript> {
        T::read(word).ok_or_else(|| self.bad(format!("no {what}"), word))
    }

    /// Parses the number behind the letter of a label such as `w3`.
    pub(super) fn number<T: FromStr>(&self, letter: char, word: &str) -> Result<T, BadScript> {
        let number = word.strip_prefix(letter).and_then(|rest| rest.parse().ok());
        number.ok_or_else(|| self.bad(format!("no name such as `{letter}0`"), word))
    }

    /// Parses the number behind the letter, with an optional epoch: `a1.3` is attempt 3 after the
    /// first crash.
    pub(super) fn numbered(&self, letter: char, word: &str, bits: u32) -> Result<u64, BadScript> {
        let Some((epoch, number)) = word.split_once('.') else { return self.number(letter, word) };
        let epoch: u64 = self.number(letter, epoch)?;
        Ok((epoch << bits) + self.read::<u64>("number", number)?)
    }

    /// Rejects unused tokens.
    pub(super) fn end(self) -> Result<(), BadScript> {
        match self.rest.first() {
            None => Ok(()),
            Some(word) => Err(self.bad(format!("`{}` knows no such word", self.name), &word.text)),
        }
    }
}

/// A value that can be written as one token.
pub(super) trait TokenValue: Sized {
    fn read(word: &str) -> Option<Self>;
}

macro_rules! plain_values {
    ($($type:ty)+) => { $(
        impl TokenValue for $type {
            fn read(word: &str) -> Option<Self> {
                word.parse().ok()
            }
        }
    )+ };
}

plain_values!(u8 u32 u64 f64 bool);

impl TokenValue for Duration {
    fn read(word: &str) -> Option<Self> {
        let (number, unit) = word.split_at(word.find(char::is_alphabetic)?);
        let number: f64 = number.parse().ok()?;
        let seconds = match unit {
            "ms" => number / 1_000.0,
            "s" => number,
            "m" => number * 60.0,
            "h" => number * 3_600.0,
            _ => return None,
        };
        Self::try_from_secs_f64(seconds).ok()
    }
}

impl<T: TokenValue> TokenValue for Option<T> {
    fn read(word: &str) -> Option<Self> {
        match word {
            "none" => Some(None),
            word => T::read(word).map(Some),
        }
    }
}

impl TokenValue for GroupPolicy {
    fn read(word: &str) -> Option<Self> {
        match word {
            "whole" => Some(Self::Whole),
            "partial" => Some(Self::Partial),
            _ => None,
        }
    }
}

impl TokenValue for OnExhausted {
    fn read(word: &str) -> Option<Self> {
        match word {
            "fail_run" => Some(Self::FailRun),
            "fail_batch" => Some(Self::FailBatch),
            _ => None,
        }
    }
}
