//! Waits of a job: the reason, the start, the timeout and the remedy, as one type for the progress
//! view, the log, alarms, dashboard and `rollway top`.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use rollway_base::human;
use rollway_core::{BatchId, RunFailure};

/// Time after which a wait is logged.
const LOG_AFTER: Duration = Duration::from_secs(5);

/// Maximum time between two log lines of one wait.
const MAX_LOG_INTERVAL: Duration = Duration::from_secs(600);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobWait {
    /// Number of the wait in this process.
    pub id: u64,
    pub reason: WaitReason,
    pub since: SystemTime,
    /// `None`: unbounded.
    pub limit: Option<WaitLimit>,
}

/// Timeout of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitLimit {
    /// Configuration key.
    pub key: &'static str,
    pub timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// No trainer has joined.
    Trainer { step: u64 },
    /// Weights of at least a version.
    Weights { step: u64, at_least: u64 },
    /// The last weights of the trainer, after the last step.
    LastWeights,
    /// Servers that load weights.
    Loading { version: u64, servers: String },
    /// The end of the trainer, after the last step.
    TrainerEnd,
    /// Experiences for the next train batch of the embedded trainer.
    Experiences { wanted: u64 },
    /// The next step would exceed the configured staleness.
    Staleness { step: u64 },
    /// A usable server of a model.
    Server { model: String, servers: String },
    /// The first runners of the job: workers have not connected, or are starting.
    Start { message: Option<String> },
    /// A runner: runs are pending, and no runner is ready.
    Runner { batch: BatchId, pending: u64, message: Option<String> },
    /// The end of a retry backoff: all runs of a batch that have not ended wait for it.
    Retry { batch: BatchId, runs: u64, next: Duration, failure: Option<RunFailure> },
    /// The payload budget: runs are pending, and experiences of earlier batches fill it.
    PayloadBudget { batch: BatchId, pending: u64, held: u64 },
    /// Runs of a batch.
    Runs { batch: BatchId, open: u64, total: u64, longest: Option<String> },
    /// The delivery of a batch: operators of the pipeline, then the buffer.
    Delivery { batch: BatchId },
    /// Space in the buffer.
    Reader { batch: BatchId, unread: u64 },
}

impl WaitReason {
    /// Returns the wait for the runs of a batch. Live statistics add the counts.
    pub fn runs(batch: &BatchId) -> Self {
        Self::Runs { batch: batch.clone(), open: 0, total: 0, longest: None }
    }

