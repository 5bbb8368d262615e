//! Everything there is to say at one moment, family by family.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use rollway_core::{
    BatchState, BatchType, BatchTypeTally, CancelReason, Counters, DropReason, FailureKind,
    IgnoreReason, RunnerState,
};
use rollway_engine::LoopLag;
use rollway_engine::live_stats::MetricsSnapshot;

use super::durations::{DurationNames, Spans};
use super::job_metrics::JobMetrics;
use super::writer::{MetricsPage, Put, Quantiles};

type Result = std::result::Result<(), fmt::Error>;

const KINDS: [(BatchType, &str); 2] = [(BatchType::Train, "train"), (BatchType::Eval, "eval")];

const STATES: [&str; 6] = ["starting", "idle", "busy", "cancelling", "broken", "gone"];

const OPEN: [(BatchState, &str); 3] = [
    (BatchState::Pending, "pending"),
    (BatchState::Running, "running"),
    (BatchState::Finalizing, "finalizing"),
];

/// Everything at one moment.
#[derive(Debug)]
pub(super) struct MetricsView {
    pub(super) job: JobFamilies,
    pub(super) whole: Arc<MetricsSnapshot>,
    pub(super) told: JobMetrics,
    pub(super) ages: Ages,
    pub(super) attempts: Spans,
    pub(super) tasks: Spans,
    pub(super) waits: Spans,
    pub(super) names: DurationNames,
    pub(super) drops: BTreeMap<&'static str, u64>,
}

/// What does not change.
#[derive(Clone, Debug)]
pub(super) struct JobFamilies {
    pub(super) project: String,
    pub(super) name: String,
    pub(super) mode: String,
    /// Seconds since 1970.
    pub(super) started: f64,
}

/// How old the oldest are; none where there is nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ages {
    pub(super) pending: Option<Duration>,
    pub(super) attempt: Option<Duration>,
    pub(super) batch: Option<Duration>,
}

impl Collector for MetricsView {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result {
        let mut page = MetricsPage(encoder);
        self.job(&mut page)?;
        self.runs(&mut page)?;
        self.tasks(&mut page)?;
        self.payloads(&mut page)?;
        self.runners(&mut page)?;
        self.ages(&mut page)?;
        self.spans(&mut page)?;
        self.inside(&mut page)?;
        self.steps(&mut page)?;
        self.experiences(&mut page)?;
        self.wrong(&mut page)
    }
}

impl MetricsView {
    fn counters(&self) -> &Counters {
        &self.whole.glance.counters
    }

    fn job(&self, page: &mut MetricsPage<'_>) -> Result {
        let JobFamilies { project, name, mode, started } = &self.job;
        let version = env!("CARGO_PKG_VERSION");
        let labels =
            [("project", &**project), ("name", name), ("mode", mode), ("version", version)];
        page.info("job", "What runs, with the release of Rollway", &labels)?;
        page.seconds("start_time", "When the process began the job, since 1970", Some(*started))
    }

