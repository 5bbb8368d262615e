//! Waits without an end in sight are logged after five seconds, on a paused clock.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use rollway_base::Secret;
use rollway_core::metrics::Metrics;
use rollway_core::{
    AttemptId, BatchType, CoreConfig, CoreLimits, FailureKind, Incarnation, RunFailure, RunnerId,
};
use rollway_engine::job_wait::WaitReason;
use rollway_engine::{
    AttemptSpec, BatchDelivery, CollectOptions, DeliveryResult, LocalRunners, Reporter,
    RolloutCoordinator, RunContext, RunKeyIssuer, RunOutput, RunnerBackend, RunnerCommand,
    RunnerReport, Scheduler, ServerWaitFn, Sink, WithModelAccess, WorkflowRegistry,
};
use tokio::time::{Instant, timeout};
use tracing::field::{Field, Visit};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Metadata, Subscriber, span};

use common::{SECOND, local_config, tasks};

/// Messages of this thread, each with the time since the start.
#[derive(Clone)]
struct LogLines {
    began: Instant,
    lines: Arc<Mutex<Vec<(u64, String)>>>,
}

impl LogLines {
    fn collect() -> (Self, DefaultGuard) {
        let lines = Self { began: Instant::now(), lines: Arc::default() };
        let guard = tracing::subscriber::set_default(lines.clone());
        (lines, guard)
    }

    /// Returns the lines about waits.
    fn waits(&self) -> Vec<(u64, String)> {
        let lines = self.lines.lock().unwrap();
        lines.iter().filter(|(_, line)| line.contains(" wait")).cloned().collect()
    }
}

struct MessageText(String);

impl Visit for MessageText {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").unwrap();
        }
    }
}

impl Subscriber for LogLines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = MessageText(String::new());
        event.record(&mut text);
        self.lines.lock().unwrap().push((self.began.elapsed().as_secs(), text.0));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// A runner whose first worker is lost at its first command, and whose next one never connects.
struct AbsentRunners {
    /// Incarnation of the worker that connects.
    first: Incarnation,
}

impl RunnerBackend for AbsentRunners {
    fn start(&mut self, reporter: Reporter) {
        let report = if reporter.incarnation() == self.first {
            RunnerReport::Ready { after: None }
        } else {
            RunnerReport::StartBlocked { reason: Some("no worker is connected".into()) }
        };
        tokio::spawn(async move { reporter.send(vec![report]).await });
    }

    fn send(&mut self, _: RunnerId, _: Incarnation, _: RunnerCommand) -> bool {
        false
    }

    fn stop(&mut self, _: RunnerId, _: Incarnation) {}
}

#[tokio::test(start_paused = true)]
async fn wait_for_a_worker_is_logged_with_its_reason_and_remedy() {
    let (log, _guard) = LogLines::collect();
    let runners = AbsentRunners { first: Incarnation(1) };
    let scheduler = Scheduler::new(CoreConfig { runners: 1, ..local_config() }, runners);
    assert_eq!(scheduler.start().await, Ok((1, 1)));
    scheduler.schedule(tasks("answer", 3, 1), 1).await.unwrap();
    let waiting = scheduler.get_statuses(1, CollectOptions::default());
    assert!(timeout(19 * SECOND, waiting).await.is_err());
    let line = "3 runs of batch 1 wait for a runner, none is ready: no worker is connected\nhint: \
                check the log of the workers; `rollway top` shows every runner";
    let expected = [5, 10].map(|second| (second, line.to_owned()));
    assert_eq!(log.waits(), expected);
}

#[tokio::test(start_paused = true)]
async fn wait_for_the_first_worker_is_logged_with_its_reason_and_remedy() {
    let (log, _guard) = LogLines::collect();
    let runners = AbsentRunners { first: Incarnation(0) };
    let scheduler = Scheduler::new(local_config(), runners);
    assert!(timeout(19 * SECOND, scheduler.start()).await.is_err());
    let line = "the job waits for its first runners: no worker is connected\nhint: start the \
                workers if the job does not (`cluster: manual`), or check their log";
    let expected = [5, 15].map(|second| (second, line.to_owned()));
    assert_eq!(log.waits(), expected);
}

/// Keys of a gateway without a usable server.
struct NoServer;

impl RunKeyIssuer for NoServer {
    fn base_url(&self) -> Arc<str> {
        "http://127.0.0.1:1/v1".into()
    }

    fn open(&mut self, _: &AttemptSpec) -> Vec<Secret> {
        Vec::new()
    }

    fn close(&mut self, _: AttemptId) {}

    fn server_wait(&self) -> Option<ServerWaitFn> {
        let (model, servers) =
            ("policy".to_owned(), "http://a:1 is unhealthy (refused)".to_owned());
        let reason = WaitReason::Server { model, servers };
        Some(Box::new(move || Some(reason.clone())))
    }
}

