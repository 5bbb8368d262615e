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
    token: String,
}

impl BadScript {
    pub(super) fn new(line: usize, what: impl Into<String>, token: &str) -> Self {
        Self { line, what: what.into(), token: token.to_owned() }
    }
}

impl fmt::Display for BadScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: `{}`", self.what, self.token)
    }
}

#[derive(Clone)]
struct Word {
    text: String,
    quoted: bool,
}

/// Tokens of one command. Each is removed when it is used, and [`end`](Self::end) rejects the rest,
/// so that no token is without effect.
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
        let Some(tokens) = commands.last_mut() else {
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
                tokens.push(Word { text: quoted, quoted: true });
            }
            c if c.is_whitespace() => {}
            c => {
                let mut token = String::from(c);
                while let Some(c) = chars.next_if(|c| !c.is_whitespace() && *c != ';') {
                    token.push(c);
                }
                tokens.push(Word { text: token, quoted: false });
            }
        }
    }
    let named = commands.into_iter().filter(|tokens| !tokens.is_empty());
    Ok(named
        .map(|mut tokens| CommandTokens { line, name: tokens.remove(0).text, rest: tokens })
        .collect())
}

impl CommandTokens {
    /// Returns the first token: the command.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn bad(&self, what: impl Into<String>, token: &str) -> BadScript {
        BadScript::new(self.line, what, token)
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
        let bare = self.rest.first().is_some_and(|token| !token.quoted);
        bare.then(|| self.rest.remove(0).text)
    }

    /// Removes the next token, a batch id. A quoted number is a text.
    pub(super) fn batch(&mut self) -> Result<BatchId, BadScript> {
        if self.rest.is_empty() {
            return Err(self.bad("a batch is missing after", &self.name));
        }
        let token = self.rest.remove(0);
        Ok(match token.text.parse::<i64>() {
            Ok(number) if !token.quoted => BatchId::Number(number),
            _ => BatchId::from(token.text.as_str()),
        })
    }

    /// Removes the quoted text.
    pub(super) fn quoted(&mut self) -> Option<String> {
        let at = self.rest.iter().position(|token| token.quoted)?;
        Some(self.rest.remove(at).text)
    }

    /// Removes a flag, and returns whether it was present.
    pub(super) fn flag(&mut self, name: &str) -> bool {
        let is = |token: &Word| !token.quoted && token.text == name;
        let at = self.rest.iter().position(is);
        at.map(|at| self.rest.remove(at)).is_some()
    }

    /// Removes a token together with the following one, which is returned.
    pub(super) fn following(&mut self, name: &str) -> Result<Option<String>, BadScript> {
        let is = |token: &Word| !token.quoted && token.text == name;
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
        let of = |token: &Word| -> Option<String> {
            let (name, value) = token.text.split_once('=').filter(|_| !token.quoted)?;
            (name == key).then(|| value.to_owned())
        };
        let at = self.rest.iter().position(|token| of(token).is_some())?;
        of(&self.rest.remove(at))
    }

    /// Removes a `key=value` and parses the value.
    pub(super) fn get<T: TokenValue>(&mut self, key: &str) -> Result<Option<T>, BadScript> {
        let Some(token) = self.value(key) else {
            return Ok(None);
        };
        match T::read(&token) {
            Some(value) => Ok(Some(value)),
            None => Err(self.bad(format!("no value for `{key}`"), &token)),
        }
    }

    /// Sets `place` to the value of a `key=value`, if present.
    pub(super) fn set<T: TokenValue>(&mut self, key: &str, place: &mut T) -> Result<(), BadScript> {
        if let Some(value) = self.get(key)? {
            *place = value;
        }
        Ok(())
    }

    pub(super) fn read<T: TokenValue>(&self, what: &str, token: &str) -> Result<T, BadScript> {
        T::read(token).ok_or_else(|| self.bad(format!("no {what}"), token))
    }

    /// Parses the number behind the letter of a label such as `w3`.
    pub(super) fn number<T: FromStr>(&self, letter: char, token: &str) -> Result<T, BadScript> {
        let number = token.strip_prefix(letter).and_then(|rest| rest.parse().ok());
        number.ok_or_else(|| self.bad(format!("no name such as `{letter}0`"), token))
    }

    /// Parses the number behind the letter, with an optional epoch: `a1.3` is attempt 3 after the
    /// first crash.
    pub(super) fn numbered(&self, letter: char, token: &str, bits: u32) -> Result<u64, BadScript> {
        let Some((epoch, number)) = token.split_once('.') else {
            return self.number(letter, token);
        };
        let epoch: u64 = self.number(letter, epoch)?;
        Ok((epoch << bits) + self.read::<u64>("number", number)?)
    }

    /// Rejects unused tokens.
    pub(super) fn end(self) -> Result<(), BadScript> {
        match self.rest.first() {
            None => Ok(()),
            Some(token) => {
                Err(self.bad(format!("`{}` knows no such word", self.name), &token.text))
            }
        }
    }
}

/// A value that can be written as one token.
pub(super) trait TokenValue: Sized {
    fn read(token: &str) -> Option<Self>;
}

macro_rules! plain_values {
    ($($type:ty)+) => { $(
        impl TokenValue for $type {
            fn read(token: &str) -> Option<Self> {
                token.parse().ok()
            }
        }
    )+ };
}

plain_values!(u8 u32 u64 f64 bool);

impl TokenValue for Duration {
    fn read(token: &str) -> Option<Self> {
        let (number, unit) = token.split_at(token.find(char::is_alphabetic)?);
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
    fn read(token: &str) -> Option<Self> {
        match token {
            "none" => Some(None),
            token => T::read(token).map(Some),
        }
    }
}

impl TokenValue for GroupPolicy {
    fn read(token: &str) -> Option<Self> {
        match token {
            "whole" => Some(Self::Whole),
            "partial" => Some(Self::Partial),
            _ => None,
        }
    }
}

impl TokenValue for OnExhausted {
    fn read(token: &str) -> Option<Self> {
        match token {
            "fail_run" => Some(Self::FailRun),
            "fail_batch" => Some(Self::FailBatch),
            _ => None,
        }
    }
}
