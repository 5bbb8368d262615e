//! Experiences and operators for the tests.

use bytes::Bytes;
use rollway_data::pipeline::{
    Operator, OperatorError, OperatorOutput, OperatorRegistry, Pipeline, PipelineReport,
};
use rollway_experience::{Eid, Experience, ExperienceFields, Json, serialize_many};
use serde_json::{Value, json};

use crate::store::Store;

/// An experience of a run of a task, with two tokens of response, of which the model made one.
pub(crate) fn experience(task: i64, run: u64, reward: Option<f64>) -> Experience {
    let fields = ExperienceFields {
        eid: Eid { batch: 1.into(), task: task.into(), run, step: 0, suffix: "00000a".into() },
        tokens: [1, 2, 3].into(),
        prompt_length: 1,
        action_mask: Some([true, false].into()),
        reward,
        ..ExperienceFields::default()
    };
    Experience::new(fields).expect("an experience")
}

pub(crate) fn with_info(mut experience: Experience, info: &Value) -> Experience {
    experience.info = Json::from_value(info).expect("an object");
    experience
}

pub(crate) fn task(number: i64, rewards: &[f64]) -> Vec<Experience> {
    let run = |(run, &reward): (usize, &f64)| experience(number, run as u64, Some(reward));
    rewards.iter().enumerate().map(run).collect()
}

/// One payload for each experience.
pub(crate) fn payloads(experiences: &[Experience]) -> Vec<Bytes> {
    experiences
        .chunks(1)
        .map(|one| serialize_many(one).expect("experiences that keep to the rules"))
        .collect()
}

pub(crate) fn build(name: &str, args: Value) -> Box<dyn Operator> {
    OperatorRegistry::built_in().build(name, &args).expect("valid arguments")
}

/// Runs one operator by itself.
pub(crate) fn apply(name: &str, args: Value, experiences: Vec<Experience>) -> OperatorOutput {
    build(name, args).process(experiences).expect("no fault")
}

pub(crate) fn reasons(outcome: &OperatorOutput) -> Vec<(&str, usize)> {
    outcome.dropped.iter().map(|(reason, &count)| (reason.as_ref(), count)).collect()
}

pub(crate) fn runs(outcome: &OperatorOutput) -> Vec<u64> {
    outcome.experiences.iter().map(|experience| experience.eid.run).collect()
}

/// A prepared pipeline without an input store.
pub(crate) fn pipeline(operators: Vec<Box<dyn Operator>>, output: &Store) -> Pipeline {
    let mut pipeline = Pipeline::new(operators, None, output.writer());
    pipeline.prepare().expect("operators without needs");
    pipeline
}

pub(crate) fn keys(report: &PipelineReport) -> Vec<String> {
    report.metrics.iter().map(|(key, _)| key.to_string()).collect()
}

/// Asserts that every experience is accounted for.
pub(crate) fn assert_balanced(report: &PipelineReport) {
    let out = report.dropped_count() + report.stored + report.known;
    assert_eq!(report.submitted + report.added, out, "{report:?}");
}

pub(crate) fn no_args() -> Value {
    json!(null)
}

pub(crate) struct Custom<F>(&'static str, F);

impl<F> Operator for Custom<F>
where
    F: FnMut(Vec<Experience>) -> Result<OperatorOutput, OperatorError> + Send,
{
    fn name(&self) -> &str {
        self.0
    }

    fn process(&mut self, experiences: Vec<Experience>) -> Result<OperatorOutput, OperatorError> {
        self.1(experiences)
    }
}

pub(crate) fn custom<F>(name: &'static str, process: F) -> Box<dyn Operator>
where
    F: FnMut(Vec<Experience>) -> Result<OperatorOutput, OperatorError> + Send + 'static,
{
    Box::new(Custom(name, process))
}
