//! Serves a buffer to other processes and machines.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use rollway_base::tls::TlsOptions;
use rollway_base::{Address, Secret};
use rollway_protocol::reader::proto::{self, buffer_message, trainer_message};
use rollway_protocol::reader::{
    ReaderConnection, ReaderLimits, ReaderListener, ReplySender, SamplePart, TrainerDisconnected,
};
use rollway_protocol::worker_server::BindError;
use rollway_protocol::{ConnectRefusal, RefusalCode};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use super::group::ReaderGroup;
use super::open::ReaderTarget;
use super::runtime;
use super::session::ReaderSession;
use crate::buffer::{Buffer, BufferError, ReadEnd, ReadResult};

/// Approximate size of a message of samples.
const CHUNK: usize = 1 << 20;

/// Largest sample: the message limit of trainers, with room for the rest of the message.
const SAMPLE: usize = (1 << 30) - CHUNK;

const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct ReaderServerOptions {
    /// A Unix socket is accessible to this user only.
    pub address: Address,
    /// Encryption of a TCP address. Without it only the secret protects it, which is never sent.
    pub tls: TlsOptions,
    /// `None`: random.
    pub secret: Option<Secret>,
    pub limits: ReaderLimits,
    /// Time for which unacknowledged samples of a lost connection wait for its return before other
    /// readers of its name get them.
    pub grace: Duration,
    /// Maximum unacknowledged bytes of a trainer, without the last response.
    pub held_bytes: usize,
    /// Maximum number of reader names.
    pub names: usize,
    /// Maximum number of samples per read.
    pub count: u64,
}

impl Default for ReaderServerOptions {
    fn default() -> Self {
        Self {
            address: Address::loopback(),
            tls: TlsOptions::off(),
            secret: None,
            limits: ReaderLimits::default(),
            grace: Duration::from_secs(10),
            held_bytes: 1 << 30,
            names: 256,
            count: 1 << 16,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ReaderServerError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error("cannot serve the buffer: {0}")]
    Io(#[from] io::Error),
}

/// A served buffer. Dropping it disconnects every trainer and waits until all reads end.
#[derive(Debug)]
pub struct ReaderServer {
    server: Option<ReaderListener>,
    secret: Secret,
    address: Address,
    runtime: Option<Runtime>,
    shared: Arc<ReaderServerShared>,
}

/// Starts to serve a buffer. Blocks until the address is bound.
pub fn serve(
    buffer: Arc<dyn Buffer>,
    options: ReaderServerOptions,
) -> Result<ReaderServer, ReaderServerError> {
    let secret = match &options.secret {
        Some(secret) => secret.clone(),
        None => Secret::random()?,
    };
    let runtime = runtime("rollway-reader-server", 2)?;
    let bound =
        ReaderListener::bind(&options.address, secret.clone(), &options.tls, &options.limits);
    let (server, mut arrivals) = runtime.block_on(bound)?;
    let address = server.address().clone();
    let shared = Arc::new(ReaderServerShared {
        buffer,
        options,
        groups: Mutex::default(),
        threads: Mutex::default(),
        stop: CancellationToken::new(),
        instance: Secret::random()?.reveal().to_owned(),
    });
    let taking = Arc::clone(&shared);
    runtime.spawn(async move {
        while let Some(arrival) = arrivals.next().await {
            taking.accept(arrival);
        }
    });
    Ok(ReaderServer { server: Some(server), secret, address, runtime: Some(runtime), shared })
}

impl ReaderServer {
    /// Returns the URL for trainers: `rollway://HOST:PORT`, `rollway+unix:PATH`, or
    /// `rollway+tls://HOST:PORT#FINGERPRINT`.
    pub fn url(&self) -> String {
        ReaderTarget::Remote(self.address.clone()).to_string()
    }

    /// Returns the bound address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the secret for trainers.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Returns the non-zero counts of refusals by reason.
    pub fn refused(&self) -> Vec<(RefusalCode, u64)> {
        self.server.as_ref().map(ReaderListener::refused).unwrap_or_default()
    }
}

impl Drop for ReaderServer {
    fn drop(&mut self) {
        self.shared.stop.cancel();
        self.server = None;
        let threads = std::mem::take(&mut *self.shared.threads.lock());
        for thread in threads {
            let _ = thread.join();
        }
        self.shared.groups.lock().clear();
        if let Some(runtime) = self.runtime.take() {
            // In its own thread, because this one may run async code. Afterwards no task holds the
            // buffer.
            let ending = thread::spawn(move || runtime.shutdown_timeout(SHUTDOWN_TIMEOUT));
            let _ = ending.join();
        }
    }
}

struct ReaderServerShared {
    buffer: Arc<dyn Buffer>,
    options: ReaderServerOptions,
    groups: Mutex<HashMap<String, Arc<ReaderGroup>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    stop: CancellationToken,
    /// Distinguishes this server from its predecessors.
    instance: String,
}

impl std::fmt::Debug for ReaderServerShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReaderServerShared").field("options", &self.options).finish_non_exhaustive()
    }
}

