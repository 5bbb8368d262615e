//! Collects the tokens, log-probabilities and versions of a response. Inconsistencies are reported
//! at the end, so that the client's response is not affected.

use rollway_experience::{ModelVersions, VersionSpan};
use serde::Deserialize;
use serde_json::Value;

use super::client_reply::ClientReply;
use super::{ResponseParseError, TokenSource};
use crate::response::{ModelResponse, ResponseChoice, ResponseEnd};

/// Part of a choice.
#[derive(Debug, Default)]
pub(super) struct ChoiceDelta {
    pub(super) tokens: Option<Vec<i32>>,
    /// Log-probabilities; some may come later, none may be missing.
    pub(super) logprobs: Option<Vec<Option<f32>>>,
    pub(super) prompt: Option<Vec<i32>>,
    /// Version of these tokens, if reported.
    pub(super) version: Option<ReportedVersion>,
    /// Versions of all tokens so far, if reported.
    pub(super) spans: Option<Vec<ReportedSpan>>,
    /// Version at the end of a full response, if only that is reported.
    pub(super) last_version: Option<ReportedVersion>,
}

/// Maximum log-probability: 0, with room for rounding.
pub(super) const MAX_LOGPROB: f32 = 0.01;

impl ChoiceDelta {
    /// Memory of what is kept of it.
    pub(super) fn bytes(&self) -> usize {
        let tokens =
            [&self.tokens, &self.prompt].into_iter().flatten().map(Vec::len).sum::<usize>();
        size_of::<i32>() * (tokens + self.logprobs.as_ref().map_or(0, Vec::len))
    }
}

/// Version reported by a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReportedVersion {
    /// No version was ever set: the gateway's knowledge counts.
    Default,
    /// `None`: not a version of ours.
    Known(Option<u64>),
}

const DEFAULT_NAME: &str = "default";

impl ReportedVersion {
    /// Parses `7`, `v7` or a number.
    pub(super) fn read(value: &Value) -> Self {
        match value {
            Value::String(text) if text == DEFAULT_NAME => Self::Default,
            Value::String(text) => {
                let digits = text.strip_prefix('v').unwrap_or(text);
                let all_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
                Self::Known(digits.parse().ok().filter(|_| all_digits).filter(fits))
            }
            Value::Number(number) => Self::Known(number.as_u64().filter(fits)),
            _ => Self::Known(None),
        }
    }

    /// Version of all tokens, given the one at the end: known only if it never changed.
    fn if_unchanged(self, source: TokenSource) -> Option<u64> {
        self.or(source).filter(|version| source.version == Some(*version))
    }

    fn or(self, source: TokenSource) -> Option<u64> {
        match self {
            Self::Known(version) => version,
            Self::Default => source.version,
        }
    }
}

fn fits(version: &u64) -> bool {
    i64::try_from(*version).is_ok()
}

/// Range of tokens with the same version.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ReportedSpan {
    version: Value,
    start: usize,
    end: usize,
}

#[derive(Debug)]
pub(super) struct ResponseBuilder {
    prompt: Option<Vec<i32>>,
    choices: Vec<ChoiceBuilder>,
    /// Number of tokens of all choices, as counted by the server.
    usage: Option<u64>,
    /// Reason why it cannot be recorded.
    broken: Option<String>,
}

#[derive(Debug, Default)]
struct ChoiceBuilder {
    tokens: Vec<i32>,
    /// As many as arrived.
    logprobs: Vec<f32>,
    versions: ModelVersions,
    /// End and version of each span of first tokens.
    reported: Vec<(usize, Option<u64>)>,
    /// Number of first tokens up to the last one with the version of a [`TokenSource`].
    assumed: usize,
    has_tokens: bool,
    finish_reason: Option<String>,
    reply: ClientReply,
}

impl ResponseBuilder {
    pub(super) fn new(choices: u32) -> Self {
        let choices = (0..choices).map(|_| ChoiceBuilder::default()).collect();
        Self { prompt: None, choices, usage: None, broken: None }
    }

    pub(super) fn set_broken(&mut self, reason: String) {
        self.broken.get_or_insert(reason);
    }

    pub(super) fn note(&mut self, outcome: Result<(), String>) {
        if let Err(reason) = outcome {
            self.set_broken(reason);
        }
    }

    pub(super) fn set_prompt(&mut self, tokens: Vec<i32>) {
        match &self.prompt {
            None => self.prompt = Some(tokens),
            Some(known) if *known == tokens => {}
            Some(_) => self.set_broken("the server returned two different prompts".to_owned()),
        }
    }

    pub(super) fn set_usage(&mut self, completion_tokens: u64) {
        self.usage = Some(completion_tokens);
    }

    /// Adds a part of a choice.
    pub(super) fn add_part(&mut self, index: usize, part: ChoiceDelta, source: TokenSource) {
        if let Some(prompt) = part.prompt {
            self.set_prompt(prompt);
        }
        let Some(choice) = self.choices.get_mut(index) else {
            let requested = self.choices.len();
            return self
                .set_broken(format!("the response has a choice {index}, but n is {requested}"));
        };
        let mut problem = None;
        if let Some(tokens) = part.tokens {
            choice.has_tokens = true;
            if choice.finish_reason.is_some() && !tokens.is_empty() {
                problem = Some("tokens come after the finish reason".to_owned());
            }
            if tokens.iter().any(|id| *id < 0) {
                problem = problem.or_else(|| Some("a token id is negative".to_owned()));
            }
            let reported = part.version.unwrap_or(ReportedVersion::Default);
            let version = reported.or(source);
            if let Ok(count @ 1..) = u32::try_from(tokens.len()) {
                let pushed = choice.versions.push(VersionSpan { version, tokens: count });
                problem = problem.or_else(|| Some(pushed.err()?.to_string()));
            }
            choice.tokens.extend(tokens);
            if reported == ReportedVersion::Default && version.is_some() {
                choice.assumed = choice.tokens.len();
            }
        }
        for logprob in part.logprobs.into_iter().flatten() {
            match logprob {
                Some(logprob) if logprob > MAX_LOGPROB => {
                    let found = format!("a log-probability is {logprob}, above 0");
                    problem = problem.or(Some(found));
                }
                Some(logprob) => choice.logprobs.push(logprob),
                None => problem = problem.or_else(|| Some("a log-probability is missing".into())),
            }
        }
        if let Some(version) = part.last_version {
            choice.reported = vec![(usize::MAX, version.if_unchanged(source))];
        }
        if let Some(spans) = part.spans {
            match read_spans(&spans, source) {
                Ok(reported) => choice.reported = reported,
                Err(reason) => problem = problem.or(Some(reason)),
            }
        }
        if let Some(problem) = problem {
            self.set_broken(format!("choice {index}: {problem}"));
        }
    }