#[tokio::test(start_paused = true)]
async fn wait_for_a_server_is_logged_with_its_reason_and_remedy() {
    let (log, _guard) = LogLines::collect();
    let hang = |_: RunContext| std::future::pending();
    let runners = LocalRunners::new(WorkflowRegistry::default().with("hang", hang));
    let scheduler = Scheduler::new(local_config(), WithModelAccess::new(runners, NoServer));
    scheduler.start().await.unwrap();
    scheduler.schedule(tasks("hang", 3, 1), 1).await.unwrap();
    let waiting = scheduler.get_statuses(1, CollectOptions::default());
    assert!(timeout(9 * SECOND, waiting).await.is_err());
    let line = "the job waits for a server of model policy: http://a:1 is unhealthy (refused)\n\
                hint: start the server, or correct its address";
    assert_eq!(log.waits(), [(5, line.to_owned())]);
}

/// Fails as a workflow whose model calls no server takes.
async fn no_server(_: RunContext) -> Result<RunOutput, RunFailure> {
    Err(RunFailure::new(FailureKind::ModelUnavailable, "no server is usable\ntried http://a:1"))
}

#[tokio::test(start_paused = true)]
async fn backoff_of_all_runs_is_logged_with_the_last_failure_and_the_next_attempt() {
    let (log, _guard) = LogLines::collect();
    let runners = LocalRunners::new(WorkflowRegistry::default().with("call", no_server));
    let mut config = local_config();
    config.failures.rule_mut(FailureKind::ModelUnavailable).backoff = 60 * SECOND;
    let scheduler = Scheduler::new(config, runners);
    scheduler.start().await.unwrap();
    scheduler.schedule(tasks("call", 3, 1), 1).await.unwrap();
    let waiting = scheduler.get_statuses(1, CollectOptions::default());
    assert!(timeout(19 * SECOND, waiting).await.is_err());
    let line = |next: &str| {
        format!(
            "3 runs of batch 1 wait for a retry, the next in {next}, after a failure as \
             model_unavailable: no server is usable\nhint: check that the inference servers respond"
        )
    };
    assert_eq!(log.waits(), [(5, line("55 s")), (10, line("50 s"))]);
}

#[tokio::test(start_paused = true)]
async fn exhausted_payload_budget_is_logged_with_its_remedy() {
    let (log, _guard) = LogLines::collect();
    let answer = |_: RunContext| async {
        Ok(RunOutput { payload: Some("payload".into()), metrics: Metrics::new() })
    };
    let runners = LocalRunners::new(WorkflowRegistry::default().with("answer", answer));
    let limits = CoreLimits { payload_bytes: 14, ..CoreLimits::default() };
    let config = CoreConfig { limits, runners: 1, ..local_config() };
    let scheduler = Scheduler::new(config, runners);
    scheduler.start().await.unwrap();
    scheduler.schedule(tasks("answer", 1, 1), 1).await.unwrap();
    scheduler.schedule(tasks("answer", 2, 1), 2).await.unwrap();
    let waiting = scheduler.get_statuses(2, CollectOptions::default());
    assert!(timeout(9 * SECOND, waiting).await.is_err());
    let line = "2 runs of batch 2 wait for the delivery of earlier batches: 7 bytes of experiences \
                are held\nhint: check what earlier batches wait for, or raise \
                `explorer.limits.payload_bytes`";
    assert_eq!(log.waits(), [(5, line.to_owned())]);
}

/// A sink whose buffer is full.
struct FullSink;

impl Sink for FullSink {
    fn deliver(&self, _: BatchDelivery) -> BoxFuture<'_, DeliveryResult> {
        Box::pin(std::future::pending())
    }

    fn process(&self, _: Vec<bytes::Bytes>) -> BoxFuture<'_, DeliveryResult> {
        Box::pin(async { Ok(Metrics::new()) })
    }

    fn full_buffer(&self) -> Option<u64> {
        Some(64)
    }
}

#[tokio::test(start_paused = true)]
async fn wait_for_a_reader_is_logged_with_its_reason_and_remedy() {
    let (log, _guard) = LogLines::collect();
    let answer = |_: RunContext| async {
        Ok(RunOutput { payload: Some("payload".into()), metrics: Metrics::new() })
    };
    let runners = LocalRunners::new(WorkflowRegistry::default().with("answer", answer));
    let sink: Arc<dyn Sink> = Arc::new(FullSink);
    let coordinator = RolloutCoordinator::new(local_config(), runners, Some(sink));
    coordinator.prepare().await.unwrap();
    coordinator.submit_batch(7, tasks("answer", 2, 1), BatchType::Train, None).await.unwrap();
    let waiting = coordinator.finalize_train_batch(7, None);
    assert!(timeout(19 * SECOND, waiting).await.is_err());
    let line = "batch 7 waits for a reader: the buffer is full (64 unread)\nhint: start a trainer \
                or another reader of the buffer";
    let expected = [5, 10].map(|second| (second, line.to_owned()));
    assert_eq!(log.waits(), expected);
}
