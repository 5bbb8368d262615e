//! The sink of a job: the experience pipeline, and the buffer behind it.
//!
//! The pipeline blocks, on disks, servers and users' code, so that it has a thread of its own. That
//! takes one call after another, in the order in which they came.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::thread;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use rollway_base::error_chain;
use rollway_config::Config;
use rollway_core::metrics::{Metrics, PassRates};
use rollway_core::{BatchId, BatchKey};
use rollway_data::buffer::{Buffer, BufferError, ExperienceWriter};
use rollway_data::pipeline::{Operator, OperatorRegistry, Pipeline};
use tokio::sync::{mpsc, oneshot};

use super::buffer_target::BufferTarget;
use super::{BatchDelivery, DeliveryResult, Sink, SinkError, delivery_key, operators};

/// How many calls wait for the thread before the next one waits for room among them.
const QUEUE_CAPACITY: usize = 64;

/// How many pass rates are kept for somebody to take.
const MAX_RATES: usize = 1 << 20;

/// Sends experiences through the operators of a configuration and into its buffer.
///
/// Nothing is opened before [`prepare`](Self::prepare) or the first call, whichever comes first;
/// what does not open is tried again with the next. Dropping the sink closes it.
pub struct PipelineSink {
    calls: mpsc::Sender<Call>,
    shared: Arc<PipelineShared>,
}

/// What the thread shares with those who call.
#[derive(Default)]
struct PipelineShared {
    /// Kept beyond the end of the pipeline, for those who read what is left.
    buffer: OnceLock<Arc<dyn Buffer>>,
    feedback: Mutex<SelectorFeedback>,
}

/// Something for the thread to do, and who wants to know.
struct Call {
    what: SinkCallKind,
    reply: oneshot::Sender<DeliveryResult>,
}

enum SinkCallKind {
    Prepare,
    Deliver { batch: BatchId, key: BatchKey, payloads: Vec<Bytes> },
    Process { payloads: Vec<Bytes> },
    Step { key: String, payloads: Vec<Bytes> },
    Close,
}

impl PipelineSink {
    /// Makes a sink. Everything in the configuration that cannot be is refused here; nothing is
    /// opened yet.
    pub fn new(config: &Config, registry: &OperatorRegistry) -> Result<Self, SinkError> {
        let shared = Arc::new(PipelineShared::default());
        let work = SinkThread {
            job: config.job(),
            writer: config.explorer.name.clone(),
            input: BufferTarget::of_input(config)?,
            output: BufferTarget::of_experiences(config)?,
            operators: operators::operators(config, registry)?,
            pipeline: None,
            shared: Arc::clone(&shared),
        };
        let (calls, inbox) = mpsc::channel(QUEUE_CAPACITY);
        thread::Builder::new()
            .name("rollway-pipeline".to_owned())
            .spawn(move || work.run(inbox))
            .map_err(|error| SinkError::Thread(error.to_string()))?;
        Ok(Self { calls, shared })
    }

    /// Opens the buffer and gets the operators ready. Does nothing if they are.
    pub async fn prepare(&self) -> Result<(), String> {
        self.ask(SinkCallKind::Prepare).await.map(drop)
    }

    /// Closes the operators, and the buffer as far as this writer goes: when all writers have
    /// closed, readers come to the end of data. What was asked for before is done first.
    pub async fn close(&self) -> Result<(), String> {
        self.ask(SinkCallKind::Close).await.map(drop)
    }

    /// Returns the buffer, once it is open.
    pub fn buffer(&self) -> Option<Arc<dyn Buffer>> {
        self.shared.buffer.get().cloned()
    }

    /// Returns what the selectors of tasks should learn since the last time: one entry for every
    /// call that brought something, in order. Not kept for long: of what nobody takes, the oldest
    /// goes first.
    pub fn take_feedback(&self) -> Vec<PassRates> {
        self.shared.feedback().take()
    }

    /// Stores the experiences of a step of mode `serve`. The key names it among the steps of all
    /// jobs: the same one again has no further effect.
    pub async fn step(&self, key: String, payloads: Vec<Bytes>) -> DeliveryResult {
        self.ask(SinkCallKind::Step { key, payloads }).await
    }

    async fn ask(&self, what: SinkCallKind) -> DeliveryResult {
        let gone = || "the thread of the experience pipeline is gone".to_owned();
        let (reply, answer) = oneshot::channel();
        self.calls.send(Call { what, reply }).await.map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }
}

impl Sink for PipelineSink {
    fn deliver(
        &self,
        parcel: BatchDelivery,
    ) -> Pin<Box<dyn Future<Output = DeliveryResult> + Send + '_>> {
        let BatchDelivery { batch, key, results } = parcel;
        let payloads: Vec<Bytes> = results.into_iter().flat_map(|result| result.payloads).collect();
        Box::pin(async move {
            if payloads.is_empty() {
                return Ok(Metrics::new());
            }
            self.ask(SinkCallKind::Deliver { batch, key, payloads }).await
        })
    }

    fn process(
        &self,
        payloads: Vec<Bytes>,
    ) -> Pin<Box<dyn Future<Output = DeliveryResult> + Send + '_>> {
        Box::pin(self.ask(SinkCallKind::Process { payloads }))
    }
}

