//! Alarm rules with scripted times.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rollway_config::{AlarmsConfig as Config, ConfigSeconds, OnConsecutiveFailures};
use rollway_core::{BatchId, FailureKind, RunFailure, RunnerId};

use rollway_engine::job_wait::{JobWait, WaitLimit, WaitReason};

use super::rules::{AlarmChange, AlarmRules};

fn config() -> Config {
    Config {
        no_progress: Some(ConfigSeconds::new(300)),
        consecutive_failures: Some(3),
        on_consecutive_failures: OnConsecutiveFailures::Stop,
        staleness: Some(2.0),
        starvation: Some(10.0),
    }
}

const fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn kinds(changes: &[AlarmChange]) -> Vec<(&'static str, bool)> {
    changes.iter().map(|change| (change.kind, change.raised)).collect()
}

#[test]
fn missing_progress_is_reported_once_and_only_with_open_tasks() {
    let mut rules = AlarmRules::new(&config());
    assert_eq!(rules.due(), None, "no deadline without work");
    rules.set_work(at(10), true);
    assert_eq!(rules.due(), Some(at(310)));
    rules.progress(at(100));
    assert_eq!(rules.due(), Some(at(400)), "the end of a run restarts it");
    assert_eq!(rules.stalled_for(at(399)), None);
    rules.check_progress(at(400), &["runner 3 with task 1".to_owned()], None);
    rules.check_progress(at(500), &[], None);
    assert_eq!(rules.due(), None);
    let changes = rules.take();
    assert_eq!(kinds(&changes), [("no_progress", true)]);
    assert!(changes[0].message.contains("no run has ended for 5 min"), "{}", changes[0].message);
    assert!(changes[0].message.contains("runner 3 with task 1"), "{}", changes[0].message);
    rules.progress(at(520));
    rules.set_work(at(530), false);
    assert_eq!(kinds(&rules.take()), [("no_progress", false)]);
    assert_eq!(rules.due(), None);
    // Idle time does not count.
    rules.set_work(at(9000), true);
    assert_eq!(rules.due(), Some(at(9300)));
}

#[test]
fn failures_in_a_row_name_their_kind_and_an_example() {
    let mut rules = AlarmRules::new(&config());
    for _ in 0..2 {
        rules.record_failure(&RunFailure::new(FailureKind::Workflow, "Traceback:\nValueError: no"));
    }
    rules.record_success();
    for _ in 0..2 {
        rules.record_failure(&RunFailure::new(FailureKind::Workflow, "Traceback:\nValueError: no"));
    }
    assert!(!rules.has_changes(), "a success restarts the count");
    rules.record_failure(&RunFailure::new(
        FailureKind::ModelUnavailable,
        "no response from http://a:1",
    ));
    rules.record_failure(&RunFailure::new(
        FailureKind::ModelUnavailable,
        "no response from http://a:1",
    ));
    let changes = rules.take();
    assert_eq!(kinds(&changes), [("consecutive_failures", true)]);
    assert!(changes[0].stops);
    let message = &changes[0].message;
    for part in ["3 runs", "model_unavailable", "no response from http://a:1", "to resume"] {
        assert!(message.contains(part), "{message}");
    }
    rules.record_success();
    rules.record_success();
    assert_eq!(kinds(&rules.take()), [("consecutive_failures", false)]);
}

#[test]
fn a_workflow_that_waits_longer_or_is_cancelled_more_often_is_starved() {
    let (quick, slow): (Arc<str>, Arc<str>) = ("quick".into(), "slow".into());
    let mut rules = AlarmRules::new(&config());
    for _ in 0..40 {
        rules.waited(&quick, at(2));
        rules.waited(&slow, at(15));
        rules.task_ended(&quick, true);
        rules.task_ended(&slow, true);
    }
    assert!(!rules.has_changes(), "the factor is below ten");
    for _ in 0..200 {
        rules.waited(&slow, at(100));
        rules.task_ended(&slow, true);
    }
    let changes = rules.take();
    assert_eq!(kinds(&changes), [("starvation", true)]);
    assert!(changes[0].message.contains("`slow` wait"), "{}", changes[0].message);
    for _ in 0..500 {
        rules.waited(&slow, at(3));
        rules.task_ended(&slow, true);
    }
    assert_eq!(kinds(&rules.take()), [("starvation", false)]);
    for _ in 0..500 {
        rules.task_ended(&slow, false);
        rules.task_ended(&quick, true);
    }
    let changes = rules.take();
    assert_eq!(kinds(&changes), [("starvation", true)]);
    assert!(changes[0].message.contains("biased"), "{}", changes[0].message);
}

#[test]
fn a_single_workflow_is_never_starved() {
    let mut rules = AlarmRules::new(&config());
    for _ in 0..100 {
        rules.waited(&"only".into(), at(5000));
        rules.task_ended(&"only".into(), false);
    }
    assert!(!rules.has_changes());
}

