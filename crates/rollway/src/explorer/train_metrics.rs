//! Metrics that a trainer in another process reports to the synchronizer, as job events.

use std::time::Duration;

use rollway_core::metrics::Metrics;
use rollway_engine::job_event::{JobEvent, JobObservers};
use rollway_sync::{Synchronizer, TrainMetrics};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Maximum duration of one request.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// Pause after an error of the synchronizer.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Maximum time to read the last reports.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Emits reported metrics until it is closed or dropped.
#[derive(Debug)]
pub(super) struct TrainMetricsWatch {
    task: Option<JoinHandle<()>>,
    stop: CancellationToken,
}

impl TrainMetricsWatch {
    pub(super) fn start(synchronizer: Option<Synchronizer>, watchers: JobObservers) -> Self {
        let stop = CancellationToken::new();
        let follow = |synchronizer| tokio::spawn(follow(synchronizer, watchers, stop.clone()));
        Self { task: synchronizer.map(follow), stop }
    }

    /// Emits the last reports and ends. A second call does nothing.
    pub(super) async fn close(&mut self) {
        self.stop.cancel();
        if let Some(mut task) = self.task.take()
            && tokio::time::timeout(SHUTDOWN_TIMEOUT, &mut task).await.is_err()
        {
            // Without a response of the synchronizer the last reports are lost.
            task.abort();
        }
    }
}

impl Drop for TrainMetricsWatch {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

async fn follow(synchronizer: Synchronizer, watchers: JobObservers, stop: CancellationToken) {
    let mut since = 0;
    let mut is_last = false;
    while !is_last {
        is_last = stop.is_cancelled();
        let timeout = if is_last { Duration::ZERO } else { READ_TIMEOUT };
        let read = tokio::select! {
            biased;
            read = synchronizer.train_metrics(since, timeout) => read,
            () = stop.cancelled(), if !is_last => continue,
        };
        match read {
            Ok(page) => {
                since = page.total;
                page.reports.iter().for_each(|report| watchers.emit(&event(report)));
            }
            Err(error) => {
                tracing::debug!(%error, "train metrics are not available");
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = tokio::time::sleep(RETRY_DELAY) => {}
                }
            }
        }
    }
}

fn event(report: &TrainMetrics) -> JobEvent {
    let mut metrics = Metrics::new();
    for (name, value) in &report.metrics {
        let name = name.strip_prefix("trainer/").unwrap_or(name);
        metrics.set(format!("trainer/{name}"), *value);
    }
    JobEvent::Trained { step: report.step, metrics }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use parking_lot::Mutex;
    use rollway_engine::job_event::JobObserver;
    use rollway_sync::SynchronizerOptions;

    use super::*;

    #[derive(Debug, Default)]
    struct RecordedEvents(Mutex<Vec<(u64, Option<f64>)>>);

    impl JobObserver for RecordedEvents {
        fn on_event(&self, event: &JobEvent) {
            if let JobEvent::Trained { step, metrics } = event {
                self.0.lock().push((*step, metrics.get("trainer/loss")));
            }
        }
    }

    #[tokio::test]
    async fn reports_are_job_events_including_the_last_one() {
        let job = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let options = SynchronizerOptions::new(job.path());
        let synchronizer = Synchronizer::open_with(options).await;
        let synchronizer = synchronizer.unwrap_or_else(|error| panic!("{error}"));
        let events = Arc::new(RecordedEvents::default());
        let watchers = JobObservers::new(vec![Arc::clone(&events) as _]);
        let mut watch = TrainMetricsWatch::start(Some(synchronizer.clone()), watchers);
        for (step, name) in [(1, "loss"), (2, "trainer/loss")] {
            let metrics = BTreeMap::from([(name.to_owned(), 0.5)]);
            let reported = synchronizer.report_metrics(TrainMetrics { step, metrics }).await;
            reported.unwrap_or_else(|error| panic!("{error}"));
        }
        watch.close().await;
        watch.close().await;
        assert_eq!(*events.0.lock(), [(1, Some(0.5)), (2, Some(0.5))]);
    }
}
