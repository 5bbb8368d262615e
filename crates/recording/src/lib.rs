//! Recording of the model calls of a run, and the experiences they make. No I/O, no clock.

mod dedup;
mod merge;
mod merge_plan;
mod prefix;
#[cfg(test)]
mod tests;
mod tokens;
mod tool_arguments;
mod trie;
mod turn;
mod turn_table;
mod weights;

use std::collections::BTreeSet;

use rollway_experience::Experience;
use rollway_model_api::json_shape::JsonShape;
use rollway_model_api::replay::SavedResponse;
use rollway_model_api::server_api::RecordedPrefix;
use rollway_model_api::{ModelCall, ModelResponse, ResponseEnd, ServerKind};
use serde_json::Value;

use self::dedup::{CallLog, Fingerprint};
use self::merge_plan::MergePlan;
use self::tool_arguments::ToolArguments;
use self::turn::{returned_tokens, turn_id};
use self::turn_table::{TurnOrigin, TurnTable};

pub use self::merge::{MergedTurns, merge};
pub use self::merge_plan::MergeCounts;
pub use self::turn::Turn;
pub use self::weights::ExperienceWeights;

/// Records each call of a run once.
#[derive(Debug, Default)]
pub struct Recorder {
    limits: RecorderLimits,
    store: TurnTable,
    calls: CallLog,
    tool_arguments: ToolArguments,
    plan: MergePlan,
    counts: RecorderCounts,
    /// Model versions of all recorded tokens, also of replaced turns.
    versions: BTreeSet<u64>,
    /// The reason why there are no experiences.
    failure: Option<RecordError>,
}

/// Limits of a run. Beyond them its recording fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecorderLimits {
    pub max_turns: u32,
    /// Bytes of tokens, messages and saved responses together.
    pub max_bytes: u64,
    /// Saved responses for client retries; the oldest are dropped first.
    pub max_kept: u32,
    /// Bytes of experiences, in each of which the messages that turns share are repeated.
    pub max_experience_bytes: u64,
}

impl Default for RecorderLimits {
    fn default() -> Self {
        Self {
            max_turns: 4096,
            max_bytes: 256 << 20,
            max_kept: 64,
            max_experience_bytes: 512 << 20,
        }
    }
}

/// Number of a call in its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallNumber(pub u64);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetryHeaders {
    /// `Idempotency-Key`: calls with the same key are the same.
    pub idempotency_key: Option<String>,
    /// True if `x-stainless-retry-count` is above zero.
    pub is_retry: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum CallDecision {
    /// Send it to a server.
    New(CallNumber),
    /// Return the saved response: it is no second sample.
    Duplicate(CallNumber, SavedResponse),
}

/// The reason why a call or a run cannot be recorded. `KeyReused` and `UnderWay` are errors of one
/// call, the others of the run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error(
        "model {0} reports no token ids, so its turns cannot be trained on: \
         use a server that does ({kinds}), or return experiences of your own",
        kinds = ServerKind::either(ServerKind::has_tokens)
    )]
    NoTokens(String),
    #[error("a response could not be recorded: {0}")]
    Misread(String),
    #[error("the run's recording takes more than {limit} {what}; {remedy}")]
    TooMuch { what: &'static str, limit: u64, remedy: &'static str },
    #[error("the idempotency key {0} was used for another request")]
    KeyReused(String),
    /// The call with the same idempotency key must end first.
    #[error("a call with the same idempotency key is in flight")]
    UnderWay,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecorderCounts {
    /// Recorded calls, including aborted ones.
    pub calls: u64,
    /// Recorded choices.
    pub turns: u64,
    /// Retries that got a saved response.
    pub retries: u64,
    /// Calls whose client disconnected before the end.
    pub aborted: u64,
    /// Recorded calls, mostly aborted ones, that a retry replaced.
    pub replaced: u64,
    /// Aborted calls without any token, which are not recorded.
    pub aborted_empty: u64,
    /// Saved responses that were dropped.
    pub dropped: u64,
    pub merged: MergeCounts,
}

/// Messages of a recorded turn and its reply, not parsed.
#[derive(Clone, Debug)]
pub struct Conversation<'a> {
    messages: Vec<&'a str>,
    reply: &'a str,
}

impl Conversation<'_> {
    pub fn text_bytes(&self) -> u64 {
        self.texts().map(|text| text.len() as u64).sum()
    }

    /// Estimates the memory of the parsed messages.
    pub fn parsed_bytes(&self) -> u64 {
        self.texts().map(|text| JsonShape::of(text.as_bytes()).bytes).sum()
    }

    /// Returns the messages, the last of which is the reply.
    pub fn parse(&self) -> Vec<Value> {
        let messages = self.messages.iter().map(|text| turn_table::value(text));
        let reply = prefix::history_message(&turn_table::value(self.reply));
        messages.chain([reply]).collect()
    }

    fn texts(&self) -> impl Iterator<Item = &str> {
        self.messages.iter().copied().chain([self.reply])
    }
}

