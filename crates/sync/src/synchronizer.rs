//! The synchronizer for explorers and trainers: sends requests to the host, and finds or becomes
//! another host when it is gone.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rollway_config::{Config, SyncMethod};
use tokio::time::Instant;

use super::error::{SyncError, SyncLinkError};
use super::link::SyncLink;
use super::messages::{
    NewWeightsMessage, PublishedWeights, SyncStatus, TrainMetrics, TrainMetricsPage,
    TrainerProgress, WaitStatus, WeightRequest, WeightWaitResult,
};
use super::options::SynchronizerOptions;
use super::{address_file, discovery};

/// The synchronizer of a job, hosted by this process or another. Cheap to clone; clones share
/// state.
#[derive(Clone, Debug)]
pub struct Synchronizer(Arc<SynchronizerShared>);

#[derive(Debug)]
struct SynchronizerShared {
    options: SynchronizerOptions,
    file: PathBuf,
    link: Mutex<SyncLink>,
    /// Held while looking for another host.
    looking: tokio::sync::Mutex<()>,
    /// Member id of the trainer, if it is in this process.
    trainer: Mutex<Option<u64>>,
}

impl Synchronizer {
    /// Hosts or joins the synchronizer of a job.
    pub async fn open(config: &Config) -> Result<Self, SyncError> {
        Self::open_with(SynchronizerOptions::of(config)).await
    }

    /// Same as [`open`](Self::open), with other options.
    pub async fn open_with(options: SynchronizerOptions) -> Result<Self, SyncError> {
        let until = Instant::now() + options.patience;
        let link = discovery::find(&options, None, until).await?;
        let file = address_file::file(&options.job_dir);
        let (link, trainer) = (Mutex::new(link), Mutex::new(None));
        let looking = tokio::sync::Mutex::new(());
        Ok(Self(Arc::new(SynchronizerShared { options, file, link, looking, trainer })))
    }

    pub fn url(&self) -> String {
        self.link().url().to_owned()
    }

    /// Returns the path of `synchronizer.json`.
    pub fn file(&self) -> &Path {
        &self.0.file
    }

    pub fn method(&self) -> SyncMethod {
        match self.link() {
            SyncLink::Here(_) => self.0.options.method,
            SyncLink::There(remote) => remote.about().method,
        }
    }

    pub fn is_host(&self) -> bool {
        matches!(self.link(), SyncLink::Here(_))
    }

    pub(super) fn patience(&self) -> Duration {
        self.0.options.patience
    }

    pub(super) fn set_trainer(&self, seat: u64) {
        *self.0.trainer.lock() = Some(seat);
    }

    fn link(&self) -> SyncLink {
        self.0.link.lock().clone()
    }

    /// Sends a request to the host. If the host is gone, finds or becomes another one and repeats
    /// it.
    pub(super) async fn call<T, F>(
        &self,
        timeout: Duration,
        mut ask: impl FnMut(SyncLink) -> F,
    ) -> Answer<T>
    where
        F: Future<Output = Result<T, SyncLinkError>>,
    {
        let until = Instant::now() + timeout;
        loop {
            let link = self.link();
            match ask(link.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(SyncLinkError::Refused(error)) => return Err(error),
                Err(SyncLinkError::Gone(reason)) => {
                    tracing::debug!(url = link.url(), reason, "synchronizer lost");
                    self.relink(&link, &reason, until).await?;
                }
            }
        }
    }

    /// Replaces a host that is gone.
    async fn relink(&self, gone: &SyncLink, reason: &str, until: Instant) -> Result<(), SyncError> {
        let _looking = self.0.looking.lock().await;
        if !self.link().is_same(gone) {
            return Ok(());
        }
        let found = discovery::find(&self.0.options, Some(reason), until).await?;
        tracing::info!(url = found.url(), from = gone.url(), "synchronizer has another host");
        *self.0.link.lock() = found;
        Ok(())
    }

    /// Waits for weights. Dropping the future withdraws the wait.
    pub async fn wait(&self, want: WeightRequest) -> WeightWaitResult {
        let began = Instant::now();
        loop {
            let waited = began.elapsed();
            let left =
                WeightRequest { timeout: want.timeout.saturating_sub(waited), ..want.clone() };
            let response = self.call(left.timeout, |link| {
                let left = left.clone();
                async move { link.wait(left, waited).await }
            });
            match response.await {
                Ok(Some(waited)) => return waited,
                // The request is repeated, so that a lost host is detected.
                Ok(None) => {}
                Err(error) => return WeightWaitResult::TimedOut(error.to_string()),
            }
        }
    }