impl fmt::Debug for PipelineSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = QUEUE_CAPACITY - self.calls.capacity();
        f.debug_struct("PipelineSink").field("waiting", &waiting).finish_non_exhaustive()
    }
}

impl PipelineShared {
    fn feedback(&self) -> MutexGuard<'_, SelectorFeedback> {
        self.feedback.lock()
    }
}

/// What the thread has.
struct SinkThread {
    job: String,
    writer: String,
    input: Option<BufferTarget>,
    output: BufferTarget,
    /// Until there is a pipeline.
    operators: Vec<Box<dyn Operator>>,
    pipeline: Option<Pipeline>,
    shared: Arc<PipelineShared>,
}

impl SinkThread {
    fn run(mut self, mut inbox: mpsc::Receiver<Call>) {
        while let Some(Call { what, reply }) = inbox.blocking_recv() {
            // Who has stopped waiting was told nothing, and asks again.
            if reply.is_closed() {
                continue;
            }
            let done = catch_unwind(AssertUnwindSafe(|| self.perform(what)));
            let panicked = |panic: Box<dyn Any + Send>| {
                let words = panic.downcast_ref::<&str>().copied();
                let words = words.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
                Err(format!("the pipeline panicked: {}", words.unwrap_or("no message")))
            };
            let _ = reply.send(done.unwrap_or_else(panicked));
        }
        if let Err(message) = self.close() {
            tracing::error!(message, "the experience pipeline did not close");
        }
    }

    fn perform(&mut self, what: SinkCallKind) -> DeliveryResult {
        match what {
            SinkCallKind::Prepare => self.prepared().map(|_| Metrics::new()),
            SinkCallKind::Deliver { batch, key, payloads } => {
                let key = delivery_key::of_batch(&self.job, &batch, key, &payloads);
                self.process(&key, &payloads)
            }
            SinkCallKind::Process { payloads } => {
                let key = delivery_key::of_payloads(&self.job, &payloads);
                self.process(&key, &payloads)
            }
            SinkCallKind::Step { key, payloads } => {
                let key = delivery_key::of_step(&self.job, &key);
                self.process(&key, &payloads)
            }
            SinkCallKind::Close => self.close().map(|()| Metrics::new()),
        }
    }

    fn process(&mut self, key: &str, payloads: &[Bytes]) -> DeliveryResult {
        let report =
            self.prepared()?.process(key, payloads).map_err(|error| error_chain(&error))?;
        let mut metrics = report.metrics;
        let mut count = |name: &str, count: usize| {
            metrics.set(format!("experience_pipeline/{name}"), count as f64);
        };
        count("stored_count", report.stored);
        count("known_count", report.known);
        for (reason, displaced) in report.displaced {
            count(&format!("displaced/{reason}"), displaced);
        }
        self.shared.feedback().add(key, report.selector);
        Ok(metrics)
    }

    fn prepared(&mut self) -> Result<&mut Pipeline, String> {
        let pipeline = match self.pipeline.take() {
            Some(pipeline) => pipeline,
            None => self.open().map_err(|error| error_chain(&error))?,
        };
        let pipeline = self.pipeline.insert(pipeline);
        // Of a closed one it is the call itself that says so.
        match pipeline.prepare() {
            Ok(()) => Ok(pipeline),
            Err(error) => Err(error_chain(&error)),
        }
    }

    fn open(&mut self) -> Result<Pipeline, BufferError> {
        let input = match &self.input {
            Some(place) => Some(place.open()?.writer(&self.writer)?),
            None => None,
        };
        let output = self.writer_of_output()?;
        Ok(Pipeline::new(std::mem::take(&mut self.operators), input, output))
    }

    fn writer_of_output(&self) -> Result<Box<dyn ExperienceWriter>, BufferError> {
        let buffer = self.output.open()?;
        self.shared.buffer.get_or_init(|| buffer).writer(&self.writer)
    }

    fn close(&mut self) -> Result<(), String> {
        match &mut self.pipeline {
            Some(pipeline) => pipeline.close().map_err(|error| error_chain(&error)),
            None => Ok(()),
        }
    }
}

/// Pass rates for the selectors of tasks, by the key of the call that brought them.
#[derive(Default)]
struct SelectorFeedback {
    calls: VecDeque<(String, PassRates)>,
    rates: usize,
}

impl SelectorFeedback {
    fn add(&mut self, key: &str, metric: PassRates) {
        // A parcel that came twice went as well as it did the first time.
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
            tracing::warn!(key, rates = metric.len(), "nobody took the feedback for selectors");
        }
    }

    fn take(&mut self) -> Vec<PassRates> {
        self.rates = 0;
        self.calls.drain(..).map(|(_, metric)| metric).collect()
    }
}
