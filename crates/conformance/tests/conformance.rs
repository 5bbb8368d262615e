//! The kit against a correct worker and against every flaw.

use std::time::Duration;

use rollway_conformance::reference::{Flaw, ReferenceWorker};
use rollway_conformance::{
    Check, CheckResult, ConformanceOptions, ConformanceReport, ConformanceTarget, run,
};

use rollway_base::Address;
use tokio::task::LocalSet;

/// For a correct worker on a busy machine.
fn long_timeouts() -> ConformanceOptions {
    ConformanceOptions {
        timeout: Duration::from_secs(20),
        grace: Duration::from_secs(10),
        heartbeat_interval: Duration::from_millis(100),
        ..ConformanceOptions::default()
    }
}

/// Short, since the kit waits for a flawed worker in vain. Additional failures on a busy machine
/// are harmless.
fn short_timeouts() -> ConformanceOptions {
    ConformanceOptions {
        timeout: Duration::from_millis(2000),
        grace: Duration::from_millis(1000),
        heartbeat_interval: Duration::from_millis(25),
        ..ConformanceOptions::default()
    }
}

fn target(runners: u32, flaw: Option<Flaw>) -> ConformanceTarget {
    ConformanceTarget::Task(Box::new(move |parameters| {
        let worker = ReferenceWorker { runners, flaw };
        Box::pin(worker.run(parameters))
    }))
}

async fn check(flaw: Flaw, expected: &'static [Check]) {
    let report = run(&target(2, Some(flaw)), &short_timeouts()).await;
    let failed = report.failed();
    assert!(expected.iter().all(|check| failed.contains(check)), "{flaw:?}:\n{report}");
}

fn skipped(report: &ConformanceReport) -> Vec<Check> {
    let skipped = report.results.iter().filter(|(_, v)| matches!(v, CheckResult::Skipped(_)));
    skipped.map(|(check, _)| *check).collect()
}

#[tokio::test]
async fn the_reference_worker_passes_over_tcp_and_over_a_unix_socket() {
    let report = run(&target(3, None), &long_timeouts()).await;
    assert_eq!((report.failed(), skipped(&report)), (vec![], vec![]), "{report}");
    let count = Check::ALL.len();
    assert!(report.to_string().ends_with(&format!("\n{count} passed, 0 failed")), "{report}");
    let dir = tempfile::tempdir().unwrap();
    let address = Address::Unix(dir.path().join("engine.sock"));
    let report = run(&target(2, None), &ConformanceOptions { address, ..long_timeouts() }).await;
    assert!(report.ok(), "{report}");
}

#[tokio::test]
async fn a_worker_with_one_runner_skips_the_parallel_check() {
    let report = run(&target(1, None), &long_timeouts()).await;
    assert_eq!((report.failed(), skipped(&report)), (vec![], vec![Check::Parallel]), "{report}");
}

#[tokio::test]
async fn every_flaw_is_found() {
    let flaws: [(Flaw, &[Check]); 21] = [
        (Flaw::WrongToken, &[Check::Hello]),
        (Flaw::ForgetsRunner, &[Check::Ready]),
        (Flaw::IgnoresRefusal, &[Check::Secret, Check::Version]),
        (Flaw::ReadyWhileBusy, &[Check::Ready]),
        (Flaw::NeverBegins, &[Check::Began]),
        (Flaw::RepeatsRun, &[Check::Runs]),
        (Flaw::DropsRun, &[Check::Runs]),
        (Flaw::ResultAfterEnd, &[Check::Ended]),
        (Flaw::NoPayload, &[Check::Success]),
        (Flaw::ForgetsDefinitions, &[Check::Define]),
        (Flaw::HidesFailure, &[Check::Failure]),
        (Flaw::PayloadInEval, &[Check::Eval]),
        (Flaw::IgnoresCancel, &[Check::Cancel]),
        (Flaw::ResultAfterCancel, &[Check::AfterCancel]),
        (Flaw::DiesOfLateCancel, &[Check::LateCancel]),
        (Flaw::OneAtATime, &[Check::Parallel]),
        (Flaw::IgnoresStop, &[Check::Restart]),
        (Flaw::NoHeartbeat, &[Check::Heartbeat]),
        (Flaw::DiesOfUnknown, &[Check::Unknown]),
        (Flaw::NoGoodbye, &[Check::Goodbye]),
        (Flaw::OutlivesEngine, &[Check::EngineGone]),
    ];
    // Concurrently: most of the time passes in waits.
    let tasks = LocalSet::new();
    let checks = flaws.map(|(flaw, expected)| tasks.spawn_local(check(flaw, expected)));
    tasks.await;
    for check in checks {
        check.await.unwrap();
    }
}

#[tokio::test]
async fn a_program_that_is_no_worker_fails_the_handshake() {
    let command = ConformanceTarget::Command(vec!["true".into()]);
    let report = run(&command, &short_timeouts()).await;
    assert_eq!(report.failed(), [Check::Hello], "{report}");
    let missing = ConformanceTarget::Command(vec!["there is no such program".into()]);
    let report = run(&missing, &short_timeouts()).await;
    assert_eq!(report.failed(), [Check::Hello], "{report}");
}
