//! Metrics of tasks and batches, under the names that users log. Computed on demand from the kept
//! results, not while the core decides: bootstrap estimates are slow.

use crate::metrics::{
    BATCH_STATS, EvalDetail, Metrics, Purpose, TASK_SECONDS, calculate_task_level_metrics,
    gather_eval_metrics, gather_metrics,
};
use crate::{BatchResult, BatchType, Status};

impl Status {
    /// Returns the metrics of the task, which do not depend on the order in which its runs ended.
    pub fn metrics(&self, kind: BatchType) -> Metrics {
        let seconds = self.attempt_seconds.iter().map(|seconds| {
            let pair: [(&str, f64); 1] = [(TASK_SECONDS, *seconds)];
            pair.into_iter().collect()
        });
        let runs: Vec<Metrics> = self.run_metrics.iter().cloned().chain(seconds).collect();
        let purpose = match kind {
            BatchType::Train => Purpose::Train,
            BatchType::Eval => Purpose::Eval { planned: Some(self.total_runs as usize) },
        };
        calculate_task_level_metrics(&runs, purpose)
    }
}

impl BatchResult {
    /// Returns the metrics of the batch: those of the sink, those of the finished tasks under
    /// `rollout/` or `eval/<name>/`, and the ends of tasks and runs.
    pub fn metrics(&self, detail: EvalDetail<'_>) -> Metrics {
        let tasks: Vec<Metrics> =
            self.statuses.iter().map(|(_, status)| status.metrics(self.kind)).collect();
        let (prefix, gathered) = match self.kind {
            BatchType::Train => {
                ("rollout".to_owned(), gather_metrics(&tasks, "rollout", &BATCH_STATS))
            }
            BatchType::Eval => {
                let prefix = format!("eval/{}", self.batch.eval_name());
                let gathered = gather_eval_metrics(&tasks, &prefix, detail);
                (prefix, gathered)
            }
        };
        let mut metrics = self.sink_metrics.clone();
        for (key, value) in gathered.iter() {
            metrics.set(key.clone(), value);
        }
        let counts = [
            ("finished_task_count", self.finished()),
            ("ok_task_count", self.tasks.ok),
            ("partial_task_count", self.tasks.partial),
            ("failed_task_count", self.tasks.failed),
            ("cancelled_task_count", self.tasks.cancelled),
        ];
        for (name, count) in counts {
            metrics.set(format!("{prefix}/{name}"), count as f64);
        }
        for (kind, count) in self.runs.failed.nonzero() {
            metrics.set(format!("{prefix}/failed_run_count/{kind}"), count as f64);
        }
        for (reason, count) in self.runs.cancelled.nonzero() {
            metrics.set(format!("{prefix}/cancelled_run_count/{reason}"), count as f64);
        }
        for (reason, count) in self.dropped.nonzero() {
            metrics.set(format!("{prefix}/dropped_payload_count/{reason}"), count as f64);
        }
        metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::FailureKind;

    #[test]
    fn a_task_with_a_failed_run_reports_under_the_planned_number() {
        let run = |reward: f64| [("reward", reward)].into_iter().collect();
        let mut status = Status {
            completed_runs: 2,
            total_runs: 3,
            run_metrics: vec![run(1.0), run(0.0)],
            attempt_seconds: vec![2.0, 4.0],
            ..Status::default()
        };
        status.failed_runs[FailureKind::Timeout] = 1;
        let train = status.metrics(BatchType::Train);
        assert_eq!((train.get("reward"), train.get(TASK_SECONDS)), (Some(0.5), Some(3.0)));
        let eval = status.metrics(BatchType::Eval);
        assert_eq!(eval.get("reward/mean@3"), Some(0.5));
        assert_eq!(eval.get(TASK_SECONDS), Some(3.0));
        assert!(status.message().is_some_and(|message| message.starts_with("2/3 runs completed")));
    }
}
