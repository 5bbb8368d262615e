//! The sink of a job: experience pipeline and buffer. The pipeline blocks on disks, servers and
//! user code, so it has its own thread, which processes calls in order.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::thread;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rollway_base::error_chain;
use rollway_config::Config;
use rollway_core::metrics::{Metrics, PassRates};
use rollway_core::{BatchId, BatchKey};
use rollway_data::buffer::{Buffer, BufferError, WriteInterrupt};
use rollway_data::pipeline::{Operator, OperatorRegistry, Pipeline};
use tokio::sync::{mpsc, oneshot};

use super::buffer_target::BufferTarget;
use super::quarantine::Quarantine;
use super::{BatchDelivery, DeliveryResult, Sink, SinkError, delivery_key, operators};
use crate::process::panic_message;

/// Length of the call queue; callers wait while it is full.
const QUEUE_CAPACITY: usize = 64;

/// Metric of a delivery: runs that were put into the quarantine.
pub const QUARANTINED: &str = "experience_pipeline/quarantined_count";

/// Maximum number of kept pass rates.
const MAX_RATES: usize = 1 << 20;

/// Passes experiences through the operators of a configuration to its buffer.
///
/// Opens everything at [`prepare`](Self::prepare) or the first call; a failed open is retried by
/// the next call. Dropping the sink closes it.
pub struct PipelineSink {
    calls: mpsc::Sender<Call>,
    shared: Arc<PipelineShared>,
}

#[derive(Default)]
struct PipelineShared {
    /// Kept after the pipeline is closed, for readers of the remaining samples.
    buffer: OnceLock<Arc<dyn Buffer>>,
    /// `None`: the buffer is not open, or its writer never waits.
    interrupt: Mutex<Option<WriteInterrupt>>,
    feedback: Mutex<SelectorFeedback>,
}

struct Call {
    kind: SinkCallKind,
    reply: oneshot::Sender<DeliveryResult>,
}

enum SinkCallKind {
    Prepare,
    Deliver { batch: BatchId, key: BatchKey, payloads: Vec<Bytes> },
    Process { payloads: Vec<Bytes> },
    Step { number: u64, key: String, payloads: Vec<Bytes> },
    Close,
}

impl PipelineSink {
    /// Validates the configuration and starts the thread; opens nothing yet.
    pub fn new(config: &Config, registry: &OperatorRegistry) -> Result<Self, SinkError> {
        let shared = Arc::new(PipelineShared::default());
        let work = SinkThread {
            job: config.job(),
            writer: config.explorer.name.clone(),
            input: BufferTarget::of_input(config)?,
            output: BufferTarget::of_experiences(config)?,
            operators: operators::operators(config, registry)?,
            pipeline: None,
            quarantine: Quarantine::new(&config.job_dir()),
            max_attempts: config.explorer.delivery_attempts,
            failed: HashMap::new(),
            shared: Arc::clone(&shared),
        };
        let (calls, inbox) = mpsc::channel(QUEUE_CAPACITY);
        thread::Builder::new()
            .name("rollway-pipeline".to_owned())
            .spawn(move || work.run(inbox))
            .map_err(|error| SinkError::Thread(error.to_string()))?;
        Ok(Self { calls, shared })
    }

    /// Opens the buffer and prepares the operators. Idempotent.
    pub async fn prepare(&self) -> Result<(), String> {
        self.call(SinkCallKind::Prepare).await.map(drop)
    }

    /// Closes the operators and this writer, after all earlier calls. Readers reach the end of data
    /// once all writers are closed.
    pub async fn close(&self) -> Result<(), String> {
        self.call(SinkCallKind::Close).await.map(drop)
    }

    /// Closes the sink without waiting for room in the buffer: a delivery that waits for it fails,
    /// and its batch stays leased.
    pub async fn stop(&self) -> Result<(), String> {
        let interrupt = self.shared.interrupt.lock().clone();
        if let Some(interrupt) = interrupt {
            interrupt();
        }
        self.close().await
    }

    /// `None` until the buffer is open.
    pub fn buffer(&self) -> Option<Arc<dyn Buffer>> {
        self.shared.buffer.get().cloned()
    }

