//! Commits: all queued feedback becomes one step for the trainer, once.
//!
//! A step is fixed in the database (number and members), delivered to the [`Committer`] under a
//! unique key, and marked as done. After a failure or crash in between, the next commit or start
//! delivers the same step under the same key, which the committer must deduplicate.

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
use super::tables::{CommittedRow, Fixed, Member, Tables};
use rollway_recording::{RecordError, Turn, merge};

pub type CommitDelivery<'a> = Pin<Box<dyn Future<Output = Result<Metrics, String>> + Send + 'a>>;

/// Delivers the experiences of a step to the trainer.
pub trait Committer: Debug + Send + Sync {
    /// Delivers a step. After an unknown outcome it is delivered again with the same key and
    /// content: delivery must be idempotent.
    fn deliver(&self, step: CommitStep) -> CommitDelivery<'_>;
}

#[derive(Clone, Debug)]
pub struct CommitStep {
    /// Number of the step, from 1.
    pub number: u64,
    /// Unique among the steps of all jobs.
    pub key: String,
    /// A payload for every feedback.
    pub payloads: Vec<Bytes>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct CommitReport {
    /// The last finished step; 0: none.
    pub step: u64,
    /// Steps finished by this commit: 0 if nothing was queued, 2 if one was left over.
    pub steps: u64,
    pub experiences: u64,
    /// Choices without tokens, which make no experience.
    pub empty: u64,
    /// Choices that could not be merged.
    pub invalid: u64,
    pub metrics: Metrics,
}

impl CommitReport {
    fn add(&mut self, other: &Self) {
        self.experiences += other.experiences;
        self.empty += other.empty;
        self.invalid += other.invalid;
    }

    pub fn body(&self) -> Value {
        json!({
            "status": if self.steps == 0 { "empty" } else { "committed" },
            "step": self.step,
            "steps": self.steps,
            "experiences": self.experiences,
            "empty": self.empty,
            "invalid": self.invalid,
            "metrics": metrics_json(&self.metrics),
        })
    }
}

fn metrics_json(metrics: &Metrics) -> Value {
    metrics.iter().map(|(key, value)| (key.to_string(), json!(value))).collect()
}

/// Failure of a commit. Nothing is lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("step {step} was not delivered; the next commit delivers it again: {reason}")]
    Undelivered { step: u64, reason: String },
}

/// Serializes commits.
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

    pub(super) async fn commit(&self) -> Result<CommitReport, CommitError> {
        let _turn = self.turn.lock().await;
        let mut committed = self.finish_fixed().await?;
        if let Some(fixed) = self.store.run(Tables::fix).await? {
            self.deliver(fixed, &mut committed).await?;
        }
        Ok(committed)
    }

    pub(super) async fn resume(&self) -> Result<CommitReport, CommitError> {
        let _turn = self.turn.lock().await;
        self.finish_fixed().await
    }

    async fn finish_fixed(&self) -> Result<CommitReport, CommitError> {
        let mut committed =
            CommitReport { step: self.store.counts().step, ..CommitReport::default() };
        if let Some(fixed) = self.store.run(|tables| tables.begun()).await? {
            self.deliver(fixed, &mut committed).await?;
        }
        Ok(committed)
    }

    async fn deliver(&self, fixed: Fixed, committed: &mut CommitReport) -> Result<(), CommitError> {
        let Fixed { step, key } = fixed;
        let (mut payloads, mut step_report) = (Vec::new(), CommitReport::default());
        for member in self.store.run(move |tables| tables.members(step)).await? {
            let turns = self.store.run(move |tables| tables.turns(member.id)).await?;
            let work = move || make_experiences(step, &member, &turns);
            let (payload, report) = tokio::task::spawn_blocking(work).await.map_err(|error| {
                CommitError::Undelivered { step, reason: format!("merging failed: {error}") }
            })?;
            payloads.extend(payload);
            step_report.add(&report);
        }
        let undelivered = |reason| CommitError::Undelivered { step, reason };
        let metrics = if payloads.is_empty() {
            Metrics::new()
        } else {
            let step = CommitStep { number: step, key, payloads };
            self.committer.deliver(step).await.map_err(undelivered)?
        };
        let metrics_text = metrics_json(&metrics).to_string();
        let CommitReport { experiences, empty, invalid, .. } = step_report;
        let row = CommittedRow { step, experiences, metrics: metrics_text };
        self.store.run(move |tables| tables.settle(&row)).await?;
        tracing::info!(step, experiences, empty, invalid, "step committed");
        committed.step = step;
        committed.steps += 1;
        committed.add(&step_report);
        committed.metrics = metrics;
        Ok(())
    }
}

/// Makes the experiences of a feedback. Equal turns make equal bytes.
fn make_experiences(
    step: u64,
    member: &Member,
    turns: &[Vec<u8>],
) -> (Option<Bytes>, CommitReport) {
    let mut report = CommitReport::default();
    let mut read = Vec::with_capacity(turns.len());
    for turn in turns {
        match serde_json::from_slice::<Turn>(turn) {
            Ok(turn) => read.push(turn),
            Err(error) => {
                tracing::error!(%error, feedback = member.id, "recorded turn invalid");
                report.invalid += 1;
            }
        }
    }
    match merged(step, member, &read) {
        Ok((payload, experiences, empty)) => {
            report.experiences = experiences;
            report.empty = empty;
            ((experiences > 0).then_some(payload), report)
        }
        Err(error) => {
            // Skipped: otherwise it would block every later commit.
            tracing::error!(%error, feedback = member.id, "turns cannot be merged");
            report.invalid += read.len() as u64;
            (None, report)
        }
    }
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
    Ok((payload, experiences.len() as u64, merged.counts.empty))
}
