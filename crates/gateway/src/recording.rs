//! What is kept of a run's model calls, and the experiences that it makes. No I/O, no clock.

mod dedup;
mod merge;
mod merge_plan;
#[cfg(test)]
mod tests;
mod tokens;
mod trie;
mod turn;
mod turn_table;

use rollway_experience::Experience;
use rollway_model_api::replay::SavedResponse;
use rollway_model_api::{ModelCall, ModelResponse, ResponseEnd};

use self::dedup::{CallLog, CallMatch, Fingerprint};
use self::merge_plan::MergePlan;
use self::turn::{ReturnedTokens, returned_tokens, turn_id};
use self::turn_table::{TurnOrigin, TurnTable};

pub use self::merge::{MergedTurns, merge};
pub use self::turn::Turn;

/// Keeps the calls of one run, each once.
#[derive(Debug)]
pub struct Recorder {
    limits: RecorderLimits,
    store: TurnTable,
    calls: CallLog,
    plan: MergePlan,
    counts: RecorderCounts,
    /// Why there are no experiences.
    failure: Option<RecordError>,
}

/// How much of a run is kept at most. Beyond it the run's recording has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecorderLimits {
    pub max_turns: u32,
    /// Bytes, of tokens, messages and kept answers together.
    pub max_bytes: u64,
    /// Answers that are kept for clients that ask again; the oldest go first.
    pub max_kept: u32,
}

impl Default for RecorderLimits {
    fn default() -> Self {
        Self { max_turns: 4096, max_bytes: 256 << 20, max_kept: 64 }
    }
}

/// A call that was begun, by its number in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallNumber(pub u64);

/// What a client says about a call besides its body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetryHeaders {
    /// `Idempotency-Key`: calls with the same one are the same.
    pub idempotency_key: Option<String>,
    /// `x-stainless-retry-count` is above zero: the client has asked before.
    pub is_retry: bool,
}

/// What to do with a call.
#[derive(Clone, Debug, PartialEq)]
pub enum CallDecision {
    /// It is new: ask a server, then say how it went.
    New(CallNumber),
    /// The client has asked before and is given the same answer: it is no second sample.
    Duplicate(CallNumber, SavedResponse),
}

/// Why there are no experiences. It is an error of the run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A server that tells no token ids answered a call.
    #[error(
        "model {0} tells no token ids, so that its answers cannot be trained on: \
         use a server that does (vllm, sglang, llama_cpp), or return experiences of your own"
    )]
    NoTokens(String),
    /// An answer could not be understood.
    #[error("an answer could not be recorded: {0}")]
    Misread(String),
    /// There is more to keep than allowed.
    #[error("the run's recording takes more than {limit} {what}")]
    TooMuch {
        what: &'static str,
        /// How many are allowed.
        limit: u64,
    },
    /// The same idempotency key came with another request.
    #[error("the idempotency key {0} was used for another request")]
    KeyReused(String),
    /// A call with the same idempotency key is under way: its answer is to be waited for.
    #[error("a call with the same idempotency key is under way")]
    UnderWay,
}

/// What happened in a run, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecorderCounts {
    /// Calls that were recorded, wholly or until they were aborted.
    pub calls: u64,
    /// Turns (choices of calls) that were recorded.
    pub turns: u64,
    /// Calls that were answered again and not counted again.
    pub retries: u64,
    /// Calls whose client left before the end.
    pub aborted: u64,
    /// Recorded calls, mostly aborted ones, that a retry has replaced: they make no experience.
    pub replaced: u64,
    /// Aborted calls of which the server had told no tokens, so that nothing is recorded.
    pub untold: u64,
    /// Answers that are no longer kept for clients that ask again.
    pub dropped: u64,
    /// Turns without a single token, of which there is no experience.
    pub empty: u64,
    /// Turns that continue an earlier one.
    pub continued: u64,
    /// Turns that begin like an earlier one but not with all of its tokens.
    pub drift: u64,
    /// Turns that branch off in the middle of an experience.
    pub branches: u64,
}

impl Recorder {
    /// Returns a recorder that has heard nothing.
    pub fn new(limits: RecorderLimits) -> Self {
        Self {
            limits,
            store: TurnTable::default(),
            calls: CallLog::default(),
            plan: MergePlan::default(),
            counts: RecorderCounts::default(),
            failure: None,
        }
    }

    /// A call came in. What the client has asked before is answered again: by idempotency key; by
    /// the same body, if the client says that it is a retry or if its earlier answer was complete
    /// but not delivered. A retry of a call whose answer was aborted is new, and replaces it. So
    /// does a retry of a call that is still under way, whose client has given it up.
    ///
    /// Once the recording has failed there is nothing to begin: the error is that of the failure.
    /// That a server tells no token ids is no reason to refuse a call.
    pub fn begin(
        &mut self,
        call: &ModelCall,
        attempted: &RetryHeaders,
    ) -> Result<CallDecision, RecordError> {
        self.begin_as(call.fingerprint(), call, attempted)
    }

    fn begin_as(
        &mut self,
        fingerprint: Fingerprint,
        call: &ModelCall,
        attempted: &RetryHeaders,
    ) -> Result<CallDecision, RecordError> {
        self.check_going()?;
        let said = self.store.add_content(call.body.get("messages"), call.body.get("tools"))?;
        let asked = self.calls.begin(fingerprint, attempted, said)?;
        self.enforce()?;
        Ok(match asked {
            CallMatch::New(number) => CallDecision::New(CallNumber(number)),
            CallMatch::Again(number, kept) => {
                self.counts.retries += 1;
                CallDecision::Duplicate(CallNumber(number), kept)
            }
        })
    }

