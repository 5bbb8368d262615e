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
    NewWeightsMessage, PublishedWeights, ServerFleet, SyncStatus, TrainMetrics, TrainMetricsPage,
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
    relinking: tokio::sync::Mutex<()>,
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
        let until = Instant::now() + options.lookup_timeout;
        let link = discovery::find(&options, None, until).await?;
        let file = address_file::file(&options.job_dir);
        let (link, trainer) = (Mutex::new(link), Mutex::new(None));
        let relinking = tokio::sync::Mutex::new(());
        Ok(Self(Arc::new(SynchronizerShared { options, file, link, relinking, trainer })))
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
            SyncLink::Local(_) => self.0.options.method,
            SyncLink::Remote(remote) => remote.about().method,
        }
    }

    pub fn is_host(&self) -> bool {
        matches!(self.link(), SyncLink::Local(_))
    }

    pub(super) fn lookup_timeout(&self) -> Duration {
        self.0.options.lookup_timeout
    }

    pub(super) fn set_trainer(&self, member: u64) {
        *self.0.trainer.lock() = Some(member);
    }

    fn link(&self) -> SyncLink {
        self.0.link.lock().clone()
    }

    /// Sends a request to the host. If the host is gone, finds or becomes another one and repeats
    /// it.
    pub(super) async fn call<T, F>(
        &self,
        timeout: Duration,
        mut request: impl FnMut(SyncLink) -> F,
    ) -> Result<T, SyncError>
    where
        F: Future<Output = Result<T, SyncLinkError>>,
    {
        let until = Instant::now() + timeout;
        loop {
            let link = self.link();
            match request(link.clone()).await {
                Ok(response) => return Ok(response),
                Err(SyncLinkError::Refused(error)) => return Err(error),
                Err(SyncLinkError::Unreachable(reason)) => {
                    tracing::debug!(url = link.url(), reason, "synchronizer lost");
                    self.relink(&link, &reason, until).await?;
                }
            }
        }
    }

    /// Replaces a host that is gone.
    async fn relink(&self, lost: &SyncLink, reason: &str, until: Instant) -> Result<(), SyncError> {
        let _relinking = self.0.relinking.lock().await;
        if !self.link().is_same(lost) {
            return Ok(());
        }
        let found = discovery::find(&self.0.options, Some(reason), until).await?;
        tracing::info!(url = found.url(), from = lost.url(), "synchronizer moved to another host");
        *self.0.link.lock() = found;
        Ok(())
    }

    /// Waits for weights. Dropping the future withdraws the wait.
    pub async fn wait(&self, request: WeightRequest) -> WeightWaitResult {
        let began = Instant::now();
        loop {
            let waited = began.elapsed();
            let left = WeightRequest {
                timeout: request.timeout.saturating_sub(waited),
                ..request.clone()
            };
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
        let response = self.call(self.0.options.lookup_timeout, |link| async move {
            link.submitted(explorer, experiences).await
        });
        response.await.unwrap_or_else(|error| {
            tracing::warn!(%error, "synchronizer unreachable, submissions of other \
             explorers are unknown");
            0
        })
    }

    /// Reports the servers of an explorer, to which trainers send weights.
    pub async fn set_fleet(&self, explorer: &str, fleet: &ServerFleet) {
        let response = self.call(self.0.options.lookup_timeout, |link| {
            let fleet = fleet.clone();
            async move { link.set_fleet(explorer, fleet).await }
        });
        if let Err(error) = response.await {
            tracing::warn!(%error, "synchronizer unreachable, trainers cannot send weights");
        }
    }

    /// `None`: there are none, or the host is unreachable.
    pub async fn newest(&self) -> Option<PublishedWeights> {
        self.view().await.newest
    }

    /// Publishes weights: checks them, stores bytes and ends waits. Idempotent for a version.
    pub async fn publish(&self, version: u64, weights: NewWeightsMessage) -> Result<(), SyncError> {
        self.call(self.0.options.lookup_timeout, |link| {
            let weights = weights.clone();
            async move { link.publish(version, weights).await }
        })
        .await
    }

    /// Sets the progress of the trainer in this process, which has joined.
    pub async fn trainer_state(&self, state: TrainerProgress) {
        let member = *self.0.trainer.lock();
        let Some(member) = member else { return };
        let response = self.call(self.0.options.lookup_timeout, |link| {
            let state = state.clone();
            async move { link.trainer(member, state).await }
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
        self.call(self.0.options.lookup_timeout, |link| {
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
        let limit = timeout.max(self.0.options.lookup_timeout);
        self.call(limit, |link| async move { link.metrics(since, timeout).await }).await
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
            let lookup_timeout = left.max(self.0.options.lookup_timeout);
            let response = self
                .call(lookup_timeout, |link| async move { link.wait_status(since, left).await });
            let response = response.await?;
            if since != Some(response) || Instant::now() >= until {
                return Ok(response);
            }
        }
    }

    /// Waits for a demand that version `since` satisfies. `false`: timeout.
    pub async fn wait_for_demand(&self, since: u64, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        let mut seen = None;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(response) = self.wait_status(seen, left).await else { return false };
            if response.demanded.is_some_and(|demanded| demanded <= since) {
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
            let lookup_timeout = left.max(self.0.options.lookup_timeout);
            let response =
                self.call(lookup_timeout, |link| async move { link.explorers_left(left).await });
            match response.await {
                Ok(true) => return true,
                Ok(false) if Instant::now() < until => {}
                Ok(false) | Err(_) => return false,
            }
        }
    }

    /// Returns members and newest weights; empty if the host is unreachable.
    pub async fn view(&self) -> SyncStatus {
        let response =
            self.call(self.0.options.lookup_timeout, |link| async move { link.view().await });
        response.await.unwrap_or_default()
    }
}