impl Recorder {
    pub fn new(limits: RecorderLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Begins a call. A duplicate gets the saved response: by idempotency key, or by the same body
    /// if the client marks a retry or did not receive the complete response. A retry of an aborted
    /// call, or of one still in flight, is new and replaces it.
    ///
    /// After a failure of the recording, calls are refused with its error, except for missing token
    /// ids.
    pub fn begin(
        &mut self,
        call: &ModelCall,
        retry: &RetryHeaders,
    ) -> Result<CallDecision, RecordError> {
        self.begin_as(call.fingerprint(), call, retry)
    }

    fn begin_as(
        &mut self,
        fingerprint: Fingerprint,
        call: &ModelCall,
        retry: &RetryHeaders,
    ) -> Result<CallDecision, RecordError> {
        self.check_going()?;
        let content = self.store.add_call(call)?;
        let decision = self.calls.begin(fingerprint, retry, content)?;
        self.enforce()?;
        self.counts.retries += u64::from(matches!(decision, CallDecision::Duplicate(..)));
        Ok(decision)
    }

    /// Restores the arguments of recorded tool calls in the history of a call, which clients write
    /// with other spaces than the model.
    pub fn restore_tool_arguments(&self, call: &mut ModelCall) {
        if let Some(messages) = call.body.get_mut("messages") {
            self.tool_arguments.restore(messages);
        }
    }

    /// Notes the sampling parameters of a call, as they are sent to the server.
    pub fn note_sampling(&mut self, number: CallNumber, call: &ModelCall) {
        let sampling = self.store.add_sampling(&turn_table::sampling(call));
        self.calls.set_sampling(number.0, sampling);
    }

    /// Returns the recorded turn that a call continues, if the model ended that turn.
    pub fn recorded_prefix(&self, number: CallNumber) -> Option<RecordedPrefix> {
        prefix::recorded_prefix(&self.store, self.calls.turn_content(number.0)?)
    }

    /// Returns the messages of a recorded turn with its reply, as JSON. `None`: the id is unknown.
    pub fn conversation(&self, id: &str) -> Option<Conversation<'_>> {
        let turn = self.store.find(id)?;
        let path = self.store.texts.path(turn.content.messages?);
        let messages = path.into_iter().filter_map(|node| self.store.texts.piece(node)).collect();
        Some(Conversation { messages, reply: &turn.reply })
    }

    /// Records a complete or aborted response. [`delivered`](Self::delivered) or
    /// [`client_disconnected`](Self::client_disconnected) must follow a complete one.
    pub fn answered(
        &mut self,
        number: CallNumber,
        response: ModelResponse,
        saved: SavedResponse,
    ) -> Result<(), RecordError> {
        self.check_going()?;
        let CallNumber(number) = number;
        let Some(content) = self.calls.turn_content(number) else { return Ok(()) };
        let ModelResponse { id, model, prompt, choices, end } = response;
        let is_aborted = end == ResponseEnd::Aborted;
        self.counts.aborted += u64::from(is_aborted);
        if self.calls.is_replaced(number) {
            self.counts.calls += 1;
            self.counts.replaced += 1;
            self.remove_call(number);
            return Ok(());
        }
        let mut turns = Vec::new();
        match returned_tokens(prompt, choices, is_aborted) {
            Some((prompt, choices)) => {
                for (index, choice) in choices {
                    self.tool_arguments.record_calls(&choice.reply);
                    let versions = choice.versions.spans().iter();
                    self.versions.extend(versions.filter_map(|tokens| tokens.version));
                    let id = turn_id(&id, index);
                    let origin = TurnOrigin { id, model: &model, aborted: is_aborted };
                    let pushed = self.store.push(origin, content, &prompt, choice);
                    turns.push(pushed.inspect_err(|error| self.fail(error.clone()))?);
                }
            }
            None if is_aborted => {
                self.counts.aborted_empty += 1;
                self.remove_call(number);
                return Ok(());
            }
            None => self.fail(RecordError::NoTokens(model)),
        }
        self.counts.calls += 1;
        self.counts.turns += turns.len() as u64;
        let first = self.store.len() - turns.len();
        let replaced = self.calls.recorded(number, turns, is_aborted);
        self.remove(&replaced, first);
        self.plan_from(first);
        if !is_aborted {
            self.calls.save_response(number, saved);
        }
        self.enforce()
    }

    pub fn delivered(&mut self, number: CallNumber) {
        let replaced = self.calls.end_delivery(number.0, true);
        self.remove(&replaced, self.store.len());
    }

    /// The client disconnected before the end of a complete response, and gets it again if it
    /// retries.
    pub fn client_disconnected(&mut self, number: CallNumber) {
        let replaced = self.calls.end_delivery(number.0, false);
        self.remove(&replaced, self.store.len());
    }

    /// No server answered the call: nothing is recorded.
    pub fn upstream_failed(&mut self, number: CallNumber) {
        if self.calls.turn_content(number.0).is_some() {
            self.remove_call(number.0);
        }
    }

    /// The response was invalid: the run has no experiences.
    pub fn failed(&mut self, number: CallNumber, error: RecordError) {
        self.upstream_failed(number);
        self.fail(error);
    }

