//! Metric families of one scrape.

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
use rollway_net::counter_rows;

use super::durations::{DurationNames, Spans};
use super::job_metrics::JobMetrics;
use super::writer::{MetricsPage, Put, Quantiles};

type Result = std::result::Result<(), fmt::Error>;

const KINDS: [(BatchType, &str); 2] = [(BatchType::Train, "train"), (BatchType::Eval, "eval")];

const STATES: [&str; 6] = ["starting", "idle", "busy", "cancelling", "broken", "stopped"];

const OPEN: [(BatchState, &str); 3] = [
    (BatchState::Pending, "pending"),
    (BatchState::Running, "running"),
    (BatchState::Finalizing, "finalizing"),
];

/// State of one scrape.
#[derive(Debug)]
pub(super) struct MetricsView {
    pub(super) job: JobFamilies,
    pub(super) snapshot: Arc<MetricsSnapshot>,
    pub(super) metrics: JobMetrics,
    pub(super) ages: Ages,
    pub(super) attempts: Spans,
    pub(super) tasks: Spans,
    pub(super) waits: Spans,
    pub(super) names: DurationNames,
    pub(super) drops: BTreeMap<&'static str, u64>,
}

/// Constant labels of a job.
#[derive(Clone, Debug)]
pub(super) struct JobFamilies {
    pub(super) project: String,
    pub(super) name: String,
    pub(super) mode: String,
    /// Seconds since 1970.
    pub(super) started: f64,
}

/// Ages of the oldest items. `None`: there is none.
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
        self.batch_ages(&mut page)?;
        self.spans(&mut page)?;
        self.driver(&mut page)?;
        self.steps(&mut page)?;
        self.experiences(&mut page)?;
        connections(&mut page)?;
        self.problems(&mut page)
    }
}

impl MetricsView {
    fn counters(&self) -> &Counters {
        &self.snapshot.core.counters
    }

    fn job(&self, page: &mut MetricsPage<'_>) -> Result {
        let JobFamilies { project, name, mode, started } = &self.job;
        let version = env!("CARGO_PKG_VERSION");
        let labels =
            [("project", &**project), ("name", name), ("mode", mode), ("version", version)];
        page.info("job", "Running job and the release of Rollway", &labels)?;
        page.seconds("start_time", "Start of the process, since 1970", Some(*started))
    }

