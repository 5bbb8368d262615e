//! What the simulated model says: a pure function of its seed, the version of its weights, the
//! prompt, the choice and the position, so that anybody can tell what should have been said.

use std::borrow::Cow;

use super::text::{CALL, CALL_END, END, FIRST_WORD, Tokenizer};

/// How long answers are, in tokens without the last one that ends them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CompletionLengths {
    /// All the same.
    Fixed(u32),
    /// Anything from the first to the second, alike often.
    Uniform(u32, u32),
    /// Mostly short, sometimes long: of that mean, and never above `max`.
    Geometric {
        mean: f64,
        /// The longest.
        max: u32,
    },
}

impl CompletionLengths {
    fn pick(self, hash: u64) -> u32 {
        match self {
            Self::Fixed(length) => length,
            Self::Uniform(low, high) => {
                let span = u64::from(high.saturating_sub(low)) + 1;
                low + u32::try_from(hash % span).unwrap_or(0)
            }
            Self::Geometric { mean, max } => {
                // 53 bits are what a float between 0 and 1 can hold; never 0, for the logarithm.
                let unit = ((hash >> 11) + 1) as f64 / (1_u64 << 53) as f64;
                let stop = 1.0 / mean.max(1.0);
                let length = if stop >= 1.0 { 1.0 } else { (unit.ln() / (-stop).ln_1p()).ceil() };
                (length.clamp(1.0, f64::from(max.max(1)))) as u32
            }
        }
    }
}

/// What one choice of an answer consists of.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    key: u64,
    tokenizer: Tokenizer,
    /// Tokens before the one that ends the answer.
    content: u32,
    /// A tool call is said word for word instead of whatever comes to mind.
    call: Option<ToolCall>,
}

/// A tool call, in tokens. Its text does not depend on the version of the weights, its
/// log-probabilities do.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ToolCall {
    pub(super) name: String,
    pub(super) tokens: Vec<i32>,
    /// Where the arguments begin and end in the tokens.
    pub(super) arguments: (usize, usize),
}

impl ToolCall {
    /// Spells a call. A prompt that repeats the call spells it the same way.
    pub(super) fn new(tokenizer: Tokenizer, name: &str, arguments: &str) -> Self {
        let name_json = serde_json::Value::from(name).to_string();
        let mut tokens = vec![CALL];
        tokens.extend(tokenizer.encode(&format!("{{\"name\": {name_json}, \"arguments\": ")));
        let start = tokens.len();
        tokens.extend(tokenizer.encode(arguments));
        let end = tokens.len();
        tokens.extend(tokenizer.encode("}"));
        tokens.push(CALL_END);
        Self { name: name.to_owned(), tokens, arguments: (start, end) }
    }
}

impl Script {
    /// Returns what a model of that seed makes of a prompt. `request_seed` is the `seed` of the
    /// request, `choice` the number of the choice among those of the same prompt.
    pub fn new(
        tokenizer: Tokenizer,
        lengths: CompletionLengths,
        seed: u64,
        prompt: &[i32],
        request_seed: Option<i64>,
        choice: u32,
    ) -> Self {
        let key = key(seed, prompt, request_seed, choice);
        Self { key, tokenizer, content: lengths.pick(mix(key, LENGTH)), call: None }
    }

    /// Limits the number of tokens, as `max_tokens` does. No character is begun that could not be
    /// finished within it.
    pub fn limited(mut self, max_tokens: u32) -> Self {
        self.content = self.content.min(max_tokens);
        self
    }

    /// Makes the answer at least so long.
    pub fn at_least(mut self, min_tokens: u32) -> Self {
        self.content = self.content.max(min_tokens);
        self
    }

    pub(super) fn saying(mut self, call: ToolCall) -> Self {
        self.content = u32::try_from(call.tokens.len()).unwrap_or(u32::MAX);
        self.call = Some(call);
        self
    }

    pub(super) fn call(&self) -> Option<&ToolCall> {
        self.call.as_ref()
    }

    /// How many tokens come before the one that ends the answer.
    pub const fn content(&self) -> u32 {
        self.content
    }