    /// Returns the feedback for task selectors since the last call, one entry per delivery.
    /// Bounded: the oldest entries are dropped first.
    pub fn take_feedback(&self) -> Vec<PassRates> {
        self.shared.feedback.lock().take()
    }

    /// Stores the experiences of a step of mode `serve`, or puts them into the quarantine if they
    /// keep failing. Idempotent for a key.
    pub async fn step(&self, number: u64, key: String, payloads: Vec<Bytes>) -> DeliveryResult {
        self.call(SinkCallKind::Step { number, key, payloads }).await
    }

    async fn call(&self, kind: SinkCallKind) -> DeliveryResult {
        let gone = || "the thread of the experience pipeline is gone".to_owned();
        let (reply, response) = oneshot::channel();
        self.calls.send(Call { kind, reply }).await.map_err(|_| gone())?;
        response.await.unwrap_or_else(|_| Err(gone()))
    }
}

impl Sink for PipelineSink {
    fn deliver(&self, delivery: BatchDelivery) -> BoxFuture<'_, DeliveryResult> {
        let BatchDelivery { batch, key, results } = delivery;
        let payloads: Vec<Bytes> = results.into_iter().flat_map(|result| result.payloads).collect();
        Box::pin(async move {
            if payloads.is_empty() {
                return Ok(Metrics::new());
            }
            self.call(SinkCallKind::Deliver { batch, key, payloads }).await
        })
    }

    fn process(&self, payloads: Vec<Bytes>) -> BoxFuture<'_, DeliveryResult> {
        Box::pin(self.call(SinkCallKind::Process { payloads }))
    }

    fn full_buffer(&self) -> Option<u64> {
        let usage = self.buffer()?.usage()?;
        (usage.waiting_writers > 0).then_some(usage.unread as u64)
    }
}

impl fmt::Debug for PipelineSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = QUEUE_CAPACITY - self.calls.capacity();
        f.debug_struct("PipelineSink").field("waiting", &waiting).finish_non_exhaustive()
    }
}

struct SinkThread {
    job: String,
    writer: String,
    input: Option<BufferTarget>,
    output: BufferTarget,
    /// Moved into the pipeline when it is opened.
    operators: Vec<Box<dyn Operator>>,
    pipeline: Option<Pipeline>,
    quarantine: Quarantine,
    /// Failed deliveries of a batch before it is put into the quarantine. 0: never.
    max_attempts: u32,
    /// Failed deliveries by key.
    failed: HashMap<String, u32>,
    shared: Arc<PipelineShared>,
}

impl SinkThread {
    fn run(mut self, mut inbox: mpsc::Receiver<Call>) {
        while let Some(Call { kind, reply }) = inbox.blocking_recv() {
            // The caller has dropped the request and will retry.
            if reply.is_closed() {
                continue;
            }
            let done = catch_unwind(AssertUnwindSafe(|| self.perform(kind)));
            let panicked = |panic: Box<dyn Any + Send>| {
                Err(format!("the pipeline panicked: {}", panic_message(panic.as_ref())))
            };
            let _ = reply.send(done.unwrap_or_else(panicked));
        }
        if let Err(message) = self.close() {
            tracing::error!(message, "the experience pipeline did not close");
        }
    }

    fn perform(&mut self, kind: SinkCallKind) -> DeliveryResult {
        match kind {
            SinkCallKind::Prepare => self.prepared().map(|_| Metrics::new()),
            SinkCallKind::Deliver { batch, key, payloads } => {
                let key = delivery_key::of_batch(&self.job, &batch, key, &payloads);
                self.deliver(&batch, &key, &payloads)
            }
            SinkCallKind::Process { payloads } => {
                let key = delivery_key::of_payloads(&self.job, &payloads);
                self.process(&key, &payloads).map_err(|failure| failure.message)
            }
            SinkCallKind::Step { number, key, payloads } => {
                let key = delivery_key::of_step(&self.job, &key);
                let batch = BatchId::from(i64::try_from(number).unwrap_or(i64::MAX));
                self.deliver(&batch, &key, &payloads)
            }
            SinkCallKind::Close => self.close().map(|()| Metrics::new()),
        }
    }

