//! What is gathered of an answer for the record: the tokens of every choice, each with its
//! log-probability and its version. What does not fit together is remembered and told at the end,
//! so that the client's answer does not suffer from it.

use rollway_experience::{ModelVersions, VersionRun};
use serde::Deserialize;
use serde_json::Value;

use super::client_reply::ClientReply;
use super::{ResponseParseError, TokenSource};
use crate::response::{ModelResponse, ResponseChoice, ResponseEnd};

/// What a piece of an answer tells about one choice.
#[derive(Debug, Default)]
pub(super) struct ChoiceDelta {
    /// Tokens that follow those before.
    pub(super) tokens: Option<Vec<i32>>,
    /// Their log-probabilities; some may come later, none may be missing.
    pub(super) logprobs: Option<Vec<Option<f32>>>,
    /// The tokens of the prompt.
    pub(super) prompt: Option<Vec<i32>>,
    /// The version of these tokens, if the server says it.
    pub(super) version: Option<ReportedVersion>,
    /// The versions of all tokens of the choice so far, if the server says them.
    pub(super) spans: Option<Vec<VersionSpan>>,
    /// The version at the end of a whole answer, if the server says no more.
    pub(super) last_version: Option<ReportedVersion>,
}

/// A version, as a server says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReportedVersion {
    /// The server was never told a version: the gateway has to know.
    Untold,
    /// It is known, or unknown because it was made up by somebody else.
    Told(Option<u64>),
}

/// What servers call the version of their weights until somebody says otherwise.
const UNTOLD: &str = "default";

impl ReportedVersion {
    /// Reads `7`, `v7` or a number.
    pub(super) fn read(value: &Value) -> Self {
        match value {
            Value::String(text) if text == UNTOLD => Self::Untold,
            Value::String(text) => {
                let digits = text.strip_prefix('v').unwrap_or(text);
                let all_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
                Self::Told(digits.parse().ok().filter(|_| all_digits).filter(fits))
            }
            Value::Number(number) => Self::Told(number.as_u64().filter(fits)),
            _ => Self::Told(None),
        }
    }

    /// The version of all tokens of an answer that had this one at its end: known if it is the one
    /// that was there all the time.
    fn all_the_time(self, source: TokenSource) -> Option<u64> {
        self.or(source).filter(|version| source.version == Some(*version))
    }

    fn or(self, source: TokenSource) -> Option<u64> {
        match self {
            Self::Told(version) => version,
            Self::Untold => source.version,
        }
    }
}

/// Whether versions may be that high.
fn fits(version: &u64) -> bool {
    i64::try_from(*version).is_ok()
}

/// Tokens with the same version, by their numbers in the choice.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct VersionSpan {
    version: Value,
    start: usize,
    end: usize,
}

/// An answer so far.
#[derive(Debug)]
pub(super) struct ResponseBuilder {
    prompt: Option<Vec<i32>>,
    choices: Vec<Open>,
    /// How many tokens the server counted, of all choices together.
    usage: Option<u64>,
    /// Why nothing of it can be trained on.
    broken: Option<String>,
}

/// A choice so far.
#[derive(Debug)]
struct Open {
    tokens: Vec<i32>,
    /// As many as came. None of them is none, or the answer is broken.
    logprobs: Vec<f32>,
    versions: ModelVersions,
    /// What the server said of the versions of the first tokens.
    told: Vec<(usize, Option<u64>)>,
    has_tokens: bool,
    finish_reason: Option<String>,
    reply: ClientReply,
}

impl ResponseBuilder {
    /// Returns an answer of which nothing has come.
    pub(super) fn new(choices: u32) -> Self {
        let open = || Open {
            tokens: Vec::new(),
            logprobs: Vec::new(),
            versions: ModelVersions::default(),
            told: Vec::new(),
            has_tokens: false,
            finish_reason: None,
            reply: ClientReply::Nothing,
        };
        let choices = (0..choices).map(|_| open()).collect();
        Self { prompt: None, choices, usage: None, broken: None }
    }

    /// The answer cannot be trained on. The first reason counts.
    pub(super) fn broken(&mut self, why: String) {
        self.broken.get_or_insert(why);
    }

    /// Takes what may have gone wrong.
    pub(super) fn note(&mut self, outcome: Result<(), String>) {
        if let Err(why) = outcome {
            self.broken(why);
        }
    }

    /// Takes the tokens of the prompt, which are the same for all choices.
    pub(super) fn set_prompt(&mut self, tokens: Vec<i32>) {
        match &self.prompt {
            None => self.prompt = Some(tokens),
            Some(known) if *known == tokens => {}
            Some(_) => self.broken("the server names two different prompts".to_owned()),
        }
    }

    /// Takes how many tokens the server counted.
    pub(super) fn usage(&mut self, completion_tokens: u64) {
        self.usage = Some(completion_tokens);
    }

