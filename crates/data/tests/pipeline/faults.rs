//! Failures lose and duplicate nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use rollway_data::pipeline::{
    Operator, OperatorError, OperatorOutput, Pipeline, PipelineError, PipelineReport,
};
use rollway_experience::Experience;

use crate::store::{Fault, Store};
use crate::world::{assert_balanced, build, custom, no_args, payloads, pipeline, task};

fn experiences() -> Vec<Experience> {
    let mut experiences = task(1, &[1.0, 0.0, 0.5]);
    experiences.extend(task(2, &[0.25, 0.25]));
    experiences
}

fn operators() -> Vec<Box<dyn Operator>> {
    vec![build("reward_std_filter", no_args()), build("grpo", no_args())]
}

fn prepared(operators: Vec<Box<dyn Operator>>, input: &Store, output: &Store) -> Pipeline {
    let mut pipeline = Pipeline::new(operators, Some(input.writer()), output.writer());
    pipeline.prepare().expect("operators without needs");
    pipeline
}

fn assert_took_all(report: &PipelineReport, input: &Store, output: &Store) {
    assert_balanced(report);
    assert_eq!(report.stored + report.known, 3);
    assert_eq!(input.ids().len(), 5);
    assert_eq!(output.ids(), ["1/1/0/0/00000a", "1/1/1/0/00000a", "1/1/2/0/00000a"]);
}

#[test]
fn what_is_not_prepared_writes_nothing() {
    let (input, output) = (Store::default(), Store::default());
    let mut pipeline = Pipeline::new(operators(), Some(input.writer()), output.writer());
    let error = pipeline.process("7", &payloads(&experiences())).unwrap_err();
    assert!(matches!(error, PipelineError::NotPrepared), "{error}");
    assert_eq!((input.writes(), output.writes()), (0, 0));
    pipeline.prepare().unwrap();
    pipeline.prepare().unwrap();
    let report = pipeline.process("7", &payloads(&experiences())).unwrap();
    assert_took_all(&report, &input, &output);
    assert!(input.state().lots.contains_key("7/input"));
    assert!(output.state().lots.contains_key("7/output"));
}

#[test]
fn the_input_is_kept_as_it_came() {
    let (input, output) = (Store::default(), Store::default());
    prepared(operators(), &input, &output).process("7", &payloads(&experiences())).unwrap();
    let kept: Vec<_> =
        input.state().samples.iter().map(|sample| sample.decode().unwrap()).collect();
    assert_eq!(kept, experiences());
    assert!(output.state().samples.iter().all(|one| one.decode().unwrap().advantages.is_some()));
}

#[test]
fn a_damaged_payload_is_dropped_and_counted_alone() {
    let (input, output) = (Store::default(), Store::default());
    let mut pipeline = prepared(operators(), &input, &output);
    let mut payloads = payloads(&experiences());
    payloads.insert(0, Bytes::new());
    let mut torn = payloads[3].to_vec();
    let last = torn.len() - 1;
    torn[last] ^= 1;
    payloads[3] = torn.into();
    let report = pipeline.process("7", &payloads).unwrap();
    let dropped = report.dropped.iter().map(|it| (&*it.operator, &*it.reason, it.count));
    let low_std = ("reward_std_filter", "low_std", 2);
    assert_eq!(dropped.collect::<Vec<_>>(), [("decode", "invalid", 1), low_std]);
    assert_eq!((report.submitted, report.stored), (payloads.len() - 1, payloads.len() - 4));
    let metric = report.metrics.get("experience_pipeline/decode/filtered/invalid");
    assert_eq!(metric, Some(1.0));
}