    /// Processes a batch. One that keeps failing because of its content is put into the
    /// quarantine, so that it does not stop the job.
    fn deliver(&mut self, batch: &BatchId, key: &str, payloads: &[Bytes]) -> DeliveryResult {
        let failure = match self.process(key, payloads) {
            Ok(metrics) => {
                self.failed.remove(key);
                return Ok(metrics);
            }
            Err(failure) => failure,
        };
        if !failure.is_content || self.max_attempts == 0 {
            return Err(failure.message);
        }
        let attempts = self.failed.entry(key.to_owned()).or_default();
        *attempts += 1;
        if *attempts < self.max_attempts {
            return Err(format!("{} (attempt {attempts})", failure.message));
        }
        let stored = self.quarantine.store(batch, key, payloads, &failure.message);
        let folder = stored
            .map_err(|error| format!("{}; the quarantine failed: {error}", failure.message))?;
        self.failed.remove(key);
        tracing::error!(
            %batch, runs = payloads.len(), folder = %folder.display(), reason = failure.message,
            "batch moved to the quarantine: its experiences are not trained on"
        );
        let mut metrics = Metrics::new();
        metrics.set(QUARANTINED, payloads.len() as f64);
        Ok(metrics)
    }

    fn process(&mut self, key: &str, payloads: &[Bytes]) -> Result<Metrics, DeliveryFailure> {
        let report = self.prepared()?.process(key, payloads).map_err(|error| DeliveryFailure {
            message: error_chain(&error),
            is_content: error.is_content(),
        })?;
        let mut metrics = report.metrics;
        let mut count = |name: &str, count: usize| {
            metrics.set(format!("experience_pipeline/{name}"), count as f64);
        };
        count("stored_count", report.stored);
        count("known_count", report.known);
        for (reason, displaced) in report.displaced {
            count(&format!("displaced/{reason}"), displaced);
        }
        self.shared.feedback.lock().add(key, report.selector);
        Ok(metrics)
    }

    fn prepared(&mut self) -> Result<&mut Pipeline, String> {
        let pipeline = match self.pipeline.take() {
            Some(pipeline) => pipeline,
            None => self.open().map_err(|error| error_chain(&error))?,
        };
        let pipeline = self.pipeline.insert(pipeline);
        pipeline.prepare().map_err(|error| error_chain(&error))?;
        Ok(pipeline)
    }

    fn open(&mut self) -> Result<Pipeline, BufferError> {
        let input = match &self.input {
            Some(target) => Some(target.open()?.writer(&self.writer)?),
            None => None,
        };
        let buffer = self.output.open()?;
        let output = self.shared.buffer.get_or_init(|| buffer).writer(&self.writer)?;
        *self.shared.interrupt.lock() = output.interrupt();
        Ok(Pipeline::new(std::mem::take(&mut self.operators), input, output))
    }

    fn close(&mut self) -> Result<(), String> {
        match &mut self.pipeline {
            Some(pipeline) => pipeline.close().map_err(|error| error_chain(&error)),
            None => Ok(()),
        }
    }
}

/// Failure of a delivery.
struct DeliveryFailure {
    message: String,
    /// The same content fails again, in every process.
    is_content: bool,
}

impl From<String> for DeliveryFailure {
    fn from(message: String) -> Self {
        Self { message, is_content: false }
    }
}

/// Pass rates for task selectors, by delivery key.
#[derive(Default)]
struct SelectorFeedback {
    calls: VecDeque<(String, PassRates)>,
    rates: usize,
}

impl SelectorFeedback {
    fn add(&mut self, key: &str, metric: PassRates) {
        // A repeated delivery has the same rates.
        if metric.is_empty()
            || self.calls.iter().rev().take(QUEUE_CAPACITY).any(|(known, _)| known == key)
        {
            return;
        }
        self.rates += metric.len();
        self.calls.push_back((key.to_owned(), metric));
        while self.rates > MAX_RATES
            && self.calls.len() > 1
            && let Some((key, metric)) = self.calls.pop_front()
        {
            self.rates -= metric.len();
            tracing::warn!(key, rates = metric.len(), "selector feedback dropped");
        }
    }

    fn take(&mut self) -> Vec<PassRates> {
        self.rates = 0;
        self.calls.drain(..).map(|(_, metric)| metric).collect()
    }
}