    pub(super) fn set_finished(&mut self, index: usize, reason: String) {
        if let Some(choice) = self.choices.get_mut(index) {
            choice.finish_reason = Some(reason);
        }
    }

    pub(super) fn has_assumed_versions(&self) -> bool {
        self.choices.iter().any(ChoiceBuilder::has_assumed_versions)
    }

    pub(super) fn drop_assumed_versions(&mut self) {
        for choice in self.choices.iter_mut().filter(|choice| choice.has_assumed_versions()) {
            choice.versions = ModelVersions::default();
            if let Ok(tokens @ 1..) = u32::try_from(choice.tokens.len()) {
                let unknown = VersionSpan { version: None, tokens };
                let pushed = choice.versions.push(unknown);
                self.broken = self.broken.take().or_else(|| Some(pushed.err()?.to_string()));
            }
        }
    }

    pub(super) fn reply(&mut self, index: usize) -> Option<&mut ClientReply> {
        self.choices.get_mut(index).map(|choice| &mut choice.reply)
    }

    pub(super) fn finish(
        self,
        id: String,
        model: String,
        end: ResponseEnd,
    ) -> Result<ModelResponse, ResponseParseError> {
        if let Some(reason) = self.broken {
            return Err(ResponseParseError(reason));
        }
        let has_tokens =
            self.prompt.is_some() || self.choices.iter().any(|choice| choice.has_tokens);
        let counted: u64 = self.choices.iter().map(|choice| choice.tokens.len() as u64).sum();
        if let (ResponseEnd::Complete, true, Some(usage)) = (end, has_tokens, self.usage)
            && usage != counted
        {
            let reason = format!("the server counted {usage} tokens, but returned {counted}");
            return Err(ResponseParseError(reason));
        }
        let choices = self.choices.into_iter().enumerate().map(|(index, choice)| {
            choice
                .finish(has_tokens, end)
                .map_err(|reason| ResponseParseError(format!("choice {index}: {reason}")))
        });
        let choices = choices.collect::<Result<_, _>>()?;
        Ok(ModelResponse { id, model, prompt: self.prompt, choices, end })
    }
}

impl ChoiceBuilder {
    /// Tokens in reported spans have the version of their span.
    fn has_assumed_versions(&self) -> bool {
        let reported = self.reported.last().map_or(0, |(end, _)| *end);
        self.assumed > reported
    }

    fn finish(mut self, has_tokens: bool, end: ResponseEnd) -> Result<ResponseChoice, String> {
        if end == ResponseEnd::Complete {
            if self.finish_reason.is_none() {
                return Err("the response ended without a finish reason".to_owned());
            }
            let (tokens, logprobs) = (self.tokens.len(), self.logprobs.len());
            if has_tokens && tokens != logprobs {
                return Err(format!("{tokens} tokens, but {logprobs} log-probabilities"));
            }
        }
        // Of an aborted response, complete tokens are kept.
        let count = self.tokens.len().min(self.logprobs.len());
        self.tokens.truncate(count);
        self.logprobs.truncate(count);
        let versions = label(&self.reported, &self.versions, count)?;
        Ok(ResponseChoice {
            tokens: has_tokens.then_some(self.tokens),
            logprobs: has_tokens.then_some(self.logprobs),
            versions,
            finish_reason: self.finish_reason,
            reply: self.reply.into_value(),
        })
    }
}

/// Returns the end and version of each span. Tokens outside of spans have no known version.
fn read_spans(
    spans: &[ReportedSpan],
    source: TokenSource,
) -> Result<Vec<(usize, Option<u64>)>, String> {
    let mut reported = Vec::with_capacity(spans.len());
    let mut from = 0;
    for span in spans {
        if span.start < from || span.end < span.start {
            return Err("the server's weight versions overlap".to_owned());
        }
        if span.start > from {
            reported.push((span.start, None));
        }
        reported.push((span.end, ReportedVersion::read(&span.version).or(source)));
        from = span.end;
    }
    Ok(reported)
}

/// Labels the first `count` tokens: as reported, then as received.
fn label(
    reported: &[(usize, Option<u64>)],
    versions: &ModelVersions,
    count: usize,
) -> Result<ModelVersions, String> {
    let received_spans = versions.spans().iter().scan(0, |end, run| {
        *end += run.tokens as usize;
        Some((*end, run.version))
    });
    let mut versions = ModelVersions::default();
    let mut from = 0;
    for (end, version) in reported.iter().copied().chain(received_spans) {
        let end = end.min(count);
        if let Ok(tokens @ 1..) = u32::try_from(end.saturating_sub(from)) {
            let run = VersionSpan { version, tokens };
            versions.push(run).map_err(|error| error.to_string())?;
            from = end;
        }
    }
    Ok(versions)
}
