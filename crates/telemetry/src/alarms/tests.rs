//! The watchdog, in made-up time.

use std::sync::Arc;
use std::time::Duration;

use rollway_config::{AlarmsConfig as Config, ConfigSeconds, OnConsecutiveFailures};
use rollway_core::{FailureKind, RunnerId};

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
fn standing_still_is_said_once_and_only_while_there_is_work() {
    let mut dog = AlarmRules::new(&config());
    assert_eq!(dog.due(), None, "without work nothing is due");
    dog.work(at(10), true);
    assert_eq!(dog.due(), Some(at(310)));
    dog.progress(at(100));
    assert_eq!(dog.due(), Some(at(400)), "every run that ends restarts it");
    assert_eq!(dog.stands_still(at(399)), None);
    dog.stand_still(at(400), &["runner 3 with task 1".to_owned()]);
    dog.stand_still(at(500), &[]);
    assert_eq!(dog.due(), None);
    let said = dog.take();
    assert_eq!(kinds(&said), [("no_progress", true)]);
    assert!(said[0].words.contains("no run has ended for 5 min"), "{}", said[0].words);
    assert!(said[0].words.contains("runner 3 with task 1"), "{}", said[0].words);
    dog.progress(at(520));
    dog.work(at(530), false);
    assert_eq!(kinds(&dog.take()), [("no_progress", false)]);
    assert_eq!(dog.due(), None);
    // What was idle in between does not count.
    dog.work(at(9000), true);
    assert_eq!(dog.due(), Some(at(9300)));
}

#[test]
fn failures_in_a_row_name_their_kind_and_an_example() {
    let mut dog = AlarmRules::new(&config());
    for _ in 0..2 {
        dog.badly(FailureKind::Workflow, "Traceback:\nValueError: no");
    }
    dog.record_success();
    for _ in 0..2 {
        dog.badly(FailureKind::Workflow, "Traceback:\nValueError: no");
    }
    assert!(!dog.has_news(), "one that went well counts from the beginning");
    dog.badly(FailureKind::ModelUnavailable, "nobody answers at http://a:1");
    dog.badly(FailureKind::ModelUnavailable, "nobody answers at http://a:1");
    let said = dog.take();
    assert_eq!(kinds(&said), [("consecutive_failures", true)]);
    let words = &said[0].words;
    for part in ["3 runs", "model_unavailable", "nobody answers at http://a:1", "goes on"] {
        assert!(words.contains(part), "{words}");
    }
    dog.record_success();
    dog.record_success();
    assert_eq!(kinds(&dog.take()), [("consecutive_failures", false)]);
}

#[test]
fn a_class_that_waits_longer_or_is_cut_more_often_is_starved() {
    let (quick, slow): (Arc<str>, Arc<str>) = ("quick".into(), "slow".into());
    let mut dog = AlarmRules::new(&config());
    for _ in 0..40 {
        dog.waited(&quick, at(2));
        dog.waited(&slow, at(15));
        dog.task(&quick, true);
        dog.task(&slow, true);
    }
    assert!(!dog.has_news(), "a factor below ten is nobody's starvation");
    for _ in 0..200 {
        dog.waited(&slow, at(100));
        dog.task(&slow, true);
    }
    let said = dog.take();
    assert_eq!(kinds(&said), [("starvation", true)]);
    assert!(said[0].words.contains("`slow` wait"), "{}", said[0].words);
    for _ in 0..500 {
        dog.waited(&slow, at(3));
        dog.task(&slow, true);
    }
    assert_eq!(kinds(&dog.take()), [("starvation", false)]);
    for _ in 0..500 {
        dog.task(&slow, false);
        dog.task(&quick, true);
    }
    let said = dog.take();
    assert_eq!(kinds(&said), [("starvation", true)]);
    assert!(said[0].words.contains("biased"), "{}", said[0].words);
}

#[test]
fn one_class_alone_is_never_starved() {
    let mut dog = AlarmRules::new(&config());
    for _ in 0..100 {
        dog.waited(&"only".into(), at(5000));
        dog.task(&"only".into(), false);
    }
    assert!(!dog.has_news());
}

#[test]
fn staleness_drops_and_broken_runners_come_and_go() {
    let mut dog = AlarmRules::new(&config());
    for (step, mean) in [(1, 1.0), (2, 2.5), (3, 3.0), (4, 2.0)] {
        dog.stale(step, mean);
    }
    assert_eq!(kinds(&dog.take()), [("staleness", true), ("staleness", false)]);
    dog.dropped(at(10), "wandb", 3);
    dog.dropped(at(50), "wandb", 1);
    assert_eq!(dog.due(), Some(at(110)));
    dog.pass(at(109));
    let said = dog.take();
    assert_eq!(kinds(&said), [("dropped", true)]);
    assert!(said[0].words.contains("wandb: 3"), "{}", said[0].words);
    dog.pass(at(110));
    assert_eq!(kinds(&dog.take()), [("dropped", false)]);
    assert_eq!(dog.due(), None);
    dog.broken(RunnerId(4), "no module named x".into());
    dog.broken(RunnerId(5), "no module named x".into());
    dog.mended(RunnerId(4));
    let said = dog.take();
    assert_eq!(kinds(&said), [("runners_broken", true)]);
    assert!(said[0].words.contains("no module named x"), "{}", said[0].words);
    dog.mended(RunnerId(5));
    assert_eq!(kinds(&dog.take()), [("runners_broken", false)]);
}

#[test]
fn what_is_not_wanted_is_not_said() {
    let config = Config {
        no_progress: None,
        consecutive_failures: None,
        staleness: None,
        starvation: None,
        ..config()
    };
    let mut dog = AlarmRules::new(&config);
    dog.work(at(0), true);
    assert_eq!(dog.due(), None);
    for _ in 0..1000 {
        dog.badly(FailureKind::Timeout, "late");
        dog.task(&"a".into(), false);
        dog.task(&"b".into(), true);
    }
    dog.stale(1, 100.0);
    assert!(!dog.has_news());
}