#[test]
fn a_write_that_failed_is_repeated_without_a_trace() {
    for faults in [
        &[Fault::Refused][..],
        &[Fault::AnswerLost],
        &[Fault::AnswerLost, Fault::Refused, Fault::AnswerLost],
    ] {
        for at_output in [false, true] {
            let (input, output) = (Store::default(), Store::default());
            if at_output { &output } else { &input }.state().faults.extend(faults);
            let mut pipeline = prepared(operators(), &input, &output);
            for _ in faults {
                let error = pipeline.process("7", &payloads(&experiences())).unwrap_err();
                match error {
                    PipelineError::Output(_) => assert!(at_output),
                    PipelineError::Input(_) => assert!(!at_output && output.writes() == 0),
                    other => panic!("{other}"),
                }
            }
            let report = pipeline.process("7", &payloads(&experiences())).unwrap();
            assert_took_all(&report, &input, &output);
        }
    }
}

#[test]
fn a_repeated_call_says_the_same_and_stores_nothing() {
    let (input, output) = (Store::default(), Store::default());
    let mut pipeline = prepared(operators(), &input, &output);
    let first = pipeline.process("7", &payloads(&experiences())).unwrap();
    // After a crash there is a new pipeline on the same stores.
    let mut pipeline = prepared(operators(), &input, &output);
    let again = pipeline.process("7", &payloads(&experiences())).unwrap();
    assert_took_all(&again, &input, &output);
    assert_eq!((first.stored, first.known), (3, 0));
    assert_eq!((again.stored, again.known), (0, 3));
    assert_eq!((&first.dropped, &first.selector), (&again.dropped, &again.selector));
    let numbers = |report: &PipelineReport| -> Vec<(String, f64)> {
        let all = report.metrics.iter().map(|(key, value)| (key.to_string(), value));
        all.filter(|(key, _)| !key.starts_with("time/")).collect()
    };
    assert_eq!(numbers(&first), numbers(&again));
}

/// An operator that changes its input and fails in the first call.
fn moody(fail: impl Fn() -> OperatorError + Send + 'static) -> Box<dyn Operator> {
    let mut calls = 0;
    custom("moody", move |mut all| {
        assert_eq!(all, experiences(), "the same experiences come again, as they were");
        calls += 1;
        for experience in &mut all {
            experience.reward = experience.reward.map(|reward| reward * 2.0);
        }
        if calls == 1 { Err(fail()) } else { Ok(OperatorOutput::new(all)) }
    })
}

#[test]
fn failures_and_panics_of_operators_are_named_and_lose_nothing() {
    type Fail = fn() -> OperatorError;
    let cases: [(Fail, &str); 2] = [
        (|| OperatorError::new("no disk"), "operator `moody` failed: no disk"),
        (
            || panic!("index {} is out of bounds", 7),
            "operator `moody` panicked: index 7 is out of bounds",
        ),
    ];
    for (fail, expected) in cases {
        let (input, output) = (Store::default(), Store::default());
        let mut all = operators();
        all.insert(0, moody(fail));
        let mut pipeline = prepared(all, &input, &output);
        let error = pipeline.process("7", &payloads(&experiences())).unwrap_err();
        let cause = std::error::Error::source(&error).map(|source| format!(": {source}"));
        assert_eq!(error.to_string() + &cause.unwrap_or_default(), expected);
        assert_eq!(output.writes(), 0);
        let report = pipeline.process("7", &payloads(&experiences())).unwrap();
        assert_took_all(&report, &input, &output);
    }
}

#[test]
fn an_experience_that_breaks_the_rules_is_named() {
    let output = Store::default();
    let breaker = custom("breaker", |mut all| {
        all[1].tokens = [].into();
        Ok(OperatorOutput::new(all))
    });
    let error =
        pipeline(vec![breaker], &output).process("7", &payloads(&experiences())).unwrap_err();
    assert_eq!(
        error.to_string(),
        "experience 1/1/1/0/00000a cannot be encoded after the operators"
    );
    assert_eq!(output.writes(), 0);
}

/// Counts `prepare` and `close`; the first `prepare` fails unless `is_ready`.
struct Slow {
    open: Arc<AtomicUsize>,
    is_ready: bool,
}