    /// Short name, as in `GET /api/overview`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Trainer { .. } => "trainer",
            Self::Weights { .. } | Self::LastWeights => "weights",
            Self::Loading { .. } => "loading",
            Self::TrainerEnd => "trainer_end",
            Self::Experiences { .. } => "experiences",
            Self::Staleness { .. } => "staleness",
            Self::Server { .. } => "server",
            Self::Start { .. } | Self::Runner { .. } => "runner",
            Self::Retry { .. } => "retry",
            Self::PayloadBudget { .. } => "payload_budget",
            Self::Runs { .. } => "runs",
            Self::Delivery { .. } => "delivery",
            Self::Reader { .. } => "reader",
        }
    }

    /// Returns what waits, and for what.
    pub fn message(&self) -> String {
        match self {
            Self::Trainer { step } => format!("step {step} waits for a trainer: none has joined"),
            Self::Weights { step, at_least } => {
                format!("the job waits after step {step} for weights of version {at_least}")
            }
            Self::LastWeights => "the job waits for the last weights of the trainer".to_owned(),
            Self::Loading { version, servers } => {
                // Servers that have them already are not listed.
                let colon = if servers.is_empty() { "" } else { ": " };
                format!(
                    "the job waits for servers that load weights of version \
                     {version}{colon}{servers}"
                )
            }
            Self::TrainerEnd => {
                "the job waits for the end of the trainer: all steps are explored".to_owned()
            }
            Self::Experiences { wanted } => {
                format!("the trainer waits for experiences: its next step needs {wanted}")
            }
            Self::Staleness { step } => format!(
                "step {step} waits for newer weights: it would exceed \
                 `synchronizer.max_staleness`"
            ),
            Self::Server { model, servers } => {
                format!("the job waits for a server of model {model}: {servers}")
            }
            Self::Start { message } => {
                let reason = message.as_ref().map(|it| format!(": {it}")).unwrap_or_default();
                format!("the job waits for its first runners{reason}")
            }
            Self::Runner { batch, pending, message } => {
                let reason = message.as_ref().map(|it| format!(": {it}")).unwrap_or_default();
                format!("{} for a runner, none is ready{reason}", runs_wait(*pending, batch))
            }
            Self::Retry { batch, runs, next, failure } => {
                let headline = |it: &RunFailure| it.message.lines().next().map(str::to_owned);
                let headline = failure.as_ref().and_then(headline);
                let cause = match failure.as_ref().zip(headline) {
                    Some((failure, headline)) => format!(" as {}: {headline}", failure.kind),
                    None => String::new(),
                };
                format!(
                    "{} for a retry, the next in {}, after a failure{cause}",
                    runs_wait(*runs, batch),
                    human::duration(*next)
                )
            }
            Self::PayloadBudget { batch, pending, held } => format!(
                "{} for the delivery of earlier batches: {held} bytes of experiences are held",
                runs_wait(*pending, batch)
            ),
            // The counts are not known at the start of the wait.
            Self::Runs { batch, total: 0, .. } => format!("batch {batch} waits for its runs"),
            Self::Runs { batch, open, total, longest } => {
                let longest = longest.as_ref().map(|it| format!(": {it}")).unwrap_or_default();
                format!("batch {batch} waits for {open} of {total} runs{longest}")
            }
            Self::Delivery { batch } => {
                format!("batch {batch} waits for its delivery: all runs have ended")
            }
            Self::Reader { batch, unread } => {
                format!("batch {batch} waits for a reader: the buffer is full ({unread} unread)")
            }
        }
    }

    /// Returns what to do about it.
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::Trainer { .. } => {
                "start the trainer of this job, or use `mode: both`, in which the job starts one"
            }
            Self::Weights { .. } | Self::LastWeights => {
                "check that the trainer runs, has enough experiences for a train batch and \
                 publishes its weights"
            }
            Self::Loading { .. } => {
                "check the log of these servers: they drain their requests, then load"
            }
            Self::TrainerEnd => {
                "it ends when it has read all experiences: check its log, or end it"
            }
            Self::Experiences { .. } => {
                "check that an explorer runs and writes into the buffer of this trainer \
                 (`buffer.trainer_input.experience_buffer`)"
            }
            Self::Staleness { .. } => {
                "check that the trainer runs and publishes, or raise `synchronizer.max_staleness`"
            }
            Self::Server { .. } => "start the server, or correct its address",
            Self::Start { .. } => {
                "start the workers if the job does not (`cluster: manual`), or check their log"
            }
            Self::Runner { .. } => "check the log of the workers; `rollway top` shows every runner",
            Self::Retry { failure: Some(failure), .. } => failure.kind.remedy(),
            Self::Retry { failure: None, .. } => {
                "`rollway debug` runs one task and shows its error"
            }
            Self::PayloadBudget { .. } => {
                "check what earlier batches wait for, or raise `explorer.limits.payload_bytes`"
            }
            Self::Runs { .. } => {
                "`rollway top` shows every runner and cancels a single run; \
                 `explorer.max_timeout` bounds an attempt"
            }
            Self::Delivery { .. } => {
                "check the operators of the pipeline and the buffer, which is slow or unreachable"
            }
            Self::Reader { .. } => "start a trainer or another reader of the buffer",
        }
    }

    /// Tells whether the wait is for runs in progress, which is normal work unless they are few.
    pub const fn is_work(&self) -> bool {
        matches!(self, Self::Runs { .. })
    }
}

fn runs_wait(count: u64, batch: &BatchId) -> String {
    let (runs, wait) = if count == 1 { ("run", "waits") } else { ("runs", "wait") };
    format!("{count} {runs} of batch {batch} {wait}")
}

impl JobWait {
    /// Returns the whole message at a time: reason, begin, end and remedy.
    pub fn message(&self, now: SystemTime) -> String {
        let times = self.times(now.duration_since(self.since).unwrap_or_default());
        format!("{}; {times}\nhint: {}", self.reason.message(), self.reason.remedy())
    }

    /// Returns how long the wait lasts, and when it ends.
    pub fn times(&self, waited: Duration) -> String {
        let mut text = format!("for {}", human::duration(waited));
        if let Some(WaitLimit { key, timeout }) = &self.limit {
            let left = human::duration(timeout.saturating_sub(waited));
            text += &format!(", at most {left} more (`{key}`)");
        }
        text
    }
}

/// Receives begin and end of waits. Must not block.
pub trait WaitObserver: Debug + Send + Sync + 'static {
    fn wait_begun(&self, wait: &JobWait);
    fn wait_ended(&self, wait: &JobWait);
}

/// Current waits of a job. Cheap to clone; clones share state.
#[derive(Clone, Debug, Default)]
pub struct JobWaits {
    observer: Option<Arc<dyn WaitObserver>>,
    open: Arc<Mutex<OpenWaits>>,
}

#[derive(Debug, Default)]
struct OpenWaits {
    next: u64,
    waits: BTreeMap<u64, JobWait>,
}

/// Ends a wait when it is dropped.
#[derive(Debug)]
pub struct CurrentWait {
    waits: JobWaits,
    id: u64,
}

