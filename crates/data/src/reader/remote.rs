//! The trainer's end of a buffer that is elsewhere.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rollway_base::{Address, Secret};
use rollway_protocol::reader::proto::{self, buffer_message, trainer_message};
use rollway_protocol::reader::{ReaderConnectError, ReaderDisconnected, ReaderLink};
use tokio::runtime::Runtime;

use super::open::ReaderTarget;
use super::runtime;
use crate::Sample;
use crate::buffer::{BufferError, ExperienceReader, ReadEnd, ReadRequest, ReadResult, Result};

/// The largest message that is accepted: larger than any sample should be.
const MESSAGE_BYTES: usize = 1 << 30;

/// How long to wait before the first try to connect again; each further wait is twice as long.
const RETRY_DELAY: Duration = Duration::from_millis(20);

/// The longest wait between two tries.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);

/// So many connections may be lost one after the other as soon as something is asked.
const MAX_LOST_CONNECTIONS: u32 = 20;

/// How long leaving may take.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// How long to try when nobody answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryTimeouts {
    /// How long one try to connect may take.
    pub connect_timeout: Duration,
    /// How long to go on trying, before [`connect`] or a read fails. A read that failed so may be
    /// repeated, and loses nothing.
    pub reconnect_timeout: Duration,
}

impl Default for RetryTimeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { connect_timeout: seconds(10), reconnect_timeout: seconds(60) }
    }
}

/// A reader of a buffer that [`serve`](super::serve) offers.
///
/// A connection that is cut is made anew, and the read that was under way goes on: what was on its
/// way comes again, what was acknowledged does not. Its calls block, and must not be made from a
/// thread that runs asynchronous code.
#[derive(Debug)]
pub struct RemoteReader {
    url: String,
    address: Address,
    secret: Secret,
    name: String,
    session: String,
    patience: RetryTimeouts,
    /// Always there, but in `drop`.
    runtime: Option<Runtime>,
    link: Option<ReaderLink>,
    instance: String,
    position: String,
    /// The number of the last request.
    number: u64,
    /// Whether the last read got an answer.
    answered: bool,
}

/// Connects to a buffer that is offered at `rollway://HOST:PORT` or `rollway+unix:PATH`.
pub fn connect(
    url: &str,
    secret: Secret,
    name: &str,
    patience: RetryTimeouts,
) -> Result<RemoteReader> {
    let unsupported = |message: String| BufferError::Unsupported { storage: url.into(), message };
    let address = match url.parse() {
        Ok(ReaderTarget::Remote(address)) => address,
        Ok(ReaderTarget::Local(_)) => {
            return Err(unsupported("it is no address of a server; use `open`".to_owned()));
        }
        Err(error) => return Err(unsupported(error.to_string())),
    };
    let failed = |error: std::io::Error| BufferError::Unavailable {
        storage: url.into(),
        message: error.to_string(),
    };
    // A thread of its own keeps the connection alive while the trainer trains.
    let runtime = runtime("rollway-reader-link", 1).map_err(failed)?;
    let mut remote = RemoteReader {
        url: url.to_owned(),
        address,
        secret,
        name: name.to_owned(),
        session: Secret::random().map_err(failed)?.reveal().to_owned(),
        patience,
        runtime: Some(runtime),
        link: None,
        instance: String::new(),
        position: String::new(),
        number: 0,
        answered: true,
    };
    remote.reconnect()?;
    Ok(remote)
}

impl RemoteReader {
    fn block_on<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        match &self.runtime {
            Some(runtime) => Ok(runtime.block_on(future)),
            None => Err(BufferError::Closed(self.url.clone())),
        }
    }

    /// Connects, and tries again as long as it makes sense.
    fn reconnect(&mut self) -> Result<()> {
        let until = Instant::now() + self.patience.reconnect_timeout;
        let mut wait = RETRY_DELAY;
        loop {
            let hello = proto::Hello {
                name: self.name.clone(),
                session: self.session.clone(),
                position: self.position.clone(),
                instance: self.instance.clone(),
                ..proto::Hello::default()
            };
            let timeout = self.patience.connect_timeout;
            let connecting =
                ReaderLink::connect(&self.address, &self.secret, hello, timeout, MESSAGE_BYTES);
            match self.block_on(connecting)? {
                Ok((link, welcome)) => {
                    self.link = Some(link);
                    self.instance = welcome.instance;
                    if self.position.is_empty() {
                        self.position = welcome.position;
                    }
                    return Ok(());
                }
                Err(ReaderConnectError::Refused(refusal)) if refusal.code.is_final() => {
                    return Err(BufferError::Unsupported {
                        storage: self.url.clone(),
                        message: format!("refused: {refusal}"),
                    });
                }
                Err(error) if Instant::now() + wait >= until => {
                    return Err(BufferError::Unavailable {
                        storage: self.url.clone(),
                        message: error.to_string(),
                    });
                }
                Err(error) => {
                    tracing::debug!(url = self.url, %error, "no connection to the buffer");
                    self.block_on(async { tokio::time::sleep(wait).await })?;
                    wait = (2 * wait).min(MAX_RETRY_DELAY);
                }
            }
        }
    }

    /// Asks until there is an answer; `request` is called for every try.
    fn ask(&mut self, request: impl Fn() -> trainer_message::Kind) -> Result<ReaderReply> {
        let mut losses = 0;
        loop {
            let Some(mut link) = self.link.take() else {
                self.reconnect()?;
                continue;
            };
            let asked = Instant::now();
            let answer = self.block_on(async {
                link.send(request()).await?;
                answer(&mut link, self.number).await
            })?;
            let words = match answer {
                Ok(answer) => {
                    self.link = Some(link);
                    return answer.map_err(failed);
                }
                Err(ReaderDisconnected(words)) => words,
            };
            drop(link);
            tracing::debug!(url = self.url, words, "the connection was lost");
            // Who always takes the question and never answers does not get better by asking.
            losses = if asked.elapsed() < MAX_RETRY_DELAY { losses + 1 } else { 0 };
            if losses > MAX_LOST_CONNECTIONS {
                let message = format!("{losses} connections were lost at once, the last: {words}");
                return Err(BufferError::Unavailable { storage: self.url.clone(), message });
            }
            let wait = RETRY_DELAY * losses;
            self.block_on(async { tokio::time::sleep(wait).await })?;
        }
    }
}

