//! Generated tokens: a pure function of seed, version of the weights, prompt, choice and position,
//! so that tests can compute them.

use std::borrow::Cow;

use super::text::{CALL, CALL_END, END, FIRST_WORD, Tokenizer};

/// Distribution of completion lengths, in tokens without the final one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CompletionLengths {
    Fixed(u32),
    Uniform(u32, u32),
    /// Geometric with this mean, truncated at `max`.
    Geometric {
        mean: f64,
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
                // 53 bits fit a float; never 0, for the logarithm.
                let unit = ((hash >> 11) + 1) as f64 / (1_u64 << 53) as f64;
                let stop = 1.0 / mean.max(1.0);
                let length = if stop >= 1.0 { 1.0 } else { (unit.ln() / (-stop).ln_1p()).ceil() };
                (length.clamp(1.0, f64::from(max.max(1)))) as u32
            }
        }
    }
}

/// A turn of the model that a test prescribes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptedTurn {
    Text(String),
    ToolCall {
        name: String,
        /// The arguments as JSON.
        arguments: String,
    },
}

/// Tokens of one choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    key: u64,
    tokenizer: Tokenizer,
    /// Number of tokens before the final one.
    content: u32,
    /// A tool call that replaces the random tokens.
    call: Option<ToolCall>,
    /// A text that replaces the random tokens.
    text: Option<Vec<i32>>,
}

/// Tokens of a tool call. They do not depend on the version of the weights; their log-probabilities
/// do.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ToolCall {
    pub(super) name: String,
    pub(super) tokens: Vec<i32>,
    /// Range of the arguments in the tokens.
    pub(super) arguments: (usize, usize),
}

impl ToolCall {
    /// Tokenizes a call as a prompt that repeats it does.
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
    /// Returns the tokens for a prompt. `request_seed` is the `seed` of the request, `choice` the
    /// index among the choices of the prompt.
    pub fn new(
        tokenizer: Tokenizer,
        lengths: CompletionLengths,
        seed: u64,
        prompt: &[i32],
        request_seed: Option<i64>,
        choice: u32,
    ) -> Self {
        let key = key(seed, prompt, request_seed, choice);
        Self { key, tokenizer, content: lengths.pick(mix(key, LENGTH)), call: None, text: None }
    }

    /// Limits the number of tokens, as `max_tokens` does. Multi-token characters are not cut.
    pub fn limited(mut self, max_tokens: u32) -> Self {
        self.content = self.content.min(max_tokens);
        self
    }

    /// Sets a minimum number of tokens.
    pub fn at_least(mut self, min_tokens: u32) -> Self {
        self.content = self.content.max(min_tokens);
        self
    }

    pub(super) fn with_tool_call(mut self, call: ToolCall) -> Self {
        self.content = u32::try_from(call.tokens.len()).unwrap_or(u32::MAX);
        self.call = Some(call);
        self
    }

    pub(super) fn with_text(mut self, text: Vec<i32>) -> Self {
        self.content = u32::try_from(text.len()).unwrap_or(u32::MAX);
        self.text = Some(text);
        self
    }

    pub(super) fn call(&self) -> Option<&ToolCall> {
        self.call.as_ref()
    }

    /// Returns the number of tokens before the final one.
    pub const fn content(&self) -> u32 {
        self.content
    }

    /// Returns the token at a position and its log-probability.
    pub fn token(&self, version: u64, position: u32) -> (i32, f32) {
        let hash = mix(mix(mix(self.key, version), u64::from(position)), TOKEN);
        // Multiples of 1/1024: exact in binary and in decimal text.
        let logprob = -((mix(hash, LOGPROB) % 4096 + 1) as f32) / 1024.0;
        (self.id(hash, position), logprob)
    }

    /// Returns less likely alternatives at a position.
    pub fn others(&self, version: u64, position: u32, count: u32) -> Vec<(i32, f32)> {
        let (sampled, logprob) = self.token(version, position);
        let first = mix(mix(self.key, version), u64::from(position)) % u64::from(self.word_count());
        (0..u64::from(self.word_count()))
            .map(|step| self.word((first + step) % u64::from(self.word_count())))
            .filter(|id| *id != sampled)
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
        let prescribed = self.call.as_ref().map(|call| &call.tokens).or(self.text.as_ref());
        if let Some(tokens) = prescribed {
            return tokens.get(position as usize).copied().unwrap_or(END);
        }
        // Positions of multi-token characters do not depend on the version, so that characters stay
        // valid when the weights change within one.
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

const BLOCK: u32 = 16;
const LENGTH: u64 = 1;
const TOKEN: u64 = 2;
const LOGPROB: u64 = 3;
const SHAPE: u64 = 4;

/// Returns byte `index` of a character of `width` bytes; all combinations are valid UTF-8.
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

pub(super) const fn mix(hash: u64, value: u64) -> u64 {
    let mut z = (hash.rotate_left(23) ^ value).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