    /// Takes what a piece of the answer tells about a choice.
    pub(super) fn part(&mut self, index: usize, part: ChoiceDelta, source: TokenSource) {
        if let Some(prompt) = part.prompt {
            self.set_prompt(prompt);
        }
        let Some(open) = self.choices.get_mut(index) else {
            let asked = self.choices.len();
            return self.broken(format!("there is a choice {index}, but n was {asked}"));
        };
        let mut problem = None;
        if let Some(tokens) = part.tokens {
            open.has_tokens = true;
            if open.finish_reason.is_some() && !tokens.is_empty() {
                problem = Some("tokens come after the finish reason".to_owned());
            }
            if tokens.iter().any(|id| *id < 0) {
                problem = problem.or_else(|| Some("a token id is negative".to_owned()));
            }
            let version = part.version.unwrap_or(ReportedVersion::Untold).or(source);
            if let Ok(count @ 1..) = u32::try_from(tokens.len()) {
                let pushed = open.versions.push(VersionRun { version, tokens: count });
                problem = problem.or_else(|| Some(pushed.err()?.to_string()));
            }
            open.tokens.extend(tokens);
        }
        for logprob in part.logprobs.into_iter().flatten() {
            match logprob {
                Some(logprob) => open.logprobs.push(logprob),
                None => problem = problem.or_else(|| Some("a log-probability is missing".into())),
            }
        }
        if let Some(version) = part.last_version {
            open.told = vec![(usize::MAX, version.all_the_time(source))];
        }
        if let Some(spans) = part.spans {
            match read_spans(&spans, source) {
                Ok(told) => open.told = told,
                Err(why) => problem = problem.or(Some(why)),
            }
        }
        if let Some(problem) = problem {
            self.broken(format!("choice {index}: {problem}"));
        }
    }

    /// Takes a finish reason.
    pub(super) fn finished(&mut self, index: usize, reason: String) {
        if let Some(open) = self.choices.get_mut(index) {
            open.finish_reason = Some(reason);
        }
    }

    /// The reply of a choice.
    pub(super) fn reply(&mut self, index: usize) -> Option<&mut ClientReply> {
        self.choices.get_mut(index).map(|open| &mut open.reply)
    }

    /// Ends the answer.
    pub(super) fn finish(
        self,
        id: String,
        model: String,
        end: ResponseEnd,
    ) -> Result<ModelResponse, ResponseParseError> {
        if let Some(why) = self.broken {
            return Err(ResponseParseError(why));
        }
        let tells = self.prompt.is_some() || self.choices.iter().any(|open| open.has_tokens);
        let counted: u64 = self.choices.iter().map(|open| open.tokens.len() as u64).sum();
        if let (ResponseEnd::Complete, true, Some(usage)) = (end, tells, self.usage)
            && usage != counted
        {
            let why = format!("the server counted {usage} tokens, but showed {counted}");
            return Err(ResponseParseError(why));
        }
        let choices = self.choices.into_iter().enumerate().map(|(index, open)| {
            open.finish(tells, end)
                .map_err(|why| ResponseParseError(format!("choice {index}: {why}")))
        });
        let choices = choices.collect::<Result<_, _>>()?;
        Ok(ModelResponse { id, model, prompt: self.prompt, choices, end })
    }
}

impl Open {
    fn finish(mut self, tells: bool, end: ResponseEnd) -> Result<ResponseChoice, String> {
        if end == ResponseEnd::Complete {
            if self.finish_reason.is_none() {
                return Err("the answer ended without a finish reason".to_owned());
            }
            let (tokens, logprobs) = (self.tokens.len(), self.logprobs.len());
            if tells && tokens != logprobs {
                return Err(format!("{tokens} tokens, but {logprobs} log-probabilities"));
            }
        }
        // Of an answer that was cut off, what has come whole is kept.
        let count = self.tokens.len().min(self.logprobs.len());
        self.tokens.truncate(count);
        self.logprobs.truncate(count);
        let versions = label(&self.told, &self.versions, count)?;
        Ok(ResponseChoice {
            tokens: tells.then_some(self.tokens),
            logprobs: tells.then_some(self.logprobs),
            versions,
            finish_reason: self.finish_reason,
            reply: self.reply.into_value(),
        })
    }
}

/// Returns up to which token which version goes. Tokens that no span names have no known version.
fn read_spans(
    spans: &[VersionSpan],
    source: TokenSource,
) -> Result<Vec<(usize, Option<u64>)>, String> {
    let mut told = Vec::with_capacity(spans.len());
    let mut from = 0;
    for span in spans {
        if span.start < from || span.end < span.start {
            return Err("the server's weight versions overlap".to_owned());
        }
        if span.start > from {
            told.push((span.start, None));
        }
        told.push((span.end, ReportedVersion::read(&span.version).or(source)));
        from = span.end;
    }
    Ok(told)
}

/// Labels the first `count` tokens: as the server told, and after that as they came.
fn label(
    told: &[(usize, Option<u64>)],
    came: &ModelVersions,
    count: usize,
) -> Result<ModelVersions, String> {
    let came_runs = came.runs().iter().scan(0, |end, run| {
        *end += run.tokens as usize;
        Some((*end, run.version))
    });
    let mut versions = ModelVersions::default();
    let mut from = 0;
    for (end, version) in told.iter().copied().chain(came_runs) {
        let end = end.min(count);
        if let Ok(tokens @ 1..) = u32::try_from(end.saturating_sub(from)) {
            let run = VersionRun { version, tokens };
            versions.push(run).map_err(|error| error.to_string())?;
            from = end;
        }
    }
    Ok(versions)
}