    /// Number of turns, including replaced ones: numbers of turns never change.
    pub fn turns(&self) -> u64 {
        self.store.len() as u64
    }

    /// Returns the model versions of all recorded tokens. `None`: no turn was recorded.
    pub fn versions(&self) -> Option<&BTreeSet<u64>> {
        (self.turns() > 0).then_some(&self.versions)
    }

    /// Returns the experiences of the turns from number `since` on, without rewards. Turns are
    /// numbered in the order in which their calls end.
    pub fn experiences(&self, since: u64) -> Result<Vec<Experience>, RecordError> {
        self.weighted_experiences(since, &ExperienceWeights::default())
    }

    /// Returns the experiences like [`experiences`](Self::experiences), with their weights.
    pub fn weighted_experiences(
        &self,
        since: u64,
        weights: &ExperienceWeights,
    ) -> Result<Vec<Experience>, RecordError> {
        let limit = self.limits.max_experience_bytes;
        self.planned(since, |plan| merge::experiences(&self.store, plan, (limit, weights)))
    }

    /// Estimates the size of the experiences of the turns from number `since` on.
    pub fn experience_bytes(&self, since: u64) -> Result<u64, RecordError> {
        let limit = self.limits.max_experience_bytes;
        self.planned(since, |plan| merge::check_bytes(&self.store, plan, limit))
    }

    /// Calls a function with the plan of the turns from number `since` on.
    fn planned<T>(
        &self,
        since: u64,
        read: impl FnOnce(&MergePlan) -> Result<T, RecordError>,
    ) -> Result<T, RecordError> {
        match (&self.failure, usize::try_from(since).unwrap_or(usize::MAX)) {
            (Some(failure), _) => Err(failure.clone()),
            (None, 0) => read(&self.plan),
            (None, since) => read(&MergePlan::of(&self.store, since)),
        }
    }

    /// Counts never decrease: what is replaced later stays counted.
    pub fn counts(&self) -> RecorderCounts {
        self.counts
    }

    pub fn bytes(&self) -> u64 {
        (self.store.bytes() + self.calls.bytes() + self.tool_arguments.bytes()) as u64
    }

    /// Fails the recording because of a limit over several runs, and frees its memory.
    pub fn exceeded(
        &mut self,
        (what, limit): (&'static str, u64),
        remedy: &'static str,
    ) -> RecordError {
        let error = RecordError::TooMuch { what, limit, remedy };
        self.fail(error.clone());
        error
    }

    /// Checks that calls can still be recorded.
    fn check_going(&self) -> Result<(), RecordError> {
        match &self.failure {
            None | Some(RecordError::NoTokens(_)) => Ok(()),
            Some(failure) => Err(failure.clone()),
        }
    }

    /// Sets the failure. A failure other than missing token ids is final.
    fn fail(&mut self, error: RecordError) {
        if self.check_going().is_err() {
            return;
        }
        let is_tolerable = matches!(error, RecordError::NoTokens(_));
        if is_tolerable && self.failure.is_some() {
            return;
        }
        self.failure = Some(error);
        if !is_tolerable {
            // Nothing of it is used any more.
            self.store = TurnTable::default();
            self.calls = CallLog::default();
            self.tool_arguments = ToolArguments::default();
            self.plan = MergePlan::default();
        }
    }

    fn plan_from(&mut self, first: usize) {
        let before = self.plan.counts;
        for number in first..self.store.len() {
            self.plan.add(&self.store, number);
        }
        let (after, merged) = (self.plan.counts, &mut self.counts.merged);
        merged.continued += after.continued - before.continued;
        merged.drift += after.drift - before.drift;
        merged.branches += after.branches - before.branches;
        merged.empty += after.empty - before.empty;
    }

    /// Removes a call without a valid response.
    fn remove_call(&mut self, number: u64) {
        let replaced = self.calls.remove_unanswered(number);
        self.remove(&replaced, self.store.len());
    }

    /// Removes the turns of calls, and plans those before `end` anew.
    fn remove(&mut self, calls: &[Vec<usize>], end: usize) {
        if calls.is_empty() {
            return;
        }
        self.counts.replaced += calls.len() as u64;
        for &turn in calls.iter().flatten() {
            self.store.remove(turn);
        }
        self.plan = MergePlan::default();
        for number in 0..end {
            self.plan.add(&self.store, number);
        }
    }

    /// Drops saved responses until the limits hold, else fails the recording.
    fn enforce(&mut self) -> Result<(), RecordError> {
        let RecorderLimits { max_turns, max_bytes, max_kept, .. } = self.limits;
        while (self.calls.saved() > max_kept as usize || self.bytes() > max_bytes)
            && self.calls.drop_oldest()
        {
            self.counts.dropped += 1;
        }
        let (found, remedy) = if self.store.len() > max_turns as usize {
            (("turns", u64::from(max_turns)), "end the run after fewer model calls")
        } else if self.bytes() > max_bytes {
            let remedy = "raise `explorer.gateway.recorded_bytes_per_run`, or shorten the run";
            (("bytes", max_bytes), remedy)
        } else {
            return Ok(());
        };
        Err(self.exceeded(found, remedy))
    }
}