    fn runs(&self, page: &mut MetricsPage<'_>) -> Result {
        let counters = self.counters();
        let help = "Runs that were taken in, by kind of batch. It is the sum of those that \
                    succeeded, failed, were cancelled, are pending and running";
        page.counters("runs_submitted", help, by_kind(counters, |it| it.runs.submitted))?;
        let help = "Runs that ended well";
        page.counters("runs_succeeded", help, by_kind(counters, |it| it.runs.succeeded))?;
        let help = "Runs that failed for good, by the kind of failure";
        page.counters("runs_failed", help, |put: Put<'_, u64>| {
            for (kind, name) in KINDS {
                for failure in FailureKind::ALL {
                    let labels = [("batch_type", name), ("failure_kind", failure.name())];
                    put(&labels, counters.of(kind).runs.failed[*failure])?;
                }
            }
            Ok(())
        })?;
        let help = "Runs that were cancelled, by reason";
        page.counters("runs_cancelled", help, |put: Put<'_, u64>| {
            for (kind, name) in KINDS {
                for reason in CancelReason::ALL {
                    let labels = [("batch_type", name), ("reason", reason.name())];
                    put(&labels, counters.of(kind).runs.cancelled[*reason])?;
                }
            }
            Ok(())
        })?;
        let help = "Runs that wait for a runner";
        page.gauges("runs_pending", help, by_kind(counters, |it| it.runs.pending as f64))?;
        let help = "Runs that a runner has";
        page.gauges("runs_running", help, by_kind(counters, |it| it.runs.running as f64))?;
        let help = "Runs that failed and were sent again, by the kind of failure";
        page.counters("runs_retried", help, |put: Put<'_, u64>| {
            let mut each = FailureKind::ALL.iter();
            each.try_for_each(|it| put(&[("failure_kind", it.name())], counters.retries[*it]))
        })?;
        let help = "Runs that had ended before a crash and were not run again";
        page.counter("runs_restored", help, counters.runs_restored)
    }

    fn tasks(&self, page: &mut MetricsPage<'_>) -> Result {
        let counters = self.counters();
        let help = "Tasks that were taken in, by kind of batch. It is the sum of those that ended \
                    and those that are open";
        page.counters("tasks_submitted", help, by_kind(counters, |it| it.tasks.submitted))?;
        let help = "Tasks that ended, by outcome: all runs ended well (ok), some did (partial), \
                    none did (failed), or it was cut (cancelled)";
        page.counters("tasks_ended", help, |put: Put<'_, u64>| {
            for (kind, name) in KINDS {
                let ended = counters.of(kind).tasks.ended;
                let outcomes = [
                    ("ok", ended.ok),
                    ("partial", ended.partial),
                    ("failed", ended.failed),
                    ("cancelled", ended.cancelled),
                ];
                for (outcome, count) in outcomes {
                    put(&[("batch_type", name), ("outcome", outcome)], count)?;
                }
            }
            Ok(())
        })?;
        let help = "Tasks that have not ended";
        page.gauges("tasks_open", help, by_kind(counters, |it| it.tasks.open as f64))?;
        let batches = &self.whole.glance.batches;
        page.gauges("batches", "Batches that are not closed, by state", |put: Put<'_, f64>| {
            for (kind, name) in KINDS {
                for (state, word) in OPEN {
                    let is_it = |it: &&rollway_core::BatchView| {
                        // One that is collected has no states.
                        it.kind == kind && it.state.unwrap_or(BatchState::Running) == state
                    };
                    let count = batches.iter().filter(is_it).count();
                    put(&[("batch_type", name), ("state", word)], count as f64)?;
                }
            }
            Ok(())
        })?;
        let help = "Batches that were taken up again after a crash";
        page.counter("batches_restored", help, counters.batches_restored)
    }

    fn payloads(&self, page: &mut MetricsPage<'_>) -> Result {
        let counters = self.counters();
        let help = "Experiences of runs that came in. With those restored it is the sum of those \
                    delivered, dropped and held";
        page.counter("payloads_received", help, counters.payloads_received)?;
        let help = "Experiences of runs that were taken up again after a crash";
        page.counter("payloads_restored", help, counters.payloads_restored)?;
        let help = "Experiences of runs whose delivery was acknowledged";
        page.counter("payloads_delivered", help, counters.payloads_delivered)?;
        let help = "Experiences of runs that were dropped instead of delivered, by reason";
        page.counters("payloads_dropped", help, |put: Put<'_, u64>| {
            let mut each = DropReason::ALL.iter();
            each.try_for_each(|it| put(&[("reason", it.name())], counters.payloads_dropped[*it]))
        })?;
        let help = "Experiences of runs that are held until they are delivered";
        page.gauge("payloads_held", help, Some(counters.payloads_held as f64))?;
        let help = "What they take in memory";
        page.bytes("payloads_held", help, Some(counters.payload_bytes_held as f64))
    }

    fn runners(&self, page: &mut MetricsPage<'_>) -> Result {
        let counters = self.counters();
        let states = &self.whole.glance.runners;
        page.gauges("runners", "Runners by state", |put: Put<'_, f64>| {
            for name in STATES {
                let is_it = |state: &&RunnerState| state.name() == name;
                put(&[("state", name)], states.iter().filter(is_it).count() as f64)?;
            }
            Ok(())
        })?;
        let help = "Runners that were started, restarts included";
        page.counter("runners_started", help, counters.runners_started)?;
        page.counter("runners_stopped", "Runners that were stopped", counters.runners_stopped)?;
        let help = "Runners that were lost or replaced while they should have been there";
        page.counter("runners_lost", help, counters.runners_lost)?;
        let help = "Attempts that were given to runners";
        page.counter("attempts_started", help, counters.attempts_started)?;
        let help = "Attempts that ended in any way";
        page.counter("attempts_ended", help, counters.attempts_ended)
    }

    fn ages(&self, page: &mut MetricsPage<'_>) -> Result {
        let seconds = |age: Option<Duration>| Some(age.map_or(0.0, |age| age.as_secs_f64()));
        let help = "Age of the oldest batch with runs that wait for a runner; 0 if none do";
        page.seconds("oldest_pending", help, seconds(self.ages.pending))?;
        let help = "Age of the oldest attempt under way; 0 if there is none";
        page.seconds("oldest_attempt", help, seconds(self.ages.attempt))?;
        let help = "Age of the oldest batch that is not closed; 0 if there is none";
        page.seconds("oldest_batch", help, seconds(self.ages.batch))
    }

    fn spans(&self, page: &mut MetricsPage<'_>) -> Result {
        let help = "How long attempts lasted, by workflow; a few workflows have their own name, \
                    the rest is `other`";
        page.histograms("attempt_duration", help, by_workflow(&self.names, &self.attempts))?;
        let help = "How long tasks lasted from their first attempt to their end";
        page.histograms("task_duration", help, by_workflow(&self.names, &self.tasks))?;
        let help = "How long tasks waited for their first attempt";
        page.histograms("task_wait", help, by_workflow(&self.names, &self.waits))?;
        let help = "Times that a workflow was counted as `other`";
        page.counter("workflow_labels_overflow", help, self.names.others)
    }

    fn inside(&self, page: &mut MetricsPage<'_>) -> Result {
        let counters = self.counters();
        let help = "How long what arrived had to wait until it was applied by the loop that owns \
                    all state";
        page.histograms("loop_lag", help, |put: Put<'_, Quantiles>| {
            put(&[], lag(&self.whole.lag))
        })?;
        page.counter("loop_turns", "Turns of that loop", self.whole.lag.turns)?;
        let help = "The longest of its turns";
        page.seconds("loop_longest_turn", help, Some(self.whole.lag.longest_turn.as_secs_f64()))?;
        page.counter("inputs", "Facts and requests that were applied", counters.inputs)?;
        let help = "Runner reports ignored, by reason";
        page.counters("reports_ignored", help, |put: Put<'_, u64>| {
            let mut each = IgnoreReason::ALL.iter();
            each.try_for_each(|it| put(&[("reason", it.name())], counters.ignored_reports[*it]))
        })?;
        let answered = counters.answers + counters.abandoned;
        let help = "Requests that wait for their answer";
        let waiting = counters.requests.saturating_sub(answered);
        page.gauge("requests_waiting", help, Some(waiting as f64))?;
        let help = "Error messages that were cut to their limit";
        page.counter("messages_truncated", help, counters.messages_truncated)?;
        let help = "Numbers of runs that were dropped because a run had too many";
        page.counter("run_metrics_dropped", help, counters.metrics_dropped)
    }

    fn steps(&self, page: &mut MetricsPage<'_>) -> Result {
        let told = &self.told;
        page.gauge("step", "The last explore step that was finalized", Some(told.step as f64))?;
        let help = "The last explore step that was begun";
        page.gauge("step_begun", help, Some(told.begun_step as f64))?;
        let help = "Explore steps of the whole job, if that is known";
        page.gauge("steps_planned", help, told.total_steps.map(|steps| steps as f64))?;
        page.counter("steps_finalized", "Steps that this process finalized", told.steps)?;
        let help = "How long finalizing steps waited for their runs";
        page.seconds_counter("step_wait", help, told.waited)?;
        let help = "The mean reward of the last step that has one";
        page.gauge("reward_mean", help, told.reward)?;
        page.counter("evaluations", "Sets that were evaluated", told.evals)?;
        let help = "The last score on every set that is evaluated";
        page.gauges("eval_score", help, |put: Put<'_, f64>| {
            told.scores.iter().try_for_each(|(set, score)| put(&[("set", set)], *score))
        })?;
        let help = "The last step of the trainer, if it is known";
        page.gauge("trained_step", help, told.trained_step.map(|step| step as f64))?;
        let help = "The version of the weights that the servers have, once they were exchanged";
        page.gauge("model_version", help, told.version.map(|version| version as f64))?;
        let help = "The newest version that anybody has told of";
        page.gauge("newest_model_version", help, Some(told.newest() as f64))?;
        let help = "By how many versions the experiences of the last step lag behind the newest \
                    weights, on average";
        page.gauge("staleness_mean", help, told.staleness.map(|it| it.mean))?;
        let help = "The same for the experience that lags most";
        page.gauge("staleness_max", help, told.staleness.map(|it| it.max))?;
        page.counter("syncs", "How often the servers got newer weights", told.syncs)?;
        let help = "How long exchanges of weights waited for the trainer";
        page.seconds_counter("sync_wait", help, told.sync_waited)?;
        let help = "How long servers took to load weights";
        page.seconds_counter("sync_loading", help, told.sync_loading)
    }

    fn experiences(&self, page: &mut MetricsPage<'_>) -> Result {
        let told = &self.told;
        page.counter("experiences_stored", "Experiences that reached the buffer", told.stored)?;
        let help = "Experiences that the buffer had already";
        page.counter("experiences_duplicate", help, told.known)?;
        let help = "Experiences that the pipeline or the buffer dropped, by operator and reason";
        page.counters("experiences_dropped", help, |put: Put<'_, u64>| {
            told.dropped.iter().try_for_each(|(why, count)| put(&[("reason", why)], *count))
        })?;
        let buffer = self.whole.buffer;
        let help = "Experiences in a queue that wait to be read";
        page.gauge("buffer_unread", help, buffer.map(|usage| usage.unread as f64))?;
        let help = "Experiences in a queue that were read and not acknowledged";
        page.gauge("buffer_unacknowledged", help, buffer.map(|usage| usage.held as f64))?;
        let help = "What a queue takes in memory";
        page.bytes("buffer_memory", help, buffer.map(|usage| usage.bytes as f64))?;
        let help = "What a queue takes in files";
        page.bytes("buffer_disk", help, buffer.map(|usage| usage.disk_bytes as f64))
    }

    fn wrong(&self, page: &mut MetricsPage<'_>) -> Result {
        let alarms = &self.told.alarms;
        page.gauges("alarm", "Whether an alarm is raised now, by kind", |put: Put<'_, f64>| {
            let mut each = alarms.iter();
            each.try_for_each(|(kind, (_, on))| put(&[("kind", kind)], f64::from(u8::from(*on))))
        })?;
        let help = "How often an alarm was raised";
        page.counters("alarms_raised", help, |put: Put<'_, u64>| {
            alarms.iter().try_for_each(|(kind, (count, _))| put(&[("kind", kind)], *count))
        })?;
        let help = "What monitors, the history and traces had no room or time for";
        page.counters("telemetry_dropped", help, |put: Put<'_, u64>| {
            self.drops.iter().try_for_each(|(who, count)| put(&[("observer", who)], *count))
        })
    }
}

