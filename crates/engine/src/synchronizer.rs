//! Where explorers and the trainer of a job meet: who is there, which weights are the newest, who
//! waits for them.
//!
//! One process of a job hosts the synchronizer (`synchronizer.address`, or the first that comes);
//! the others reach it over HTTP. Every wait has a deadline and a typed outcome.
//!
//! ```text
//! Synchronizer ─► link ─┬─► host: Hub (board + clock), Store (weights), Watch (folder)
//!  (any process)        └─► remote: HTTP ─► routes of the host
//! ```
//!
//! `rollway_core::rendezvous` decides, `hub` waits, `find` says who hosts and takes over from a
//! host that is gone, `folder` publishes files atomically and `watch` sees others do so.

mod find;
pub mod folder;
mod host;
mod hub;
mod link;
mod message;
mod remote;
mod routes;
mod seat;
pub mod watch;
pub mod weights;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rollway_base::Secret;
use tokio::time::Instant;

pub use self::find::SECRET;
use self::link::{Link, Trouble};
pub use self::message::{
    Asked, Location, Member, NewWeights, Published, TrainerState, View, Waited, Want,
};
pub use self::seat::Seat;
use crate::config::{Config, SyncMethod};

/// How long a member who says nothing is believed to be there.
const LEASE: Duration = Duration::from_secs(15);

/// How long a synchronizer that does not answer is looked for, by calls that do not say.
const PATIENCE: Duration = Duration::from_secs(30);

/// How a synchronizer is hosted or found.
#[derive(Clone, Debug)]
pub struct Options {
    /// The job's folder.
    pub job_dir: PathBuf,
    /// The job's name, so that nobody joins another's.
    pub job: String,
    /// `synchronizer.address`.
    pub address: Option<String>,
    /// The way that weights take.
    pub method: SyncMethod,
    /// How long a member who says nothing is believed to be there.
    pub lease: Duration,
    /// How long a synchronizer that does not answer is looked for.
    pub patience: Duration,
    /// Where pushed weights are kept with method `memory`.
    pub memory: PathBuf,
    /// Whether this process may host it.
    pub may_host: bool,
    /// Its secret, for a process that cannot read it in the job's folder.
    pub secret: Option<Secret>,
}

impl Options {
    /// Returns what a checked configuration says.
    pub fn of(config: &Config) -> Self {
        let parts = [&config.project, &config.group, &config.name];
        let job: Vec<&str> =
            parts.into_iter().filter(|it| !it.is_empty()).map(String::as_str).collect();
        let address = config.synchronizer.address.clone();
        Self {
            job: job.join("/"),
            address: address.filter(|address| !address.is_empty()),
            method: config.synchronizer.sync_method,
            ..Self::new(config.job_dir())
        }
    }

    /// Returns the usual options for the folder of a job.
    pub fn new(job_dir: impl Into<PathBuf>) -> Self {
        let job_dir = job_dir.into();
        Self {
            job: String::new(),
            address: None,
            method: SyncMethod::Checkpoint,
            lease: LEASE,
            patience: PATIENCE,
            memory: folder::memory(&job_dir),
            may_host: true,
            secret: None,
            job_dir,
        }
    }
}

/// Why the synchronizer could not be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SyncError {
    /// Its address is none, or is taken.
    #[error("{0}")]
    Address(String),
    /// It does not answer.
    #[error("{0}")]
    Unreachable(String),
    /// It said no.
    #[error("{0}")]
    Refused(String),
    /// Weights that cannot be used.
    #[error("{0}")]
    Weights(String),
    /// A file of its own cannot be read or written.
    #[error("{}: {problem}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// What is the matter.
        problem: String,
    },
}

impl SyncError {
    fn file(path: &Path, error: &dyn std::fmt::Display) -> Self {
        Self::File { path: path.into(), problem: error.to_string() }
    }
}

/// The synchronizer of a job, hosted by this process or another. Clones are the same.
#[derive(Clone, Debug)]
pub struct Synchronizer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: Options,
    file: PathBuf,
    link: Mutex<Link>,
    /// Held by the one who looks for another host.
    looking: tokio::sync::Mutex<()>,
    /// The seat of the trainer, if it is in this process.
    trainer: Mutex<Option<u64>>,
}

impl Synchronizer {
    /// Hosts the synchronizer of a job, or joins it.
    pub async fn open(config: &Config) -> Result<Self, SyncError> {
        Self::open_with(Options::of(config)).await
    }

    /// Hosts or joins one that other options describe.
    pub async fn open_with(options: Options) -> Result<Self, SyncError> {
        let until = Instant::now() + options.patience;
        let link = find::find(&options, None, until).await?;
        let file = find::file(&options.job_dir);
        let (link, trainer) = (Mutex::new(link), Mutex::new(None));
        let looking = tokio::sync::Mutex::new(());
        Ok(Self(Arc::new(Inner { options, file, link, looking, trainer })))
    }

    /// Its address.
    pub fn url(&self) -> String {
        self.link().url().to_owned()
    }

    /// The file that tells other processes of the job its address and its secret.
    pub fn file(&self) -> &Path {
        &self.0.file
    }

    /// The way that weights take.
    pub fn method(&self) -> SyncMethod {
        match self.link() {
            Link::Here(_) => self.0.options.method,
            Link::There(remote) => remote.about().method,
        }
    }

    /// Whether this process hosts it.
    pub fn is_host(&self) -> bool {
        matches!(self.link(), Link::Here(_))
    }