    fn runs(&self, page: &mut MetricsPage<'_>) -> Result {
        let counters = self.counters();
        let help = "Submitted runs by batch type: the sum of succeeded, failed, cancelled, pending \
                    and running runs";
        page.counters("runs_submitted", help, by_kind(counters, |it| it.runs.submitted))?;
        let help = "Succeeded runs";
        page.counters("runs_succeeded", help, by_kind(counters, |it| it.runs.succeeded))?;
        let help = "Failed runs without further retry, by failure kind";
        page.counters("runs_failed", help, |put: Put<'_, u64>| {
            for (kind, name) in KINDS {
                for failure in FailureKind::ALL {
                    let labels = [("batch_type", name), ("failure_kind", failure.name())];
                    put(&labels, counters.of(kind).runs.failed[*failure])?;
                }
            }
            Ok(())
        })?;
        let help = "Cancelled runs by reason";
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
        let help = "Runs on a runner";
        page.gauges("runs_running", help, by_kind(counters, |it| it.runs.running as f64))?;
        let help = "Retried runs by failure kind";
        page.counters("runs_retried", help, |put: Put<'_, u64>| {
            let mut each = FailureKind::ALL.iter();
            each.try_for_each(|it| put(&[("failure_kind", it.name())], counters.retries[*it]))
        })?;
        let help = "Ended runs restored after a crash";
        page.counter("runs_restored", help, counters.runs_restored)
    }

    fn tasks(&self, page: &mut MetricsPage<'_>) -> Result {
        let counters = self.counters();
        let help = "Submitted tasks by batch type: the sum of ended and open tasks";
        page.counters("tasks_submitted", help, by_kind(counters, |it| it.tasks.submitted))?;
        let help = "Ended tasks by outcome: all runs succeeded (ok), some (partial), \
         none (failed), \
                    or cancelled";
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
        let help = "Open tasks";
        page.gauges("tasks_open", help, by_kind(counters, |it| it.tasks.open as f64))?;
        let batches = &self.snapshot.core.batches;
        page.gauges("batches", "Open batches by state", |put: Put<'_, f64>| {
            for (kind, name) in KINDS {
                for (state, state_name) in OPEN {
                    let is_it = |it: &&rollway_core::BatchView| {
                        // A collected batch has no state.
                        it.kind == kind && it.state.unwrap_or(BatchState::Running) == state
                    };
                    let count = batches.iter().filter(is_it).count();
                    put(&[("batch_type", name), ("state", state_name)], count as f64)?;
                }
            }
            Ok(())
        })?;
        let help = "Batches restored after a crash";
        page.counter("batches_restored", help, counters.batches_restored)
    }

    fn payloads(&self, page: &mut MetricsPage<'_>) -> Result {
        let counters = self.counters();
        let help = "Received payloads; with the restored ones the sum of delivered, dropped and \
                    held payloads";
        page.counter("payloads_received", help, counters.payloads_received)?;
        let help = "Payloads restored after a crash";
        page.counter("payloads_restored", help, counters.payloads_restored)?;
        let help = "Payloads whose delivery was acknowledged";
        page.counter("payloads_delivered", help, counters.payloads_delivered)?;
        let help = "Payloads dropped instead of delivered, by reason";
        page.counters("payloads_dropped", help, |put: Put<'_, u64>| {
            let mut each = DropReason::ALL.iter();
            each.try_for_each(|it| put(&[("reason", it.name())], counters.payloads_dropped[*it]))
        })?;
        let help = "Payloads held until delivery";
        page.gauge("payloads_held", help, Some(counters.payloads_held as f64))?;
        let help = "Memory of held payloads";
        page.bytes("payloads_held", help, Some(counters.payload_bytes_held as f64))
    }

    fn runners(&self, page: &mut MetricsPage<'_>) -> Result {
        let counters = self.counters();
        let states = &self.snapshot.core.runners;
        page.gauges("runners", "Runners by state", |put: Put<'_, f64>| {
            for name in STATES {
                let is_it = |state: &&RunnerState| state.name() == name;
                put(&[("state", name)], states.iter().filter(is_it).count() as f64)?;
            }
            Ok(())
        })?;
        let help = "Started runners, with restarts";
        page.counter("runners_started", help, counters.runners_started)?;
        page.counter("runners_stopped", "Stopped runners", counters.runners_stopped)?;
        let help = "Runners lost or replaced unexpectedly";
        page.counter("runners_lost", help, counters.runners_lost)?;
        let help = "Started attempts";
        page.counter("attempts_started", help, counters.attempts_started)?;
        let help = "Ended attempts";
        page.counter("attempts_ended", help, counters.attempts_ended)
    }

    fn batch_ages(&self, page: &mut MetricsPage<'_>) -> Result {
        let seconds = |age: Option<Duration>| Some(age.map_or(0.0, |age| age.as_secs_f64()));
        let help = "Age of the oldest batch with pending runs; 0: none";
        page.seconds("oldest_pending", help, seconds(self.ages.pending))?;
        let help = "Age of the oldest open attempt; 0: none";
        page.seconds("oldest_attempt", help, seconds(self.ages.attempt))?;
        let help = "Age of the oldest open batch; 0: none";
        page.seconds("oldest_batch", help, seconds(self.ages.batch))
    }

    fn spans(&self, page: &mut MetricsPage<'_>) -> Result {
        let help =
            "Duration of attempts by workflow; after the first workflows the label is `other`";
        page.histograms("attempt_duration", help, by_workflow(&self.names, &self.attempts))?;
        let help = "Duration of tasks from their first attempt to their end";
        page.histograms("task_duration", help, by_workflow(&self.names, &self.tasks))?;
        let help = "Wait of tasks for their first attempt";
        page.histograms("task_wait", help, by_workflow(&self.names, &self.waits))?;
        let help = "Durations with the workflow label `other`";
        page.counter("workflow_labels_overflow", help, self.names.others)
    }

    fn driver(&self, page: &mut MetricsPage<'_>) -> Result {
        let counters = self.counters();
        let help = "Delay from the arrival of a message to its application by the driver";
        page.histograms("loop_lag", help, |put: Put<'_, Quantiles>| {
            put(&[], lag(&self.snapshot.lag))
        })?;
        page.counter("loop_turns", "Turns of the driver", self.snapshot.lag.turns)?;
        let help = "Longest turn of the driver";
        page.seconds(
            "loop_longest_turn",
            help,
            Some(self.snapshot.lag.longest_turn.as_secs_f64()),
        )?;
        page.counter("inputs", "Inputs applied to the core", counters.inputs)?;
        let help = "Runner reports ignored, by reason";
        page.counters("reports_ignored", help, |put: Put<'_, u64>| {
            let mut each = IgnoreReason::ALL.iter();
            each.try_for_each(|it| put(&[("reason", it.name())], counters.ignored_reports[*it]))
        })?;
        let answered = counters.answers + counters.abandoned;
        let help = "Requests without response";
        let waiting = counters.requests.saturating_sub(answered);
        page.gauge("requests_waiting", help, Some(waiting as f64))?;
        let help = "Truncated error messages";
        page.counter("messages_truncated", help, counters.messages_truncated)?;
        let help = "Run metrics dropped because of their number";
        page.counter("run_metrics_dropped", help, counters.metrics_dropped)
    }

    fn steps(&self, page: &mut MetricsPage<'_>) -> Result {
        let metrics = &self.metrics;
        page.gauge("step", "Last finalized explore step", Some(metrics.step as f64))?;
        let help = "Last begun explore step";
        page.gauge("step_begun", help, Some(metrics.begun_step as f64))?;
        let help = "Explore steps of the whole job, if known";
        page.gauge("steps_planned", help, metrics.total_steps.map(|steps| steps as f64))?;
        page.counter("steps_finalized", "Steps finalized by this process", metrics.steps)?;
        let help = "Time that finalizations waited for runs";
        page.seconds_counter("step_wait", help, metrics.waited)?;
        let help = "Mean reward of the last step with rewards";
        page.gauge("reward_mean", help, metrics.reward)?;
        page.counter("evaluations", "Finished evaluations of a set", metrics.evals)?;
        let help = "Last score of each evaluation set";
        page.gauges("eval_score", help, |put: Put<'_, f64>| {
            metrics.scores.iter().try_for_each(|(set, score)| put(&[("set", set)], *score))
        })?;
        let help = "Last train step, if known";
        page.gauge("trained_step", help, metrics.trained_step.map(|step| step as f64))?;
        let help = "Model version of the servers after the first weight sync";
        page.gauge("model_version", help, metrics.version.map(|version| version as f64))?;
        let help = "Newest known model version";
        page.gauge("newest_model_version", help, Some(metrics.newest() as f64))?;
        let help = "Mean staleness of the experiences of the last step, in versions";
        page.gauge("staleness_mean", help, metrics.staleness.map(|it| it.mean))?;
        let help = "Maximum staleness of the experiences of the last step, in versions";
        page.gauge("staleness_max", help, metrics.staleness.map(|it| it.max))?;
        page.counter("syncs", "Weight updates of the servers", metrics.syncs)?;
        let help = "Time that weight syncs waited for the trainer";
        page.seconds_counter("sync_wait", help, metrics.sync_waited)?;
        let help = "Time that servers needed to load weights";
        page.seconds_counter("sync_loading", help, metrics.sync_loading)
    }

    fn experiences(&self, page: &mut MetricsPage<'_>) -> Result {
        let metrics = &self.metrics;
        page.counter("experiences_stored", "Experiences stored in the buffer", metrics.stored)?;
        let help = "Duplicate experiences ignored by the buffer";
        page.counter("experiences_duplicate", help, metrics.known)?;
        let help = "Experiences dropped by pipeline or buffer, by operator and reason";
        page.counters("experiences_dropped", help, |put: Put<'_, u64>| {
            metrics
                .dropped
                .iter()
                .try_for_each(|(reason, count)| put(&[("reason", reason)], *count))
        })?;
        let buffer = self.snapshot.buffer;
        let help = "Unread experiences of a queue";
        page.gauge("buffer_unread", help, buffer.map(|usage| usage.unread as f64))?;
        let help = "Read and unacknowledged experiences of a queue";
        page.gauge("buffer_unacknowledged", help, buffer.map(|usage| usage.held as f64))?;
        let help = "Memory of a queue";
        page.bytes("buffer_memory", help, buffer.map(|usage| usage.bytes as f64))?;
        let help = "File size of a queue";
        page.bytes("buffer_disk", help, buffer.map(|usage| usage.disk_bytes as f64))
    }

    fn problems(&self, page: &mut MetricsPage<'_>) -> Result {
        let alarms = &self.metrics.alarms;
        page.gauges("alarm", "Raised alarms (0 or 1) by kind", |put: Put<'_, f64>| {
            let mut each = alarms.iter();
            each.try_for_each(|(kind, (_, on))| put(&[("kind", kind)], f64::from(u8::from(*on))))
        })?;
        let help = "Raises of alarms by kind";
        page.counters("alarms_raised", help, |put: Put<'_, u64>| {
            alarms.iter().try_for_each(|(kind, (count, _))| put(&[("kind", kind)], *count))
        })?;
        let help = "Items dropped by monitors, history and traces";
        page.counters("telemetry_dropped", help, |put: Put<'_, u64>| {
            self.drops
                .iter()
                .try_for_each(|(observer, count)| put(&[("observer", observer)], *count))
        })
    }
}