#[test]
fn staleness_drops_and_broken_runners_are_raised_and_cleared() {
    let mut rules = AlarmRules::new(&config());
    for (step, mean) in [(1, 1.0), (2, 2.5), (3, 3.0), (4, 2.0)] {
        rules.stale(step, mean);
    }
    assert_eq!(kinds(&rules.take()), [("staleness", true), ("staleness", false)]);
    rules.dropped(at(10), "wandb", 3);
    rules.dropped(at(50), "wandb", 1);
    assert_eq!(rules.due(), Some(at(110)));
    rules.advance(at(109));
    let changes = rules.take();
    assert_eq!(kinds(&changes), [("dropped", true)]);
    assert!(changes[0].message.contains("wandb: 3"), "{}", changes[0].message);
    rules.advance(at(110));
    assert_eq!(kinds(&rules.take()), [("dropped", false)]);
    assert_eq!(rules.due(), None);
    rules.runner_broken(RunnerId(4), "no module named x".into());
    rules.runner_broken(RunnerId(5), "no module named x".into());
    rules.runner_ready(RunnerId(4));
    let changes = rules.take();
    assert_eq!(kinds(&changes), [("runners_broken", true)]);
    assert!(changes[0].message.contains("no module named x"), "{}", changes[0].message);
    rules.runner_ready(RunnerId(5));
    assert_eq!(kinds(&rules.take()), [("runners_broken", false)]);
}

#[test]
fn quarantine_is_raised_once_and_stays() {
    let mut rules = AlarmRules::new(&config());
    rules.quarantined(3, 16);
    rules.quarantined(4, 16);
    let changes = rules.take();
    assert_eq!(kinds(&changes), [("quarantine", true)]);
    assert!(changes[0].message.contains("16 runs of step 3"), "{}", changes[0].message);
}

#[test]
fn disabled_alarms_are_not_raised() {
    let config = Config {
        no_progress: None,
        consecutive_failures: None,
        staleness: None,
        starvation: None,
        ..config()
    };
    let mut rules = AlarmRules::new(&config);
    rules.set_work(at(0), true);
    assert_eq!(rules.due(), None);
    for _ in 0..1000 {
        rules.record_failure(&RunFailure::new(FailureKind::Timeout, "late"));
        rules.task_ended(&"a".into(), false);
        rules.task_ended(&"b".into(), true);
    }
    rules.stale(1, 100.0);
    assert!(!rules.has_changes());
}

#[test]
fn long_wait_outside_of_runs_raises_an_alarm_until_it_ends() {
    let mut rules = AlarmRules::new(&config());
    let limit = WaitLimit { key: "synchronizer.sync_timeout", timeout: at(3600) };
    let (reason, since) = (WaitReason::Weights { step: 3, at_least: 4 }, SystemTime::UNIX_EPOCH);
    rules.wait_begun(at(10), JobWait { id: 7, reason, since, limit: Some(limit) });
    assert_eq!(rules.due(), Some(at(310)));
    rules.advance(at(310));
    let changes = rules.take();
    assert_eq!(kinds(&changes), [("waiting", true)]);
    let expected = "weights of version 4; for 5 min, at most 55 min more";
    assert!(changes[0].message.contains(expected), "{}", changes[0].message);
    rules.wait_ended(7);
    assert_eq!(kinds(&rules.take()), [("waiting", false)]);
    assert_eq!(rules.due(), None);
}

#[test]
fn missing_progress_without_a_server_names_the_server() {
    let mut rules = AlarmRules::new(&config());
    rules.set_work(at(10), true);
    let servers = "http://a:1 is unhealthy (connection refused)".to_owned();
    let reason = WaitReason::Server { model: "policy".to_owned(), servers };
    let wait = JobWait { id: 7, reason, since: SystemTime::UNIX_EPOCH, limit: None };
    rules.check_progress(at(310), &["runner 3 with task 1".to_owned()], Some(&wait));
    let message = &rules.take()[0].message;
    for part in ["no run has ended for 5 min", "server of model policy", "start the server"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn missing_progress_names_the_runners_that_are_not_ready() {
    let mut rules = AlarmRules::new(&config());
    rules.set_work(at(0), true);
    let message = Some("no worker is connected".to_owned());
    let reason = WaitReason::Runner { batch: BatchId::from(3), pending: 1, message };
    let wait = JobWait { id: 7, reason, since: SystemTime::UNIX_EPOCH, limit: None };
    rules.check_progress(at(300), &[], Some(&wait));
    let message = &rules.take()[0].message;
    let sentence = "1 run of batch 3 waits for a runner, none is ready: no worker is connected";
    for part in ["no run has ended for 5 min", sentence, "check the log of the workers"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn long_delivery_raises_an_alarm_once_the_runs_have_ended() {
    let mut rules = AlarmRules::new(&config());
    let wait = |reason| JobWait { id: 7, reason, since: SystemTime::UNIX_EPOCH, limit: None };
    rules.set_work(at(0), true);
    rules.wait_begun(at(10), wait(WaitReason::runs(&BatchId::from(3))));
    assert_eq!(rules.due(), Some(at(300)), "missing progress only");
    rules.progress(at(200));
    rules.set_work(at(200), false);
    assert_eq!(rules.due(), Some(at(500)));
    assert_eq!((rules.long_delivery(at(499)), rules.long_delivery(at(500))), (None, Some(7)));
    rules.check_delivery(at(500), 7, None);
    assert_eq!(rules.due(), Some(at(800)), "runs were in progress");
    let full = wait(WaitReason::Reader { batch: BatchId::from(3), unread: 64 });
    rules.check_delivery(at(800), 7, Some(&full));
    assert_eq!(rules.due(), None);
    let changes = rules.take();
    assert_eq!(kinds(&changes), [("waiting", true)]);
    let expected = "batch 3 waits for a reader: the buffer is full (64 unread); for 5 min";
    assert!(changes[0].message.contains(expected), "{}", changes[0].message);
    // Another wait begins and ends.
    rules.wait_begun(at(810), JobWait { id: 8, ..wait(WaitReason::LastWeights) });
    rules.wait_ended(8);
    assert!(!rules.has_changes());
    rules.wait_ended(7);
    assert_eq!(kinds(&rules.take()), [("waiting", false)]);
}