    /// The token at a position, and its log-probability, under a version of the weights.
    pub fn token(&self, version: u64, position: u32) -> (i32, f32) {
        let hash = mix(mix(mix(self.key, version), u64::from(position)), TOKEN);
        // Thousand-and-twenty-fourths: the same number in binary and in the text of an answer.
        let logprob = -((mix(hash, LOGPROB) % 4096 + 1) as f32) / 1024.0;
        (self.id(hash, position), logprob)
    }

    /// Other tokens that might have come there, ever less likely.
    pub fn others(&self, version: u64, position: u32, count: u32) -> Vec<(i32, f32)> {
        let (said, logprob) = self.token(version, position);
        let first = mix(mix(self.key, version), u64::from(position)) % u64::from(self.word_count());
        (0..u64::from(self.word_count()))
            .map(|step| self.word((first + step) % u64::from(self.word_count())))
            .filter(|id| *id != said)
            .take(count as usize)
            .enumerate()
            .map(|(rank, id)| (id, logprob - (rank + 1) as f32 / 4.0))
            .collect()
    }

    pub(super) fn bytes(&self, id: i32) -> Cow<'static, [u8]> {
        self.tokenizer.bytes(id)
    }

    const fn word_count(&self) -> u32 {
        self.tokenizer.word_count()
    }

    fn word(&self, hash: u64) -> i32 {
        let index = u32::try_from(hash % u64::from(self.word_count())).unwrap_or(0);
        FIRST_WORD.saturating_add_unsigned(index)
    }

    fn id(&self, hash: u64, position: u32) -> i32 {
        if position >= self.content {
            return END;
        }
        if let Some(call) = &self.call {
            return call.tokens.get(position as usize).copied().unwrap_or(END);
        }
        // Where a character takes several tokens does not depend on the version: the weights may
        // change in the middle of it, and it is a character all the same.
        let block = position / BLOCK;
        let shape = mix(mix(self.key, u64::from(block)), SHAPE);
        let width = [0, 2, 3, 4][(shape % 4) as usize];
        let start = block * BLOCK + 4 + u32::try_from((shape >> 8) % 8).unwrap_or(0);
        if start + width <= self.content && (start..start + width).contains(&position) {
            return byte(width, position - start, hash);
        }
        if position % BLOCK == BLOCK - 1 {
            return i32::from(b".,!\n"[(hash % 4) as usize]);
        }
        self.word(hash)
    }
}

/// The token that a model of that seed says at a position, and its log-probability: for answers
/// that nothing limits.
pub fn expected(
    (tokenizer, lengths): (Tokenizer, CompletionLengths),
    seed: u64,
    version: u64,
    prompt: &[i32],
    choice: u32,
    position: u32,
) -> (i32, f32) {
    Script::new(tokenizer, lengths, seed, prompt, None, choice).token(version, position)
}

const BLOCK: u32 = 16;
const LENGTH: u64 = 1;
const TOKEN: u64 = 2;
const LOGPROB: u64 = 3;
const SHAPE: u64 = 4;

/// Byte number `index` of a character of `width` bytes. Any of them fits any other.
fn byte(width: u32, index: u32, hash: u64) -> i32 {
    let (low, count) = match (width, index) {
        (2, 0) => (0xC3, 3),
        (3, 0) => (0xE5, 4),
        (4, 0) => (0xF0, 1),
        (4, 1) => (0x9F, 1),
        (4, 2) => (0x98, 2),
        _ => (0x80, 64),
    };
    low + i32::try_from(hash % count).unwrap_or(0)
}

fn key(seed: u64, prompt: &[i32], request_seed: Option<i64>, choice: u32) -> u64 {
    let mut key = mix(seed, prompt.len() as u64);
    for id in prompt {
        key = mix(key, u64::from(id.cast_unsigned()));
    }
    if let Some(seed) = request_seed {
        key = mix(mix(key, 1), seed.cast_unsigned());
    }
    mix(key, u64::from(choice))
}

/// Stirs a value into a hash.
pub(super) const fn mix(hash: u64, value: u64) -> u64 {
    let mut z = (hash.rotate_left(23) ^ value).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
