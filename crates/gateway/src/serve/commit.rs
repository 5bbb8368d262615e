//! Commits: all feedback that waits becomes one step for the trainer, once.
//!
//! First the step is fixed: its number and its members are in the database. Then it is handed to
//! the [`Committer`], under a key that no other step has. Then it is marked as done. Whatever fails
//! or dies in between, the same step is handed over again, under the same key, by the next commit
//! or by the next start; to whom the key is known, nothing more happens.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use rollway_core::metrics::Metrics;
use rollway_experience::{Eid, Experience, serialize_many};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::store::{ServeStore, StoreError};
use super::tables::{CommittedRow, Fixed, Member};
use crate::recording::{RecordError, Turn, merge};

/// What a committer answers: metrics of its own, or what went wrong.
pub type CommitDelivery<'a> = Pin<Box<dyn Future<Output = Result<Metrics, String>> + Send + 'a>>;

/// Takes the experiences of a step to the trainer.
pub trait Committer: Debug + Send + Sync {
    /// Delivers a step. One whose outcome nobody learned comes again, with the same key and the
    /// same content: taking it twice must have the effect of taking it once.
    fn deliver(&self, step: CommitStep) -> CommitDelivery<'_>;
}

/// The experiences of a step.
#[derive(Clone, Debug)]
pub struct CommitStep {
    /// Which step; the first is 1.
    pub number: u64,
    /// What it is called, among the steps of all jobs that ever were.
    pub key: String,
    /// The experiences: a payload for every feedback.
    pub payloads: Vec<Bytes>,
}

/// What came of a commit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CommitReport {
    /// The last step that is done; 0 if none ever was.
    pub step: u64,
    /// How many steps this commit has finished: none if nothing waited, two if one was left over.
    pub steps: u64,
    /// How many experiences were delivered.
    pub experiences: u64,
    /// Choices that make no experience, because the model said nothing.
    pub empty: u64,
    /// Choices that could not be made experiences of.
    pub invalid: u64,
    /// What the committer says about the last step.
    pub metrics: Metrics,
}

impl CommitReport {
    /// The body of the answer.
    pub fn body(&self) -> Value {
        let metrics = self.metrics.iter().map(|(key, value)| (key.to_string(), json!(value)));
        json!({
            "status": if self.steps == 0 { "empty" } else { "committed" },
            "step": self.step,
            "steps": self.steps,
            "experiences": self.experiences,
            "empty": self.empty,
            "invalid": self.invalid,
            "metrics": metrics.collect::<serde_json::Map<String, Value>>(),
        })
    }
}

/// Why a commit failed. Nothing is lost by it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The experiences were not taken.
    #[error("step {step} was not delivered, is kept, and comes again with the next commit: {why}")]
    Undelivered { step: u64, why: String },
}

/// Makes steps, one at a time.
#[derive(Debug)]
pub(super) struct CommitQueue {
    store: ServeStore,
    committer: Arc<dyn Committer>,
    turn: Mutex<()>,
}

impl CommitQueue {
    pub(super) fn new(store: ServeStore, committer: Arc<dyn Committer>) -> Self {
        Self { store, committer, turn: Mutex::default() }
    }

    /// Delivers what was begun, and all that waits.
    pub(super) async fn commit(&self) -> Result<CommitReport, CommitError> {
        let _turn = self.turn.lock().await;
        let mut committed = self.finish_begun().await?;
        if let Some(fixed) = self.store.fix().await? {
            self.deliver(fixed, &mut committed).await?;
        }
        Ok(committed)
    }

    /// Delivers what was begun.
    pub(super) async fn resume(&self) -> Result<CommitReport, CommitError> {
        let _turn = self.turn.lock().await;
        self.finish_begun().await
    }

    async fn finish_begun(&self) -> Result<CommitReport, CommitError> {
        let mut committed =
            CommitReport { step: self.store.counts().step, ..CommitReport::default() };
        if let Some(fixed) = self.store.begun().await? {
            self.deliver(fixed, &mut committed).await?;
        }
        Ok(committed)
    }

    async fn deliver(&self, fixed: Fixed, committed: &mut CommitReport) -> Result<(), CommitError> {
        let Fixed { step, key } = fixed;
        let mut made = Made::default();
        for member in self.store.members(step).await? {
            let turns = self.store.turns(member.id).await?;
            let work = move || make(step, &member, &turns);
            let one = tokio::task::spawn_blocking(work).await.map_err(|error| {
                CommitError::Undelivered { step, why: format!("merging failed: {error}") }
            })?;
            made.add(one);
        }
        let undelivered = |why| CommitError::Undelivered { step, why };
        let metrics = if made.payloads.is_empty() {
            Metrics::new()
        } else {
            let step = CommitStep { number: step, key, payloads: made.payloads };
            self.committer.deliver(step).await.map_err(undelivered)?
        };
        let words: serde_json::Map<String, Value> =
            metrics.iter().map(|(key, value)| (key.to_string(), json!(value))).collect();
        let metrics_text = Value::Object(words).to_string();
        let experiences = made.experiences;
        self.store.settle(CommittedRow { step, experiences, metrics: metrics_text }).await?;
        let (empty, invalid) = (made.empty, made.invalid);
        tracing::info!(step, experiences, empty, invalid, "a step is done");
        committed.step = step;
        committed.steps += 1;
        committed.experiences += experiences;
        committed.empty += empty;
        committed.invalid += invalid;
        committed.metrics = metrics;
        Ok(())
    }
}

/// What feedback makes.
#[derive(Debug, Default)]
struct Made {
    payloads: Vec<Bytes>,
    experiences: u64,
    empty: u64,
    invalid: u64,
}

impl Made {
    fn add(&mut self, other: Self) {
        self.payloads.extend(other.payloads);
        self.experiences += other.experiences;
        self.empty += other.empty;
        self.invalid += other.invalid;
    }
}

/// Makes the experiences of a feedback. The same turns make the same bytes, whenever it is done.
fn make(step: u64, member: &Member, turns: &[Vec<u8>]) -> Made {
    let mut made = Made::default();
    let mut read = Vec::with_capacity(turns.len());
    for turn in turns {
        match serde_json::from_slice::<Turn>(turn) {
            Ok(turn) => read.push(turn),
            Err(error) => {
                tracing::error!(%error, feedback = member.id, "a recorded turn is damaged");
                made.invalid += 1;
            }
        }
    }
    match merged(step, member, &read) {
        Ok((payload, experiences, empty)) => {
            made.payloads.extend((experiences > 0).then_some(payload));
            made.experiences = experiences;
            made.empty = empty;
        }
        Err(error) => {
            // Kept, it would be in the way of every commit to come.
            tracing::error!(%error, feedback = member.id, "turns make no experience");
            made.invalid += read.len() as u64;
        }
    }
    made
}

fn merged(step: u64, member: &Member, turns: &[Turn]) -> Result<(Bytes, u64, u64), RecordError> {
    let merged = merge(turns)?;
    let number = i64::try_from(step).unwrap_or(i64::MAX);
    let label = |mut experience: Experience| {
        let Eid { step, suffix, .. } = std::mem::take(&mut experience.eid);
        let (batch, task, run) = (number.into(), member.task.clone(), member.run);
        experience.eid = Eid { batch, task, run, step, suffix };
        experience.reward = Some(member.reward);
        experience
    };
    let experiences: Vec<Experience> = merged.experiences.into_iter().map(label).collect();
    let payload = serialize_many(&experiences);
    let payload = payload.map_err(|error| RecordError::Misread(error.to_string()))?;
    Ok((payload, experiences.len() as u64, merged.empty))
}
