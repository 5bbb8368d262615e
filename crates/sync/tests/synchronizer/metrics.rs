//! Metrics that a trainer reports.

use std::collections::BTreeMap;
use std::time::Duration;

use rollway_config::SyncMethod;
use rollway_sync::{Synchronizer, TrainMetrics};

use crate::world::{LONG, open};

fn report(step: u64, loss: f64) -> TrainMetrics {
    TrainMetrics { step, metrics: BTreeMap::from([("loss".to_owned(), loss)]) }
}

async fn steps(synchronizer: &Synchronizer, since: u64) -> (u64, Vec<u64>) {
    let page = synchronizer.train_metrics(since, Duration::ZERO).await.unwrap();
    (page.total, page.reports.iter().map(|report| report.step).collect())
}

#[tokio::test]
async fn reports_are_read_once_by_every_reader_in_this_process_and_another() {
    let job = tempfile::tempdir().unwrap();
    let host = open(job.path(), SyncMethod::Memory).await;
    let remote = open(job.path(), SyncMethod::Memory).await;
    assert!(host.is_host() && !remote.is_host());
    // A reader that waits gets the next report at once.
    let waiting = tokio::spawn({
        let host = host.clone();
        async move { host.train_metrics(0, LONG).await.unwrap() }
    });
    let mut first = report(1, 0.5);
    first.metrics.insert("bad".to_owned(), f64::NAN);
    remote.report_metrics(first).await.unwrap();
    let page = waiting.await.unwrap();
    assert_eq!((page.total, page.reports), (1, vec![report(1, 0.5)]));
    host.report_metrics(report(2, 0.25)).await.unwrap();
    for reader in [&host, &remote] {
        assert_eq!(steps(reader, 0).await, (2, vec![1, 2]));
        assert_eq!(steps(reader, 1).await, (2, vec![2]));
        assert_eq!(steps(reader, 2).await, (2, vec![]));
        // The number of an earlier host.
        assert_eq!(steps(reader, 70).await, (2, vec![1, 2]));
    }
}

#[tokio::test]
async fn reports_are_limited_in_number_and_size() {
    let job = tempfile::tempdir().unwrap();
    let host = open(job.path(), SyncMethod::Memory).await;
    for step in 1..=300 {
        host.report_metrics(report(step, 0.0)).await.unwrap();
    }
    let (total, kept) = steps(&host, 0).await;
    assert_eq!((total, kept.len(), kept[0]), (300, 256, 45));
    let remote = open(job.path(), SyncMethod::Memory).await;
    let metrics = (0..1001).map(|at| (format!("m{at}"), 0.0)).collect();
    let error = remote.report_metrics(TrainMetrics { step: 1, metrics }).await.unwrap_err();
    assert!(error.to_string().contains("1001 metrics of step 1: at most 1000"), "{error}");
}
