//! Client of a served buffer.

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

/// Maximum message size, larger than any sample.
const MESSAGE_BYTES: usize = 1 << 30;

/// Wait before the first reconnect; doubled each time.
const RETRY_DELAY: Duration = Duration::from_millis(20);

const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Maximum number of consecutive connections lost right after a request.
const MAX_LOST_CONNECTIONS: u32 = 20;

const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryTimeouts {
    /// Limit of one connection attempt.
    pub connect_timeout: Duration,
    /// Limit of all attempts before [`connect`] or a read fails. A failed read may be repeated
    /// without loss.
    pub reconnect_timeout: Duration,
}

impl Default for RetryTimeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { connect_timeout: seconds(10), reconnect_timeout: seconds(60) }
    }
}

/// Reader of a buffer that [`serve`](super::serve) offers.
///
/// It reconnects and continues the current read: samples in transit come again, acknowledged ones
/// do not. Its calls block and must not be made from async code.
#[derive(Debug)]
pub struct RemoteReader {
    url: String,
    address: Address,
    secret: Secret,
    name: String,
    session: String,
    timeouts: RetryTimeouts,
    /// `None` only in `drop`.
    runtime: Option<Runtime>,
    link: Option<ReaderLink>,
    instance: String,
    position: String,
    /// Number of the last request.
    number: u64,
    /// The last read got a response.
    answered: bool,
}

/// Connects to a buffer at `rollway://HOST:PORT` or `rollway+unix:PATH`.
pub fn connect(
    url: &str,
    secret: Secret,
    name: &str,
    timeouts: RetryTimeouts,
) -> Result<RemoteReader> {
    let unsupported = |message: String| BufferError::unsupported(url, message);
    let address = match url.parse() {
        Ok(ReaderTarget::Remote(address)) => address,
        Ok(ReaderTarget::Local(..)) => {
            return Err(unsupported(
                "it is not the address of a buffer server; pass files and databases to `open`"
                    .to_owned(),
            ));
        }
        Err(error) => return Err(unsupported(error.to_string())),
    };
    let failed = |error: std::io::Error| BufferError::unavailable(url, error.to_string());
    // Its thread keeps the connection alive while the trainer computes.
    let runtime = runtime("rollway-reader-link", 1).map_err(failed)?;
    let mut remote = RemoteReader {
        url: url.to_owned(),
        address,
        secret,
        name: name.to_owned(),
        session: Secret::random().map_err(failed)?.reveal().to_owned(),
        timeouts,
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

    /// Connects, with retries.
    fn reconnect(&mut self) -> Result<()> {
        let until = Instant::now() + self.timeouts.reconnect_timeout;
        let mut wait = RETRY_DELAY;
        loop {
            let hello = proto::Hello {
                name: self.name.clone(),
                session: self.session.clone(),
                position: self.position.clone(),
                instance: self.instance.clone(),
                ..proto::Hello::default()
            };
            let timeout = self.timeouts.connect_timeout;
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
                    return Err(BufferError::unsupported(
                        self.url.clone(),
                        format!("refused: {refusal}"),
                    ));
                }
                Err(error @ ReaderConnectError::Untrusted(_)) => {
                    return Err(BufferError::unsupported(self.url.clone(), error.to_string()));
                }
                Err(error) if Instant::now() + wait >= until => {
                    return Err(BufferError::unavailable(self.url.clone(), error.to_string()));
                }
                Err(error) => {
                    tracing::debug!(url = self.url, %error, "cannot connect to the \
                     buffer, retrying");
                    self.block_on(async { tokio::time::sleep(wait).await })?;
                    wait = (2 * wait).min(MAX_RETRY_DELAY);
                }
            }
        }
    }

    /// Sends a request until there is a response; `request` is called for every attempt.
    fn call(&mut self, request: impl Fn() -> trainer_message::Kind) -> Result<ReaderReply> {
        let mut losses = 0;
        loop {
            let Some(mut link) = self.link.take() else {
                self.reconnect()?;
                continue;
            };
            let sent = Instant::now();
            let answer = self.block_on(async {
                link.send(request()).await?;
                answer(&mut link, self.number).await
            })?;
            let message = match answer {
                Ok(answer) => {
                    self.link = Some(link);
                    return answer.map_err(failed);
                }
                Err(ReaderDisconnected(message)) => message,
            };
            drop(link);
            tracing::debug!(url = self.url, message, "connection to the buffer lost");
            // A server that accepts requests and never responds does not recover by repetition.
            losses = if sent.elapsed() < MAX_RETRY_DELAY { losses + 1 } else { 0 };
            if losses > MAX_LOST_CONNECTIONS {
                let message = format!(
                    "{losses} connections were lost right after a request, the last: {message}"
                );
                return Err(BufferError::unavailable(self.url.clone(), message));
            }
            let wait = RETRY_DELAY * losses;
            self.block_on(async { tokio::time::sleep(wait).await })?;
        }
    }
}

type ReaderReply = (Vec<Sample>, proto::ReadDone);

/// Waits for a complete response.
async fn answer(
    link: &mut ReaderLink,
    number: u64,
) -> std::result::Result<std::result::Result<ReaderReply, proto::RequestFailed>, ReaderDisconnected>
{
    let mut samples = Vec::new();
    loop {
        match link.recv().await? {
            buffer_message::Kind::Samples(message) => take_apart(message, &mut samples)?,
            buffer_message::Kind::Done(done) if done.number == number => {
                return Ok(Ok((samples, done)));
            }
            buffer_message::Kind::Failed(failed) if failed.number == number => {
                return Ok(Err(failed));
            }
            other => return Err(ReaderDisconnected(format!("unexpected message: {other:?}"))),
        }
    }
}

fn take_apart(
    message: proto::Samples,
    samples: &mut Vec<Sample>,
) -> std::result::Result<(), ReaderDisconnected> {
    let mut payloads = message.payloads;
    for head in message.samples {
        let bytes = usize::try_from(head.payload_bytes).unwrap_or(usize::MAX);
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

fn failed(failed: proto::RequestFailed) -> BufferError {
    use proto::FailureCode as Code;
    let code = failed.code();
    let proto::RequestFailed { storage, message, .. } = failed;
    match code {
        Code::Full => BufferError::full(storage, message),
        Code::Damaged => BufferError::damaged(storage, message),
        Code::Unsupported => BufferError::unsupported(storage, message),
        Code::Closed => BufferError::Closed(storage),
        Code::Unavailable | Code::Unspecified => BufferError::unavailable(storage, message),
    }
}

impl ExperienceReader for RemoteReader {
    fn read(&mut self, request: &ReadRequest) -> Result<ReadResult> {
        // A read without response is repeated: the server may have taken samples for it.
        self.number += u64::from(self.answered);
        self.answered = false;
        let (number, start) = (self.number, Instant::now());
        let ReadRequest { count, timeout, min_model_version, keep } = *request;
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
        let answer = self.call(request);
        self.answered = !matches!(answer, Err(BufferError::Unavailable { .. }));
        let (samples, done) = answer?;
        let end = match done.end() {
            proto::ReadEnd::Full => ReadEnd::Full,
            proto::ReadEnd::Finished => ReadEnd::Finished,
            proto::ReadEnd::TimedOut | proto::ReadEnd::Unspecified => ReadEnd::TimedOut,
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
        self.position = self.call(request)?.1.position;
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
