//! What happens to the job, as it is kept.

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
use super::state::State;

/// How often live numbers are taken.
const EVERY: Duration = Duration::from_secs(1);

/// Returns what is kept of an event.
pub(super) fn notes(event: &JobEvent) -> Option<JobNote> {
    Some(match event {
        JobEvent::Ready(_) => return None,
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
        JobEvent::Info(words) => JobNote::Said { words: words.clone() },
        JobEvent::Alarm(alarm) => JobNote::Alarm {
            kind: alarm.kind.to_owned(),
            words: alarm.words.clone(),
            raised: alarm.raised,
        },
    })
}

fn ended(result: &BatchResult) -> String {
    let tasks = &result.tasks;
    let mut words = format!("{} of {} tasks ok", tasks.ok, tasks.total());
    let others =
        [("partial", tasks.partial), ("failed", tasks.failed), ("cancelled", tasks.cancelled)];
    for (name, count) in others.into_iter().filter(|(_, count)| *count > 0) {
        words.push_str(&format!(", {count} {name}"));
    }
    words
}

fn trained(metrics: &Metrics) -> String {
    let numbers = [("trainer/loss", "loss"), ("trainer/reward", "reward")];
    let known = numbers.into_iter().filter_map(|(key, name)| {
        metrics.get(key).map(|number| format!("{name} {}", plain(number)))
    });
    known.collect::<Vec<_>>().join(", ")
}

/// Returns a number to four places; what is nothing then has no sign.
fn plain(number: f64) -> String {
    let shown = format!("{number:.4}");
    if shown == "-0.0000" { "0.0000".to_owned() } else { shown }
}

/// Takes live numbers once a second for as long as there are any, and somebody who keeps them.
pub(super) fn keep_beating(shared: &Arc<Shared>, pulse: &LiveStats) {
    let (shared, pulse): (Weak<Shared>, _) = (Arc::downgrade(shared), pulse.clone());
    // Whoever tells of a pulse outside of a runtime has nothing that could beat.
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    runtime.spawn(async move {
        let mut every = interval(EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            let is_live = pulse.is_live();
            let states = match pulse.coordinator() {
                Some(coordinator) => coordinator.counters_and_states().await.unwrap_or_default().1,
                None => Vec::new(),
            };
            let beat = pulse.sample().await;
            let Some(shared) = shared.upgrade() else { return };
            shared.beat(beat, &states);
            if !is_live {
                return;
            }
        }
    });
}

impl State {
    /// What is counted beside the runs, with what others count.
    pub(super) fn totals_now(&self) -> Totals {
        let mut totals = self.totals.clone();
        let more = [
            ("messages", self.messages.left_out),
            ("trajectories", self.out.trajectories_dropped),
            ("points", self.notes.left_out),
        ];
        for (what, count) in more.into_iter().filter(|(_, count)| *count > 0) {
            *totals.dropped.entry(what.to_owned()).or_default() += count;
        }
        totals
    }
}