impl ReaderServerShared {
    /// Starts a thread for a trainer: buffers block.
    fn accept(self: &Arc<Self>, arrival: ReaderConnection) {
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        if self.stop.is_cancelled() {
            return;
        }
        let shared = Arc::clone(self);
        let name = "rollway-reader".to_owned();
        match thread::Builder::new().name(name).spawn(move || shared.serve(arrival)) {
            Ok(thread) => threads.push(thread),
            Err(error) => tracing::error!(%error, "cannot start a thread for a trainer"),
        }
    }

    fn group(&self, name: &str) -> Result<Arc<ReaderGroup>, ConnectRefusal> {
        let mut groups = self.groups.lock();
        if let Some(group) = groups.get(name) {
            return Ok(Arc::clone(group));
        }
        if groups.len() >= self.options.names {
            let message = format!("the limit of {} reader names is reached", groups.len());
            return Err(ConnectRefusal::new(RefusalCode::NotWanted, message));
        }
        Ok(Arc::clone(groups.entry(name.to_owned()).or_default()))
    }

    /// Serves one trainer until it disconnects.
    fn serve(&self, arrival: ReaderConnection) {
        let ReaderConnection { hello, mut requests, replies, disconnected } = arrival;
        let attached = self.group(&hello.name).and_then(|group| {
            let known = hello.position.is_empty() || hello.instance == self.instance;
            let resume = (!known).then_some(hello.position.as_str());
            let core = group.attach(&*self.buffer, &hello, resume, &disconnected);
            let core = core.map_err(|error| {
                let unavailable = matches!(error, BufferError::Unavailable { .. });
                let code = if unavailable { RefusalCode::Other } else { RefusalCode::NotWanted };
                ConnectRefusal::new(code, error.to_string())
            })?;
            Ok((group, core))
        });
        let (group, mut core) = match attached {
            Ok(attached) => attached,
            Err(refusal) => return replies.refuse(&refusal),
        };
        let position = group.position(&core.session);
        let instance = self.instance.clone();
        let welcome = proto::Welcome { version: 1, position, instance };
        let welcome = buffer_message::Kind::Welcome(welcome);
        let mut polite = false;
        if replies.send(welcome).is_ok() {
            while let Some(request) = requests.blocking_recv() {
                if let trainer_message::Kind::Goodbye(_) = request {
                    polite = true;
                    break;
                }
                if self.answer(&group, &mut core, &request, &replies, &disconnected).is_err() {
                    break;
                }
            }
        }
        let grace = if polite { Duration::ZERO } else { self.options.grace };
        group.detach(core, grace);
    }

