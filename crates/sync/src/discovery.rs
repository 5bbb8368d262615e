//! Finds or becomes the host of the synchronizer.
//!
//! Without an address, the process that holds the lock in the job folder hosts it and writes its
//! address to `synchronizer.json`. The lock ends with the process; its next holder takes over.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollway_base::Secret;
use rollway_base::folder::create_missing_folder;
use rollway_net::BoundListener;
use tokio::net::lookup_host;
use tokio::time::Instant;

use super::address_file::{SyncAddressFile, file};
use super::error::{SyncError, SyncLinkError};
use super::host::SyncServer;
use super::link::SyncLink;
use super::options::SynchronizerOptions;
use super::sync_client::SyncClient;
use super::transport::transport;
use rollway_base::net::advertised_url;

/// Environment variable with the secret, for processes without access to the job folder.
pub const SECRET: &str = "ROLLWAY_SYNCHRONIZER_SECRET";

/// First and longest pause between two attempts.
const RETRY_DELAY: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_millis(300);

/// Time for a peer at the address to accept the secret, whose file may just be written.
const AUTH_TIMEOUT: Duration = Duration::from_secs(3);

enum NotFound {
    /// There may be a host later.
    Yet(String),
    /// An unknown peer has the address.
    Unknown(String),
    Fatal(SyncError),
}

/// Finds or hosts the synchronizer. `lost`: the reason why the last host is not used.
pub(super) async fn find(
    options: &SynchronizerOptions,
    lost: Option<&str>,
    until: Instant,
) -> Result<SyncLink, SyncError> {
    let began = Instant::now();
    let mut pause = RETRY_DELAY;
    loop {
        let message = match attempt(options, lost.is_some()).await {
            Ok(link) => return Ok(link),
            Err(NotFound::Fatal(error)) => return Err(error),
            Err(NotFound::Unknown(message)) if began.elapsed() >= AUTH_TIMEOUT => {
                return Err(SyncError::Address(message));
            }
            Err(NotFound::Yet(message) | NotFound::Unknown(message)) => message,
        };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let message =
                lost.map_or_else(|| message.clone(), |lost| format!("{lost}; then {message}"));
            return Err(SyncError::Unreachable(message));
        }
        tokio::time::sleep(pause.min(left)).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

async fn attempt(options: &SynchronizerOptions, takes_over: bool) -> Result<SyncLink, NotFound> {
    let path = file(&options.job_dir);
    let address_file = SyncAddressFile::read(&path).map_err(NotFound::Fatal)?;
    let known = match &options.secret {
        Some(secret) => Some(secret.clone()),
        None => secret(address_file.as_ref()).map_err(NotFound::Fatal)?,
    };
    match options.address.as_deref() {
        Some(url) if url.contains("://") => join(options, url, known.as_ref()).await,
        Some(address) if options.may_host => match listen(address).await {
            Ok(listener) => host(options, (listener, None), known, (address_file, takes_over)),
            Err(error) if is_elsewhere(&error) => {
                taken(options, address, address_file.as_ref(), known.as_ref()).await
            }
            Err(error) => Err(NotFound::Fatal(SyncError::Address(format!(
                "`synchronizer.address`: cannot listen at {address}: {error}; it is `host:port` \
                 of this machine, or `http://host:port` or `https://host:port#fingerprint` of a \
                 synchronizer that runs already"
            )))),
        },
        Some(address) => {
            join(options, &url_of(address, address_file.as_ref()), known.as_ref()).await
        }
        None => {
            let lock = if options.may_host {
                lock(&options.job_dir).map_err(NotFound::Fatal)?
            } else {
                None
            };
            match (lock, address_file) {
                (Some(lock), address_file) => {
                    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
                    let listener = BoundListener::bind_tcp(address).map_err(|error| {
                        let message =
                            format!("no port of this machine can be listened at: {error}");
                        NotFound::Fatal(SyncError::Address(message))
                    })?;
                    host(options, (listener, Some(lock)), known, (address_file, takes_over))
                }
                (None, Some(address_file)) => {
                    join(options, &address_file.url, known.as_ref()).await
                }
                (None, None) => Err(NotFound::Yet(format!(
                    "no synchronizer of this job has left its address in {}: see whether the job \
                     is running",
                    path.display()
                ))),
            }
        }
    }
}

/// Returns the secret of the environment or the address file.
fn secret(address_file: Option<&SyncAddressFile>) -> Result<Option<Secret>, SyncError> {
    let wrong = |error: &dyn std::fmt::Display| SyncError::Refused(error.to_string());
    if let Some(text) = std::env::var(SECRET).ok().filter(|text| !text.is_empty()) {
        let secret = Secret::chosen(&text).map_err(|error| wrong(&error))?;
        if let Some(weakness) = secret.weakness() {
            tracing::warn!(variable = SECRET, "{weakness}");
        }
        return Ok(Some(secret));
    }
    let known = address_file.map(|address_file| Secret::new(address_file.secret.as_str()));
    known.transpose().map_err(|error| wrong(&error))
}

/// `None`: another process holds the lock.
fn lock(job_dir: &Path) -> Result<Option<File>, SyncError> {
    let path = job_dir.join("synchronizer.lock");
    let open = || {
        create_missing_folder(job_dir)?;
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path)
    };
    let file = open().map_err(|error| SyncError::file(&path, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(SyncError::file(&path, &error)),
    }
}

async fn listen(address: &str) -> io::Result<BoundListener> {
    let mut found = lookup_host(address).await?;
    let none = || io::Error::new(io::ErrorKind::InvalidInput, "it has no address");
    BoundListener::bind_tcp(found.next().ok_or_else(none)?)
}

/// Tells whether another process or machine may have the address.
fn is_elsewhere(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable)
}