struct ReaderReply {
    samples: Vec<Sample>,
    done: proto::Done,
}

/// Waits for a whole answer.
async fn answer(
    link: &mut ReaderLink,
    number: u64,
) -> std::result::Result<std::result::Result<ReaderReply, proto::Failed>, ReaderDisconnected> {
    let mut samples = Vec::new();
    loop {
        match link.recv().await? {
            buffer_message::Kind::Samples(message) => take_apart(message, &mut samples)?,
            buffer_message::Kind::Done(done) if done.number == number => {
                return Ok(Ok(ReaderReply { samples, done }));
            }
            buffer_message::Kind::Failed(failed) if failed.number == number => {
                return Ok(Err(failed));
            }
            other => return Err(ReaderDisconnected(format!("this was not asked for: {other:?}"))),
        }
    }
}

fn take_apart(
    message: proto::Samples,
    samples: &mut Vec<Sample>,
) -> std::result::Result<(), ReaderDisconnected> {
    let mut payloads = message.payloads;
    for head in message.samples {
        let bytes = usize::try_from(head.bytes).unwrap_or(usize::MAX);
        if bytes > payloads.len() {
            return Err(ReaderDisconnected(format!("the payload of {} is cut short", head.id)));
        }
        samples.push(Sample {
            id: Arc::from(head.id),
            model_version: head.model_version,
            reward: head.reward,
            payload: payloads.split_to(bytes),
        });
    }
    Ok(())
}

fn failed(failed: proto::Failed) -> BufferError {
    use proto::FailureCode as Code;
    let code = failed.code();
    let proto::Failed { storage, message, .. } = failed;
    match code {
        Code::Full => BufferError::Full { storage, message },
        Code::Damaged => BufferError::Damaged { storage, message },
        Code::Unsupported => BufferError::Unsupported { storage, message },
        Code::Closed => BufferError::Closed(storage),
        Code::Unavailable | Code::Unspecified => BufferError::Unavailable { storage, message },
    }
}

impl ExperienceReader for RemoteReader {
    fn read(&mut self, ask: &ReadRequest) -> Result<ReadResult> {
        // A read that got no answer is asked for again: the server may have taken samples for it.
        self.number += u64::from(self.answered);
        self.answered = false;
        let (number, start) = (self.number, Instant::now());
        let ReadRequest { count, timeout, min_model_version, keep } = *ask;
        let request = || {
            let left = timeout.saturating_sub(start.elapsed());
            trainer_message::Kind::Read(proto::Read {
                number,
                count: count as u64,
                timeout_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
                min_model_version,
                keep,
            })
        };
        let answer = self.ask(request);
        self.answered = !matches!(answer, Err(BufferError::Unavailable { .. }));
        let ReaderReply { samples, done } = answer?;
        let end = match done.end() {
            proto::End::Full => ReadEnd::Full,
            proto::End::Finished => ReadEnd::Finished,
            proto::End::TimedOut | proto::End::Unspecified => ReadEnd::TimedOut,
        };
        self.position = done.position;
        Ok(ReadResult { samples, stale: usize::try_from(done.stale).unwrap_or(usize::MAX), end })
    }

    fn position(&self) -> String {
        self.position.clone()
    }

    fn seek(&mut self, position: &str) -> Result<()> {
        self.number += 1;
        self.answered = true;
        let number = self.number;
        let request =
            || trainer_message::Kind::Seek(proto::Seek { number, position: position.to_owned() });
        self.position = self.ask(request)?.done.position;
        Ok(())
    }
}

impl Drop for RemoteReader {
    fn drop(&mut self) {
        let (Some(runtime), link) = (self.runtime.take(), self.link.take()) else { return };
        if let Some(link) = link {
            let leaving = async { tokio::time::timeout(SHUTDOWN_TIMEOUT, link.leave()).await };
            let _ = runtime.block_on(leaving);
        }
        runtime.shutdown_background();
    }
}