    /// A call was answered, wholly or until it was aborted. Whether the client was given all of a
    /// whole answer is to be told too, with [`delivered`](Self::delivered) or
    /// [`client_disconnected`](Self::client_disconnected).
    pub fn answered(
        &mut self,
        number: CallNumber,
        answer: ModelResponse,
        kept: SavedResponse,
    ) -> Result<(), RecordError> {
        self.check_going()?;
        let CallNumber(number) = number;
        let Some(said) = self.calls.turn_content(number) else { return Ok(()) };
        let ModelResponse { id, model, prompt, choices, end } = answer;
        let is_aborted = end == ResponseEnd::Aborted;
        self.counts.aborted += u64::from(is_aborted);
        if self.calls.is_replaced(number) {
            self.counts.calls += 1;
            self.counts.replaced += 1;
            self.forget(number);
            return Ok(());
        }
        let mut turns = Vec::new();
        match returned_tokens(prompt, choices, is_aborted) {
            Some(ReturnedTokens { prompt, choices }) => {
                for (index, choice) in choices {
                    let id = turn_id(&id, index);
                    let origin = TurnOrigin { id, model: &model, aborted: is_aborted };
                    let pushed = self.store.push(origin, said, &prompt, choice);
                    turns.push(pushed.inspect_err(|error| self.fail(error.clone()))?);
                }
            }
            None if is_aborted => {
                self.counts.untold += 1;
                self.forget(number);
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
            self.calls.keep(number, kept);
        }
        self.enforce()
    }

    /// The client was given all of the answer.
    pub fn delivered(&mut self, number: CallNumber) {
        let replaced = self.calls.went(number.0, true);
        self.remove(&replaced, self.store.len());
    }

    /// The client left before it was given all of an answer that was complete. If it asks the same
    /// again, it gets that answer.
    pub fn client_disconnected(&mut self, number: CallNumber) {
        let replaced = self.calls.went(number.0, false);
        self.remove(&replaced, self.store.len());
    }

    /// No server answered a call, or what it said was an error: nothing is recorded.
    pub fn upstream_failed(&mut self, number: CallNumber) {
        if self.calls.turn_content(number.0).is_some() {
            self.forget(number.0);
        }
    }

    /// An answer was given to the client but could not be understood: from now on there are no
    /// experiences of this run.
    pub fn failed(&mut self, number: CallNumber, error: RecordError) {
        self.upstream_failed(number);
        self.fail(error);
    }

    /// How many turns there were, those that were replaced included: the numbers of turns do not
    /// change.
    pub fn turns(&self) -> u64 {
        self.store.len() as u64
    }

    /// Returns the turns of a call, each with all it shares with others; none if the call is not
    /// recorded or was replaced.
    pub fn turns_of(&self, number: CallNumber) -> Vec<Turn> {
        let numbers = self.calls.turns(number.0);
        numbers.iter().filter_map(|&number| self.store.turn(number)).collect()
    }

    /// Returns the experiences that the turns from number `since` on make, without rewards, or why
    /// there are none. Turns are numbered as their calls end.
    pub fn experiences(&self, since: u64) -> Result<Vec<Experience>, RecordError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let since = usize::try_from(since).unwrap_or(usize::MAX);
        if since == 0 {
            return merge::experiences(&self.store, &self.plan);
        }
        merge::experiences(&self.store, &MergePlan::of(&self.store, since))
    }

    /// What happened, in numbers that never fall: what was replaced later stays counted.
    pub fn counts(&self) -> RecorderCounts {
        self.counts
    }

    /// How many bytes are kept.
    pub fn bytes(&self) -> u64 {
        (self.store.bytes() + self.calls.bytes()) as u64
    }

    /// Whether calls can still be recorded.
    fn check_going(&self) -> Result<(), RecordError> {
        match &self.failure {
            None | Some(RecordError::NoTokens(_)) => Ok(()),
            Some(failure) => Err(failure.clone()),
        }
    }

    /// Remembers a failure, unless there was one that says more.
    fn fail(&mut self, error: RecordError) {
        if self.check_going().is_err() {
            return;
        }
        let goes_on = matches!(error, RecordError::NoTokens(_));
        if goes_on && self.failure.is_some() {
            return;
        }
        self.failure = Some(error);
        if !goes_on {
            // Nothing of it will be asked for.
            self.store = TurnTable::default();
            self.calls = CallLog::default();
            self.plan = MergePlan::default();
        }
    }

    /// Adds the turns from one on to the plan.
    fn plan_from(&mut self, first: usize) {
        let before = self.plan.counts;
        for number in first..self.store.len() {
            self.plan.add(&self.store, number);
        }
        let after = self.plan.counts;
        self.counts.continued += after.continued - before.continued;
        self.counts.drift += after.drift - before.drift;
        self.counts.branches += after.branches - before.branches;
        self.counts.empty += after.empty - before.empty;
    }

    /// A call has no answer that counts.
    fn forget(&mut self, number: u64) {
        let replaced = self.calls.unanswered(number);
        self.remove(&replaced, self.store.len());
    }

    /// Takes away the turns of calls that no longer count. Those before `end` are planned anew.
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

    /// Drops kept answers until there is room; if there is none the recording has failed.
    fn enforce(&mut self) -> Result<(), RecordError> {
        let RecorderLimits { max_turns, max_bytes, max_kept } = self.limits;
        while (self.calls.kept() > max_kept as usize || self.bytes() > max_bytes)
            && self.calls.drop_oldest()
        {
            self.counts.dropped += 1;
        }
        let (what, limit) = if self.store.len() > max_turns as usize {
            ("turns", u64::from(max_turns))
        } else if self.bytes() > max_bytes {
            ("bytes", max_bytes)
        } else {
            return Ok(());
        };
        let error = RecordError::TooMuch { what, limit };
        self.fail(error.clone());
        Err(error)
    }
}