impl JobWaits {
    pub fn new(observer: impl WaitObserver) -> Self {
        Self { observer: Some(Arc::new(observer)), open: Arc::default() }
    }

    /// Begins a wait, which ends when the guard is dropped. Observers receive both.
    pub fn begin(&self, reason: WaitReason, limit: Option<WaitLimit>) -> CurrentWait {
        let wait = {
            let mut open = self.open.lock();
            let id = open.next;
            open.next += 1;
            let wait = JobWait { id, reason, since: SystemTime::now(), limit };
            open.waits.insert(id, wait.clone());
            wait
        };
        let id = wait.id;
        if let Some(observer) = &self.observer {
            observer.wait_begun(&wait);
        }
        CurrentWait { waits: self.clone(), id }
    }

    /// Performs work that waits: logs it after some seconds, then at growing intervals.
    pub async fn log_during<T>(
        &self,
        reason: WaitReason,
        limit: Option<WaitLimit>,
        work: impl Future<Output = T>,
    ) -> T {
        let guard = self.begin(reason, limit);
        log_while(work, |_| guard.wait().map(|wait| wait.message(SystemTime::now()))).await
    }

    /// Returns the current waits, oldest first.
    pub fn current(&self) -> Vec<JobWait> {
        self.open.lock().waits.values().cloned().collect()
    }
}

impl CurrentWait {
    fn wait(&self) -> Option<JobWait> {
        self.waits.open.lock().waits.get(&self.id).cloned()
    }
}

impl Drop for CurrentWait {
    fn drop(&mut self) {
        let wait = self.waits.open.lock().waits.remove(&self.id);
        if let (Some(wait), Some(observer)) = (wait, &self.waits.observer) {
            observer.wait_ended(&wait);
        }
    }
}

/// Performs work that waits and logs a message with the time so far: after `LOG_AFTER`, then at
/// doubling intervals.
pub async fn log_while<T>(
    work: impl Future<Output = T>,
    mut message: impl FnMut(Duration) -> Option<String>,
) -> T {
    let (mut work, mut pace, began) = (pin!(work), LogPace::default(), Instant::now());
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = pace.due() => {}
        }
        pace.log(message(began.elapsed()).as_deref());
    }
}

/// Pace of the log lines of one wait: after [`LOG_AFTER`], then at doubling intervals.
#[derive(Debug)]
pub(crate) struct LogPace(Duration);

impl Default for LogPace {
    fn default() -> Self {
        Self(LOG_AFTER)
    }
}

impl LogPace {
    /// Returns the pace of a wait that is looked at once before its first line, and the time of
    /// that look.
    pub(crate) const fn after_look() -> (Self, Duration) {
        let half = Duration::from_millis(LOG_AFTER.as_millis() as u64 / 2);
        (Self(half), half)
    }

    /// Waits until the next line is due.
    pub(crate) async fn due(&self) {
        tokio::time::sleep(self.0).await;
    }

    /// Logs a line. `None` is not logged and restarts the intervals.
    pub(crate) fn log(&mut self, message: Option<&str>) {
        self.0 = match message {
            Some(message) => {
                tracing::info!("{message}");
                (self.0 * 2).min(MAX_LOG_INTERVAL)
            }
            None => LOG_AFTER,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn wait_is_logged_after_five_seconds_and_then_rarely() {
        let (began, mut pace) = (tokio::time::Instant::now(), LogPace::default());
        let mut times = Vec::new();
        while times.len() < 4 {
            pace.due().await;
            times.push(began.elapsed().as_secs());
            pace.log(Some("a wait"));
        }
        assert_eq!(times, [5, 15, 35, 75]);
    }

    #[test]
    fn message_has_reason_begin_end_and_remedy() {
        let (reason, timeout) =
            (WaitReason::Weights { step: 3, at_least: 4 }, Duration::from_secs(60));
        let limit = Some(WaitLimit { key: "synchronizer.sync_timeout", timeout });
        let since = SystemTime::UNIX_EPOCH;
        let wait = JobWait { id: 0, reason, since, limit };
        let message = wait.message(since + Duration::from_secs(20));
        let expected = "the job waits after step 3 for weights of version 4; for 20 s, at most \
                        40 s more (`synchronizer.sync_timeout`)\nhint: check that the trainer";
        assert!(message.starts_with(expected), "{message}");
    }

    #[test]
    fn runs_are_not_counted_before_their_number_is_known() {
        let sentence = WaitReason::runs(&BatchId::from(3)).message();
        assert_eq!(sentence, "batch 3 waits for its runs");
    }

    #[test]
    fn wait_is_current_until_its_guard_is_dropped() {
        let waits = JobWaits::default();
        let guard = waits.begin(WaitReason::LastWeights, None);
        assert_eq!(waits.current()[0].reason, WaitReason::LastWeights);
        drop(guard);
        assert_eq!(waits.current(), []);
    }
}