fn by_kind<T: 'static>(
    counters: &Counters,
    look: fn(&BatchTypeTally) -> T,
) -> impl FnOnce(Put<'_, T>) -> Result + '_ {
    move |put: Put<'_, T>| {
        KINDS
            .iter()
            .try_for_each(|(kind, name)| put(&[("batch_type", name)], look(counters.of(*kind))))
    }
}

fn by_workflow<'a>(
    names: &'a DurationNames,
    spans: &'a Spans,
) -> impl FnOnce(Put<'_, Quantiles>) -> Result + 'a {
    move |put: Put<'_, Quantiles>| {
        spans.iter(names).try_for_each(|(workflow, kind, spread)| {
            let kind = if kind == BatchType::Train { "train" } else { "eval" };
            put(&[("workflow", workflow), ("batch_type", kind)], spread)
        })
    }
}

/// Returns a histogram with bounds that stay, from 16 µs to about a minute.
fn lag(lag: &LoopLag) -> Quantiles {
    let bounds = (2..=13).map(|power| 4_u64.pow(power));
    let mut buckets: Vec<(f64, u64)> = Vec::new();
    let mut below = 0;
    for bound in bounds {
        let count = lag.below(bound);
        buckets.push((Duration::from_micros(bound).as_secs_f64(), count - below));
        below = count;
    }
    buckets.push((f64::INFINITY, lag.messages.saturating_sub(below)));
    Quantiles { sum: lag.sum.as_secs_f64(), buckets }
}
