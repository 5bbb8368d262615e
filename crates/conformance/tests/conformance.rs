//! The kit against a worker that is well, and against every flaw that a worker may have.

use std::time::Duration;

use rollway_conformance::reference::{Flaw, ReferenceWorker};
use rollway_conformance::{
    Check, CheckResult, ConformanceOptions, ConformanceReport, ConformanceTarget, run,
};

use rollway_base::Address;

/// A healthy worker answers at once; on a busy machine it may take a while.
fn patient() -> ConformanceOptions {
    ConformanceOptions {
        patience: Duration::from_secs(20),
        grace: Duration::from_secs(10),
        heartbeat_interval: Duration::from_millis(100),
        ..ConformanceOptions::default()
    }
}

/// A broken worker is waited for in vain, so not for long. What a busy machine fails in addition
/// does no harm.
fn hasty() -> ConformanceOptions {
    ConformanceOptions {
        patience: Duration::from_millis(1000),
        grace: Duration::from_millis(500),
        heartbeat_interval: Duration::from_millis(25),
        ..ConformanceOptions::default()
    }
}

fn target(runners: u32, flaw: Option<Flaw>) -> ConformanceTarget {
    ConformanceTarget::Task(Box::new(move |invitation| {
        let worker = ReferenceWorker { runners, flaw };
        Box::pin(worker.run(invitation))
    }))
}

async fn check(flaw: Flaw, expected: &[Check]) {
    let report = run(&target(2, Some(flaw)), &hasty()).await;
    let failed = report.failed();
    assert!(expected.iter().all(|check| failed.contains(check)), "{flaw:?}:\n{report}");
}

fn skipped(report: &ConformanceReport) -> Vec<Check> {
    let skipped = report.verdicts.iter().filter(|(_, v)| matches!(v, CheckResult::Skipped(_)));
    skipped.map(|(check, _)| *check).collect()
}

#[tokio::test]
async fn the_reference_worker_passes_over_tcp_and_over_a_unix_socket() {
    let report = run(&target(3, None), &patient()).await;
    assert_eq!((report.failed(), skipped(&report)), (vec![], vec![]), "{report}");
    let count = Check::ALL.len();
    assert!(report.to_string().ends_with(&format!("\n{count} passed, 0 failed")), "{report}");
    let dir = tempfile::tempdir().unwrap();
    let address = Address::Unix(dir.path().join("engine.sock"));
    let report = run(&target(2, None), &ConformanceOptions { address, ..patient() }).await;
    assert!(report.ok(), "{report}");
}

#[tokio::test]
async fn a_worker_with_one_runner_passes_with_less() {
    let report = run(&target(1, None), &patient()).await;
    assert_eq!((report.failed(), skipped(&report)), (vec![], vec![Check::Parallel]), "{report}");
}

#[tokio::test]
async fn flaws_of_the_handshake_are_found() {
    check(Flaw::WrongToken, &[Check::Hello]).await;
    check(Flaw::ForgetsRunner, &[Check::Ready]).await;
    check(Flaw::IgnoresRefusal, &[Check::Secret, Check::Version]).await;
}

#[tokio::test]
async fn flaws_of_attempts_are_found() {
    check(Flaw::ReadyWhileBusy, &[Check::Ready]).await;
    check(Flaw::NeverBegins, &[Check::Began]).await;
    check(Flaw::RepeatsRun, &[Check::Runs]).await;
    check(Flaw::DropsRun, &[Check::Runs]).await;
    check(Flaw::ResultAfterEnd, &[Check::Ended]).await;
}

#[tokio::test]
async fn flaws_of_results_are_found() {
    check(Flaw::NoPayload, &[Check::Success]).await;
    check(Flaw::ForgetsDefinitions, &[Check::Define]).await;
    check(Flaw::HidesFailure, &[Check::Failure]).await;
    check(Flaw::PayloadInEval, &[Check::Eval]).await;
}

#[tokio::test]
async fn flaws_of_cancelling_are_found() {
    check(Flaw::IgnoresCancel, &[Check::Cancel]).await;
    check(Flaw::ResultAfterCancel, &[Check::AfterCancel]).await;
    check(Flaw::DiesOfLateCancel, &[Check::LateCancel]).await;
    check(Flaw::OneAtATime, &[Check::Parallel]).await;
    check(Flaw::IgnoresStop, &[Check::Restart]).await;
}

#[tokio::test]
async fn flaws_of_the_rest_are_found() {
    check(Flaw::NoHeartbeat, &[Check::Heartbeat]).await;
    check(Flaw::DiesOfUnknown, &[Check::Unknown]).await;
    check(Flaw::NoGoodbye, &[Check::Goodbye]).await;
    check(Flaw::OutlivesEngine, &[Check::EngineGone]).await;
}

#[tokio::test]
async fn a_program_that_is_no_worker_is_told_apart() {
    let command = ConformanceTarget::Command(vec!["true".into()]);
    let report = run(&command, &hasty()).await;
    assert_eq!(report.failed(), [Check::Hello], "{report}");
    let missing = ConformanceTarget::Command(vec!["there is no such program".into()]);
    let report = run(&missing, &hasty()).await;
    assert_eq!(report.failed(), [Check::Hello], "{report}");
}
