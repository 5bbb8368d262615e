//! Metrics from job events: steps, weights, experiences, evaluations, alarms.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollway_core::BatchResult;
use rollway_engine::job_event::JobEvent;

use crate::staleness::Staleness;

/// Maximum number of label values (evaluation sets, drop reasons).
const MAX_LABELS: usize = 100;

/// Label of all further values.
const OTHER: &str = "other";

/// Prefix of the pipeline's metrics.
const PIPELINE: &str = "experience_pipeline/";

#[derive(Clone, Debug, Default)]
pub(super) struct JobMetrics {
    pub(super) total_steps: Option<u64>,
    pub(super) begun_step: u64,
    pub(super) step: u64,
    pub(super) steps: u64,
    pub(super) waited: f64,
    pub(super) trained_step: Option<u64>,
    pub(super) version: Option<u64>,
    pub(super) staleness: Option<Staleness>,
    pub(super) reward: Option<f64>,
    pub(super) scores: BTreeMap<Arc<str>, f64>,
    pub(super) evals: u64,
    pub(super) stored: u64,
    pub(super) known: u64,
    pub(super) dropped: BTreeMap<String, u64>,
    pub(super) syncs: u64,
    pub(super) sync_waited: f64,
    pub(super) sync_loading: f64,
    pub(super) alarms: BTreeMap<&'static str, (u64, bool)>,
}

impl JobMetrics {
    pub(super) fn new() -> Self {
        let alarms = crate::alarms::KINDS.into_iter().map(|kind| (kind, (0, false))).collect();
        Self { alarms, ..Self::default() }
    }

    /// Newest known model version.
    pub(super) fn newest(&self) -> u64 {
        self.version.max(self.trained_step).unwrap_or(0)
    }

    pub(super) fn apply(&mut self, event: &JobEvent) {
        match event {
            JobEvent::Began { done_steps, total_steps, .. } => {
                self.step = *done_steps;
                self.begun_step = self.begun_step.max(*done_steps);
                self.total_steps = *total_steps;
            }
            JobEvent::StepBegun { step, .. } => self.begun_step = self.begun_step.max(*step),
            JobEvent::StepDone { step, result, metrics, waited } => {
                self.step = self.step.max(*step);
                self.steps += 1;
                self.waited += waited.as_secs_f64();
                self.staleness = Staleness::of(metrics, self.newest()).or(self.staleness);
                self.reward = metrics.get("rollout/reward/mean").or(self.reward);
                self.delivered(result);
            }
            JobEvent::Evaluated { set, score, .. } => {
                self.evals += 1;
                if let Some(score) = score
                    && (self.scores.contains_key(set) || self.scores.len() < MAX_LABELS)
                {
                    self.scores.insert(Arc::clone(set), *score);
                }
            }
            JobEvent::Synced { version, waited, loading, .. } => {
                self.syncs += u64::from(self.version.is_none_or(|before| *version > before));
                self.version = Some(*version);
                self.sync_waited += waited.as_secs_f64();
                self.sync_loading += loading.as_secs_f64();
            }
            JobEvent::Trained { step, .. } => {
                self.trained_step = self.trained_step.max(Some(*step))
            }
            JobEvent::Alarm(alarm) => {
                let entry = self.alarms.entry(alarm.kind).or_default();
                entry.0 += u64::from(alarm.raised);
                entry.1 = alarm.raised;
            }
            JobEvent::Ready(_)
            | JobEvent::WaitBegun(_)
            | JobEvent::WaitEnded(_)
            | JobEvent::Info(_) => {}
        }
    }

    /// Adds the pipeline's counts of a step.
    fn delivered(&mut self, result: &BatchResult) {
        for (key, value) in result.sink_metrics.iter() {
            let Some(name) = key.strip_prefix(PIPELINE) else { continue };
            let count = value as u64;
            match name {
                "stored_count" => self.stored += count,
                "known_count" => self.known += count,
                name if name.contains("/filtered/") || name.starts_with("displaced/") => {
                    let reason = name.replacen("/filtered/", "/", 1);
                    *self.reason(reason) += count;
                }
                _ => {}
            }
        }
    }

    fn reason(&mut self, reason: String) -> &mut u64 {
        let is_known = self.dropped.contains_key(&reason) || self.dropped.len() < MAX_LABELS;
        self.dropped.entry(if is_known { reason } else { OTHER.to_owned() }).or_default()
    }
}