    /// Reports the total of an explorer's submitted experiences; returns that of the others.
    pub async fn submitted(&self, explorer: &str, experiences: u64) -> u64 {
        let response = self.call(self.0.options.patience, |link| async move {
            link.submitted(explorer, experiences).await
        });
        response.await.unwrap_or_else(|error| {
            tracing::warn!(%error, "synchronizer unreachable, submissions of other \
             explorers are unknown");
            0
        })
    }

    /// `None`: there are none, or the host is unreachable.
    pub async fn newest(&self) -> Option<PublishedWeights> {
        self.view().await.newest
    }

    /// Publishes weights: checks them, stores bytes and ends waits. Idempotent for a version.
    pub async fn publish(&self, version: u64, weights: NewWeightsMessage) -> Result<(), SyncError> {
        self.call(self.0.options.patience, |link| {
            let weights = weights.clone();
            async move { link.publish(version, weights).await }
        })
        .await
    }

    /// Sets the progress of the trainer in this process, which has joined.
    pub async fn trainer_state(&self, state: TrainerProgress) {
        let seat = *self.0.trainer.lock();
        let Some(seat) = seat else { return };
        let response = self.call(self.0.options.patience, |link| {
            let state = state.clone();
            async move { link.trainer(seat, state).await }
        });
        match response.await {
            Ok(true) => {}
            Ok(false) => tracing::debug!("trainer is not a member, its next heartbeat joins"),
            Err(error) => tracing::warn!(%error, "trainer progress not sent"),
        }
    }

    /// Reports the metrics of a train step. Values that are not finite are not sent.
    ///
    /// # Errors
    /// If the host is unreachable, or refuses the report.
    pub async fn report_metrics(&self, mut report: TrainMetrics) -> Result<(), SyncError> {
        report.metrics.retain(|name, value| {
            if !value.is_finite() {
                tracing::warn!(step = report.step, name, value, "metric is not finite, not sent");
            }
            value.is_finite()
        });
        self.call(self.0.options.patience, |link| {
            let report = report.clone();
            async move { link.add_metrics(report).await }
        })
        .await
    }

    /// Waits for reports of train metrics after the first `since`, or for the timeout.
    ///
    /// # Errors
    /// If the host is unreachable.
    pub async fn train_metrics(
        &self,
        since: u64,
        timeout: Duration,
    ) -> Result<TrainMetricsPage, SyncError> {
        let patience = timeout.max(self.0.options.patience);
        self.call(patience, |link| async move { link.metrics(since, timeout).await }).await
    }

    /// Waits until the open waits differ from `since`, or for the timeout.
    pub async fn wait_status(
        &self,
        since: Option<WaitStatus>,
        timeout: Duration,
    ) -> Result<WaitStatus, SyncError> {
        let until = Instant::now() + timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let patience = left.max(self.0.options.patience);
            let response =
                self.call(patience, |link| async move { link.wait_status(since, left).await });
            let response = response.await?;
            if since != Some(response) || Instant::now() >= until {
                return Ok(response);
            }
        }
    }

    /// Waits for a demand that version `since` satisfies. `false`: timeout.
    pub async fn demanded(&self, since: u64, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        let mut seen = None;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(response) = self.wait_status(seen, left).await else { return false };
            if response.wanted.is_some_and(|wanted| wanted <= since) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            seen = Some(response);
        }
    }

    /// Waits until all explorers that have ever joined have left. `false`: timeout.
    pub async fn explorers_left(&self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let patience = left.max(self.0.options.patience);
            let response =
                self.call(patience, |link| async move { link.explorers_left(left).await });
            match response.await {
                Ok(true) => return true,
                Ok(false) if Instant::now() < until => {}
                Ok(false) | Err(_) => return false,
            }
        }
    }

    /// Returns members and newest weights; empty if the host is unreachable.
    pub async fn view(&self) -> SyncStatus {
        let response = self.call(self.0.options.patience, |link| async move { link.view().await });
        response.await.unwrap_or_default()
    }
}

type Answer<T> = Result<T, SyncError>;
