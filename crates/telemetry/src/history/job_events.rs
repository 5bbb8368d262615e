//! Job events as records, and samples of live statistics.

use std::sync::{Arc, Weak};
use std::time::Duration;

use rollway_base::human;
use rollway_core::BatchResult;
use rollway_core::metrics::Metrics;
use rollway_engine::job_event::JobEvent;
use rollway_engine::live_stats::LiveStats;
use tokio::time::{MissedTickBehavior, interval};

use super::Shared;
use super::record::{JobNote, Totals};
use super::series;
use super::state::{State, add};
use crate::view::WaitRow;

const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Returns the metrics of an event as a record.
pub(super) fn metrics(event: &JobEvent) -> Option<JobNote> {
    let (step, metrics) = match event {
        JobEvent::StepDone { step, metrics, .. }
        | JobEvent::Evaluated { step, metrics, .. }
        | JobEvent::Trained { step, metrics } => (*step, series::finite(metrics)),
        _ => return None,
    };
    (!metrics.is_empty()).then_some(JobNote::Metrics { step, metrics })
}

/// Returns the record of an event.
pub(super) fn note(event: &JobEvent) -> Option<JobNote> {
    Some(match event {
        JobEvent::Ready(_) | JobEvent::WaitBegun(_) | JobEvent::WaitEnded(_) => return None,
        JobEvent::Began { done_steps, total_steps, runners, .. } => {
            JobNote::Began { done_steps: *done_steps, total_steps: *total_steps, runners: *runners }
        }
        JobEvent::StepBegun { step, tasks, runs } => {
            JobNote::StepBegun { step: *step, tasks: *tasks, runs: *runs }
        }
        JobEvent::StepDone { step, result, metrics, waited } => {
            let of = |stat: &str| metrics.get(&format!("rollout/reward/{stat}"));
            let detail = format!("{}, waited {}", ended(result), human::duration(*waited));
            let (mean, min, max) = (of("mean"), of("min"), of("max"));
            JobNote::StepDone { step: *step, mean, min, max, detail }
        }
        JobEvent::Evaluated { step, version, set, score, .. } => JobNote::Evaluated {
            step: *step,
            version: *version,
            set: set.to_string(),
            score: *score,
        },
        JobEvent::Synced { step, version, waited, loading } => JobNote::Synced {
            step: *step,
            version: *version,
            waited: waited.as_secs_f64(),
            loading: loading.as_secs_f64(),
        },
        JobEvent::Trained { step, metrics } => {
            JobNote::Trained { step: *step, seconds: None, detail: trained(metrics) }
        }
        JobEvent::Info(message) => JobNote::Info { message: message.clone() },
        JobEvent::Alarm(alarm) => JobNote::Alarm {
            kind: alarm.kind.to_owned(),
            message: alarm.message.clone(),
            raised: alarm.raised,
        },
    })
}

fn ended(result: &BatchResult) -> String {
    let tasks = &result.tasks;
    let mut text = format!("{} of {} tasks ok", tasks.ok, tasks.total());
    let others =
        [("partial", tasks.partial), ("failed", tasks.failed), ("cancelled", tasks.cancelled)];
    for (name, count) in others.into_iter().filter(|(_, count)| *count > 0) {
        text.push_str(&format!(", {count} {name}"));
    }
    text
}

fn trained(metrics: &Metrics) -> String {
    let numbers = [("trainer/loss", "loss"), ("trainer/reward", "reward")];
    let known = numbers.into_iter().filter_map(|(key, name)| {
        metrics.get(key).map(|number| format!("{name} {}", plain(number)))
    });
    known.collect::<Vec<_>>().join(", ")
}

/// Formats a number to four places, without a negative zero.
fn plain(number: f64) -> String {
    let shown = format!("{number:.4}");
    if shown == "-0.0000" { "0.0000".to_owned() } else { shown }
}

/// Samples live statistics while the job and its history are open.
pub(super) fn sample_stats(shared: &Arc<Shared>, stats: &LiveStats) {
    let (shared, stats): (Weak<Shared>, _) = (Arc::downgrade(shared), stats.clone());
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    runtime.spawn(async move {
        let mut every = interval(SAMPLE_INTERVAL);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            let is_live = stats.is_live();
            let states = match stats.coordinator() {
                Some(coordinator) => coordinator.counters_and_states().await.unwrap_or_default().1,
                None => Vec::new(),
            };
            let (sample, wait) = (stats.sample().await, stats.wait().await);
            let models = stats.models();
            let Some(shared) = shared.upgrade() else { return };
            *shared.wait.lock() = wait.as_ref().map(WaitRow::from);
            shared.add_sample(sample, &states, models);
            if !is_live {
                return;
            }
        }
    });
}

impl State {
    /// Returns the totals with the counts of other parts.
    pub(super) fn totals_now(&self) -> Totals {
        let mut totals = self.totals.clone();
        let more = [
            ("messages", self.messages.left_out),
            ("trajectories", self.out.trajectories_dropped),
            ("points", self.notes.left_out + self.notes.curves.left_out),
        ];
        for (kind, count) in more.into_iter().filter(|(_, count)| *count > 0) {
            add(&mut totals.dropped, kind, count);
        }
        totals
    }
}
