//! Reasons why a job has no result.

use rollway_core::metrics::Metrics;
use rollway_core::{BatchId, BatchKey, BatchState, BatchType, TaskTally};

use super::*;

/// Result of a step: succeeded and failed tasks, delivered and filtered experiences.
fn result(ok: u64, failed: u64, delivered: f64, filtered: f64) -> BatchResult {
    let mut sink_metrics = Metrics::new();
    sink_metrics.set(EXPERIENCES, delivered);
    sink_metrics.set(FILTERED, filtered);
    BatchResult {
        batch: BatchId::from(1),
        key: BatchKey(1),
        kind: BatchType::Train,
        state: BatchState::Finalized,
        reason: None,
        tasks: TaskTally { ok, failed, ..TaskTally::default() },
        runs: Default::default(),
        delivered: 0,
        dropped: Default::default(),
        uncertain: 0,
        statuses: Vec::new(),
        sink_metrics,
    }
}

fn eval(score: Option<f64>, finished: u64, failed: u64) -> EvalSummary {
    EvalSummary { score, finished, failed, ..EvalSummary::default() }
}

/// Applies the steps of several processes.
fn after(processes: &[&[BatchResult]]) -> Summary {
    let mut summary = Summary::default();
    let mut step = 0;
    for results in processes {
        // The file of the summary is read by the next process.
        let text = serde_json::to_string(&summary).unwrap();
        summary = serde_json::from_str(&text).unwrap();
        for result in *results {
            step += 1;
            summary.step_done(step, result);
        }
    }
    summary
}

#[track_caller]
fn assert_missing(summary: &Summary, trained: Option<u64>, expected: &str) {
    let reason = summary.missing_result(trained);
    assert!(reason.as_ref().is_some_and(|reason| reason.contains(expected)), "{reason:?}");
}

#[test]
fn job_without_a_succeeded_task_or_experience_has_no_result() {
    let mut summary = after(&[&[result(0, 2, 0.0, 0.0), result(0, 1, 0.0, 0.0)]]);
    summary.failures = vec![FailureGroup {
        kind: "workflow".to_owned(),
        message: "KeyError: 'answer'".to_owned(),
        failed: 6,
        retried: 0,
    }];
    let expected = "none of 3 tasks succeeded; failed runs: 6 as workflow, most often: KeyError";
    assert_missing(&summary, None, expected);
    let dropped = after(&[&[result(2, 0, 0.0, 4.0)]]);
    assert_missing(&dropped, None, "2 tasks succeeded, but no experience was delivered");
    assert_eq!(after(&[&[result(1, 1, 2.0, 0.0)]]).missing_result(None), None);
    assert_eq!(Summary::default().missing_result(None), None);
}

#[test]
fn totals_of_earlier_processes_hide_no_process_without_a_result() {
    let good: &[BatchResult] = &[result(2, 0, 4.0, 0.0)];
    let failed = after(&[good, &[result(0, 2, 0.0, 0.0)]]);
    assert_missing(&failed, None, "since the job was resumed, none of 2 tasks succeeded");
    let lost = after(&[good, &[result(3, 0, 0.0, 0.0)]]);
    assert_missing(&lost, None, "since the job was resumed, 3 tasks succeeded, but no experience");
    // A process that finalizes no step has the same result.
    assert_missing(&after(&[good, &[result(0, 2, 0.0, 0.0)], &[]]), None, "none of 2");
    // Operators dropped the experiences of the last step.
    assert_eq!(after(&[good, &[result(2, 0, 0.0, 4.0)]]).missing_result(None), None);
    let repaired = after(&[&[result(0, 2, 0.0, 0.0)], good]);
    assert_eq!(repaired.missing_result(None), None);
}

#[test]
fn job_whose_evaluations_all_failed_or_have_no_score_has_no_result() {
    let evals = |evals: Vec<EvalSummary>| Summary { evals, ..Summary::default() };
    let failed = evals(vec![eval(None, 0, 2), eval(None, 0, 1)]);
    assert_missing(&failed, None, "no task of any evaluation succeeded");
    let unscored = evals(vec![eval(None, 2, 0), eval(None, 0, 2)]);
    assert_missing(&unscored, None, "no run of any evaluation returned a reward or a metric");
    let measured = EvalSummary { has_metrics: true, ..eval(None, 2, 0) };
    assert_eq!(evals(vec![measured]).missing_result(None), None);
    assert_eq!(evals(vec![eval(None, 0, 2), eval(Some(0.0), 1, 1)]).missing_result(None), None);
}

#[test]
fn trainer_without_a_train_step_has_no_result() {
    let train = Summary { mode: Mode::Train, ..Summary::default() };
    assert_missing(&train, Some(0), "made no train step");
    assert_eq!(train.missing_result(Some(1)), None);
    assert_eq!(train.missing_result(None), None, "steps of a program are unknown");
    let both = Summary { mode: Mode::Both, ..Summary::default() };
    assert_eq!(both.missing_result(Some(0)), None);
}