/// Writes the connections of the listeners of this process.
fn connections(page: &mut MetricsPage<'_>) -> Result {
    let rows = counter_rows();
    let help = "Open connections by listener";
    page.gauges("connections_open", help, |put: Put<'_, f64>| {
        rows.iter().try_for_each(|row| put(&[("listener", row.listener)], row.open as f64))
    })?;
    let help = "Accepted connections by listener";
    page.counters("connections_accepted", help, |put: Put<'_, u64>| {
        rows.iter().try_for_each(|row| put(&[("listener", row.listener)], row.accepted))
    })?;
    let help = "Connections that a listener refused or closed, by listener and reason";
    page.counters("connections_closed", help, |put: Put<'_, u64>| {
        for row in &rows {
            for (reason, count) in &row.closed {
                put(&[("listener", row.listener), ("reason", reason)], *count)?;
            }
        }
        Ok(())
    })?;
    let help = "Peers that the protocol of a listener refused, by listener and reason";
    page.counters("peers_refused", help, |put: Put<'_, u64>| {
        for row in &rows {
            for (reason, count) in &row.refused {
                put(&[("listener", row.listener), ("reason", reason)], *count)?;
            }
        }
        Ok(())
    })
}

fn by_kind<T: 'static>(
    counters: &Counters,
    count: fn(&BatchTypeTally) -> T,
) -> impl FnOnce(Put<'_, T>) -> Result + '_ {
    move |put: Put<'_, T>| {
        KINDS
            .iter()
            .try_for_each(|(kind, name)| put(&[("batch_type", name)], count(counters.of(*kind))))
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

/// Returns a histogram with fixed bounds from 16 µs to about a minute.
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