    fn answer(
        &self,
        group: &ReaderGroup,
        core: &mut ReaderSession,
        request: &trainer_message::Kind,
        replies: &ReplySender,
        disconnected: &CancellationToken,
    ) -> Result<(), TrainerDisconnected> {
        let (number, done) = match request {
            trainer_message::Kind::Read(read) if read.count > self.options.count => {
                let most = self.options.count;
                let message = format!("{} samples at once are too many ({most})", read.count);
                let storage = "the reader".to_owned();
                (read.number, Err(BufferError::unsupported(storage, message)))
            }
            trainer_message::Kind::Read(read) => {
                let is_cancelled = || disconnected.is_cancelled() || self.stop.is_cancelled();
                let taken = core.read(group, read, self.options.held_bytes, &is_cancelled);
                (read.number, taken)
            }
            trainer_message::Kind::Seek(seek) => {
                let nothing = ReadResult { samples: Vec::new(), stale: 0, end: ReadEnd::Full };
                (seek.number, core.seek(group, &seek.position).map(|()| nothing))
            }
            trainer_message::Kind::Hello(_)
            | trainer_message::Kind::Proof(_)
            | trainer_message::Kind::Goodbye(_) => {
                return Err(TrainerDisconnected);
            }
        };
        match done.and_then(deliverable) {
            Ok(taken) => {
                let done = proto::ReadDone {
                    number,
                    stale: taken.stale as u64,
                    end: end(taken.end).into(),
                    position: group.position(&core.session),
                };
                send_samples(replies, taken)?;
                replies.send(buffer_message::Kind::Done(done))
            }
            Err(error) => replies.send(buffer_message::Kind::Failed(failed(number, error))),
        }
    }
}

/// Refuses samples larger than a message.
fn deliverable(taken: ReadResult) -> Result<ReadResult, BufferError> {
    match taken.samples.iter().find(|sample| sample.payload.len() > SAMPLE) {
        None => Ok(taken),
        Some(sample) => Err(BufferError::unsupported(
            "the reader",
            format!(
                "{} has {} bytes, too many for a message ({SAMPLE}); read it where the buffer is",
                sample.id,
                sample.payload.len()
            ),
        )),
    }
}

fn send_samples(replies: &ReplySender, taken: ReadResult) -> Result<(), TrainerDisconnected> {
    let (mut parts, mut bytes) = (Vec::new(), 0);
    for sample in taken.samples {
        if !parts.is_empty() && bytes + sample.payload.len() > CHUNK {
            replies.samples(std::mem::take(&mut parts))?;
            bytes = 0;
        }
        bytes += sample.payload.len();
        let head = proto::Sample {
            id: sample.id.to_string(),
            model_version: sample.model_version,
            reward: sample.reward,
            payload_bytes: sample.payload.len() as u64,
        };
        parts.push(SamplePart { head, payload: sample.payload });
    }
    if parts.is_empty() { Ok(()) } else { replies.samples(parts) }
}

fn end(end: ReadEnd) -> proto::ReadEnd {
    match end {
        ReadEnd::Full => proto::ReadEnd::Full,
        ReadEnd::TimedOut => proto::ReadEnd::TimedOut,
        ReadEnd::Finished => proto::ReadEnd::Finished,
    }
}

fn failed(number: u64, error: BufferError) -> proto::RequestFailed {
    use proto::FailureCode as Code;
    let (code, storage, message) = match error {
        BufferError::Unavailable { storage, message } => (Code::Unavailable, storage, message),
        BufferError::Full { storage, message } => (Code::Full, storage, message),
        BufferError::Damaged { storage, message } => (Code::Damaged, storage, message),
        BufferError::Unsupported { storage, message }
        | BufferError::Content { storage, message } => (Code::Unsupported, storage, message),
        BufferError::Closed(storage) => (Code::Closed, storage, String::new()),
        BufferError::Payload(error) => (Code::Damaged, "the buffer".to_owned(), error.to_string()),
    };
    proto::RequestFailed { number, code: code.into(), storage, message }
}