impl Operator for Slow {
    fn name(&self) -> &str {
        "slow"
    }

    fn prepare(&mut self) -> Result<(), OperatorError> {
        if !std::mem::replace(&mut self.is_ready, true) {
            return Err(OperatorError::new("not yet"));
        }
        self.open.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn process(&mut self, experiences: Vec<Experience>) -> Result<OperatorOutput, OperatorError> {
        Ok(OperatorOutput::new(experiences))
    }

    fn close(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn operators_get_ready_together_or_not_at_all() {
    let output = Store::default();
    let open = Arc::new(AtomicUsize::new(0));
    let slow = |is_ready| Box::new(Slow { open: open.clone(), is_ready }) as Box<dyn Operator>;
    let mut pipeline = Pipeline::new(vec![slow(true), slow(false)], None, output.writer());
    let error = pipeline.prepare().unwrap_err();
    assert_eq!(error.to_string(), "operator `slow#2` cannot be prepared");
    assert_eq!(open.load(Ordering::Relaxed), 0);
    assert!(matches!(pipeline.process("7", &[]), Err(PipelineError::NotPrepared)));
    pipeline.prepare().unwrap();
    assert_eq!(open.load(Ordering::Relaxed), 2);
    pipeline.close().unwrap();
    assert_eq!(open.load(Ordering::Relaxed), 0);
}

#[test]
fn closing_ends_the_data_and_can_be_repeated() {
    let (input, output) = (Store::default(), Store::default());
    let mut pipeline = prepared(operators(), &input, &output);
    output.state().close_faults = 1;
    assert!(matches!(pipeline.close(), Err(PipelineError::Output(_))));
    assert!(input.state().closed && !output.state().closed);
    let refused = pipeline.process("7", &payloads(&experiences()));
    assert!(matches!(refused, Err(PipelineError::Closed)));
    pipeline.close().unwrap();
    pipeline.close().unwrap();
    assert!(output.state().closed);
    assert!(matches!(pipeline.prepare(), Err(PipelineError::Closed)));
    assert_eq!((input.writes(), output.writes()), (0, 0));
}

#[test]
fn a_batch_without_experiences_writes_nothing() {
    let (input, output) = (Store::default(), Store::default());
    let mut pipeline = prepared(operators(), &input, &output);
    let report = pipeline.process("7", &[Bytes::new()]).unwrap();
    assert_eq!((report.submitted, report.stored, report.dropped_count()), (0, 0, 0));
    assert_eq!(report.metrics.get("experience_pipeline/experience_count"), Some(0.0));
    assert_eq!((input.writes(), output.writes()), (0, 0));
}

#[test]
fn reward_that_an_operator_makes_invalid_is_its_failure() {
    for (wrong, of_token) in [(f64::NAN, false), (f64::INFINITY, false), (f64::NAN, true)] {
        let (input, output) = (Store::default(), Store::default());
        let spoil = custom("spoil", move |mut experiences: Vec<Experience>| {
            if of_token {
                experiences[1].token_level_reward = Some([0.5, wrong as f32].into());
            } else {
                experiences[1].reward = Some(wrong);
            }
            Ok(OperatorOutput::new(experiences))
        });
        let error = prepared(vec![spoil], &input, &output)
            .process("7", &payloads(&experiences()))
            .unwrap_err();
        assert!(error.is_content(), "{error}");
        let message = error.to_string();
        assert!(
            message.starts_with("operator `spoil` set the reward of 1/1/1/0/00000a"),
            "{message}"
        );
        assert_eq!(output.writes(), 0);
    }
    // An invalid reward of the input is left to the filters.
    let (input, output) = (Store::default(), Store::default());
    let mut broken = experiences();
    broken[0].reward = Some(f64::NAN);
    let filter = vec![build("invalid_reward_filter", no_args())];
    let report = prepared(filter, &input, &output).process("7", &payloads(&broken)).unwrap();
    assert_eq!((report.stored, report.dropped_count()), (4, 1));
}