    fn link(&self) -> Link {
        self.0.link.lock().clone()
    }

    /// Asks whoever hosts it. If the host is gone, another is found, or this process becomes it.
    async fn call<T, F>(&self, timeout: Duration, mut ask: impl FnMut(Link) -> F) -> Answer<T>
    where
        F: Future<Output = Result<T, Trouble>>,
    {
        let until = Instant::now() + timeout;
        loop {
            let link = self.link();
            match ask(link.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(Trouble::Refused(error)) => return Err(error),
                Err(Trouble::Gone(why)) => {
                    tracing::debug!(url = link.url(), why, "the synchronizer is gone");
                    self.relink(&link, &why, until).await?;
                }
            }
        }
    }

    /// Finds another host than the one that is gone, or becomes it.
    async fn relink(&self, gone: &Link, why: &str, until: Instant) -> Result<(), SyncError> {
        let _looking = self.0.looking.lock().await;
        if !self.link().is_same(gone) {
            return Ok(());
        }
        let found = find::find(&self.0.options, Some(why), until).await?;
        tracing::info!(url = found.url(), from = gone.url(), "another hosts the synchronizer now");
        *self.0.link.lock() = found;
        Ok(())
    }

    /// Takes the seat of an explorer. Who has the same name was started again, and takes it over.
    pub async fn enter_explorer(&self, name: &str) -> Result<Seat, SyncError> {
        Seat::take(self, rollway_core::rendezvous::Role::Explorer, name).await
    }

    /// Takes the seat of the trainer, of which there is one.
    pub async fn enter_trainer(&self, name: &str) -> Result<Seat, SyncError> {
        Seat::take(self, rollway_core::rendezvous::Role::Trainer, name).await
    }

    /// Waits for weights, as an explorer that has delivered its experiences. A wait that is given
    /// up leaves nothing behind.
    pub async fn wait(&self, want: Want) -> Waited {
        let began = Instant::now();
        loop {
            let waited = began.elapsed();
            let left = Want { timeout: want.timeout.saturating_sub(waited), ..want.clone() };
            let asked = self.call(left.timeout, |link| {
                let left = left.clone();
                async move { link.wait(left, waited).await }
            });
            match asked.await {
                Ok(Some(waited)) => return waited,
                // It asks again, so that a host that is gone is noticed.
                Ok(None) => {}
                Err(error) => return Waited::TimedOut(error.to_string()),
            }
        }
    }

    /// Says how many experiences an explorer has submitted in all; returns how many the others
    /// have, as far as is known.
    pub async fn submitted(&self, explorer: &str, experiences: u64) -> u64 {
        let asked = self.call(self.0.options.patience, |link| async move {
            link.submitted(explorer, experiences).await
        });
        asked.await.unwrap_or_else(|error| {
            tracing::warn!(%error, "nobody knows what other explorers have submitted");
            0
        })
    }

    /// The newest weights; none if there are none, or nobody knows.
    pub async fn newest(&self) -> Option<Published> {
        self.view().await.newest
    }

    /// Publishes weights: they are checked, kept if they are bytes, and everybody is told. The
    /// same version again has no further effect.
    pub async fn publish(&self, version: u64, weights: NewWeights) -> Result<(), SyncError> {
        self.call(self.0.options.patience, |link| {
            let weights = weights.clone();
            async move { link.publish(version, weights).await }
        })
        .await
    }

    /// Tells what the trainer in this process is at. It has a seat.
    pub async fn trainer_state(&self, state: TrainerState) {
        let seat = *self.0.trainer.lock();
        let Some(seat) = seat else { return };
        let told = self.call(self.0.options.patience, |link| {
            let state = state.clone();
            async move { link.trainer(seat, state).await }
        });
        match told.await {
            Ok(true) => {}
            Ok(false) => tracing::debug!("the trainer's seat is not known; its next beat enters"),
            Err(error) => tracing::warn!(%error, "cannot tell what the trainer is at"),
        }
    }

    /// Waits until those who wait for weights are others than `since`, or time is up.
    pub async fn asked(&self, since: Option<Asked>, timeout: Duration) -> Result<Asked, SyncError> {
        let until = Instant::now() + timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let patience = left.max(self.0.options.patience);
            let asked = self.call(patience, |link| async move { link.asked(since, left).await });
            let asked = asked.await?;
            if since != Some(asked) || Instant::now() >= until {
                return Ok(asked);
            }
        }
    }

    /// Waits until somebody demands weights that those of version `since` would satisfy: the
    /// trainer's step. False: time is up.
    pub async fn demanded(&self, since: u64, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        let mut seen = None;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(asked) = self.asked(seen, left).await else { return false };
            if asked.wanted.is_some_and(|wanted| wanted <= since) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            seen = Some(asked);
        }
    }

    /// Waits until all explorers that ever came have left for good. False: time is up.
    pub async fn explorers_left(&self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let patience = left.max(self.0.options.patience);
            let asked = self.call(patience, |link| async move { link.explorers_left(left).await });
            match asked.await {
                Ok(true) => return true,
                Ok(false) if Instant::now() < until => {}
                Ok(false) | Err(_) => return false,
            }
        }
    }

    /// Everybody, and what they are at; empty if nobody answers.
    pub async fn view(&self) -> View {
        let asked = self.call(self.0.options.patience, |link| async move { link.view().await });
        asked.await.unwrap_or_default()
    }
}

type Answer<T> = Result<T, SyncError>;