/// Hosts the synchronizer and writes its address. The members of the last host are taken over with
/// its file, those of an earlier life of the job are not.
fn host(
    options: &SynchronizerOptions,
    (listener, lock): (BoundListener, Option<File>),
    known: Option<Secret>,
    (mut left, takes_over): (Option<SyncAddressFile>, bool),
) -> Result<SyncLink, NotFound> {
    let fail = |error: io::Error| NotFound::Fatal(SyncError::Address(error.to_string()));
    let secret = known.map_or_else(Secret::random, Ok).map_err(fail)?;
    let identity = listener.identity(&options.tls);
    let identity =
        identity.map_err(|error| NotFound::Fatal(SyncError::Address(error.to_string())))?;
    let url = match &identity {
        None => advertised_url(&format!("http://{}", listener.address())),
        Some(identity) => {
            let url = advertised_url(&format!("https://{}", listener.address()));
            format!("{url}#{}", identity.fingerprint())
        }
    };
    let path = file(&options.job_dir);
    create_missing_folder(&options.job_dir)
        .map_err(|error| NotFound::Fatal(SyncError::file(&options.job_dir, &error)))?;
    let last = left.as_mut().and_then(|left| left.memory.take());
    let memory = transport(options.method).folder(options, last.clone());
    // With another method than before, the last weights may still be there.
    let memory = memory.map_err(NotFound::Fatal)?.or(last);
    let left = left.filter(|_| takes_over);
    let (explorers, trainer) =
        left.map(|address_file| (address_file.explorers, address_file.trainer)).unwrap_or_default();
    let address_file = SyncAddressFile {
        url,
        secret: secret.reveal().to_owned(),
        job: options.job.clone(),
        method: options.method,
        retention: options.retention,
        explorers,
        trainer,
        memory,
    };
    address_file.write(&path).map_err(NotFound::Fatal)?;
    let host = SyncServer::start(options, (listener, identity), (address_file, path), secret, lock);
    Ok(SyncLink::Local(Arc::new(host)))
}

async fn join(
    options: &SynchronizerOptions,
    url: &str,
    secret: Option<&Secret>,
) -> Result<SyncLink, NotFound> {
    let Some(secret) = secret else {
        return Err(NotFound::Yet(format!(
            "the secret of the synchronizer at {url} is missing: it is in {}, or give it in the \
             variable {SECRET}",
            file(&options.job_dir).display()
        )));
    };
    match SyncClient::join(url, secret).await {
        Ok(remote) => {
            let about = remote.about();
            if !options.job.is_empty() && !about.job.is_empty() && about.job != options.job {
                return Err(NotFound::Fatal(SyncError::Address(format!(
                    "the synchronizer at {url} is that of job {:?}, not of {:?}: set \
                     `synchronizer.address` to another port",
                    about.job, options.job
                ))));
            }
            Ok(SyncLink::Remote(Arc::new(remote)))
        }
        Err(SyncLinkError::Unreachable(reason)) => Err(NotFound::Yet(reason)),
        Err(SyncLinkError::Refused(error)) => Err(NotFound::Fatal(error)),
    }
}

/// Returns the URL of `HOST:PORT`: that of the address file, which has the fingerprint, if it names
/// the same port; otherwise that without TLS.
fn url_of(address: &str, left: Option<&SyncAddressFile>) -> String {
    let port = |address: &str| address.rsplit_once(':').map(|(_, port)| port.to_owned());
    let known = left.filter(|left| left.url.split('#').next().and_then(port) == port(address));
    known.map_or_else(|| format!("http://{address}"), |left| left.url.clone())
}

/// Joins the peer that has the address of this process, if it is the synchronizer.
async fn taken(
    options: &SynchronizerOptions,
    address: &str,
    left: Option<&SyncAddressFile>,
    secret: Option<&Secret>,
) -> Result<SyncLink, NotFound> {
    let joined = join(options, &url_of(address, left), secret).await;
    joined.map_err(|not| match not {
        NotFound::Yet(reason) => NotFound::Unknown(format!(
            "`synchronizer.address`: {address} cannot be listened at, and no synchronizer of \
             this job answers there: set it to another port, or leave it out for any that is \
             free ({reason})"
        )),
        not => not,
    })
}
