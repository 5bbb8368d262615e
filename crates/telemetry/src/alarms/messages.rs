//! Messages of alarms: the condition, and what to do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub(super) use rollway_base::human::duration as time;
use rollway_core::{RunFailure, RunnerId};

use rollway_engine::job_wait::{JobWait, WaitReason};

use super::fairness::StarvedWorkflow;
use crate::failures::headline;

pub(super) fn no_progress(stalled: Duration, busy: &[String], wait: Option<&JobWait>) -> String {
    let cause = match (busy, wait.map(|wait| &wait.reason)) {
        (
            _,
            Some(
                reason @ (WaitReason::Server { .. }
                | WaitReason::Runner { .. }
                | WaitReason::Retry { .. }
                | WaitReason::PayloadBudget { .. }),
            ),
        ) => format!("{}\nhint: {}", reason.message(), reason.remedy()),
        ([], _) => {
            "no runner is busy, though runs are pending: check that runners start and models are \
               reachable"
                .to_owned()
        }
        (busy, _) => format!(
            "longest: {}\nhint: check what they wait for; `explorer.max_timeout` bounds an \
             attempt, and a single run can be cancelled",
            busy.join("; ")
        ),
    };
    format!("no run has ended for {}; {cause}", time(stalled))
}

pub(super) fn failures(count: u32, failure: &RunFailure, stops: bool) -> String {
    let remedy = failure.kind.remedy();
    let stop = if stops { "; the job is stopped, run the same command to resume" } else { "" };
    let (kind, message) = (failure.kind, headline(&failure.message));
    format!("{count} runs failed in a row, the last as {kind}: {message}\nhint: {remedy}{stop}")
}

pub(super) fn waiting(waited: Duration, wait: &JobWait) -> String {
    let now = wait.since + waited;
    wait.message(now)
}

pub(super) fn staleness(step: u64, mean: f64, max: f64) -> String {
    format!(
        "experiences of step {step} are {mean:.1} versions old on average (alarms.staleness: \
         {max})\nhint: sync weights more often (`synchronizer.sync_interval`), have \
          fewer steps in flight \
         (`synchronizer.sync_offset`), or drop stale experiences in the pipeline"
    )
}

pub(super) fn starvation(starved: &StarvedWorkflow) -> String {
    let condition = match starved {
        StarvedWorkflow::Waits { workflow, its, others } => format!(
            "tasks of `{workflow}` wait {its:.1} s for their first attempt, others {others:.1} s"
        ),
        StarvedWorkflow::Cancelled { workflow, its, others } => format!(
            "{:.0} % of the tasks of `{workflow}` are kept, {:.0} % of others: biased training \
             data",
            its * 100.0,
            others * 100.0
        ),
    };
    format!(
        "{condition}\nhint: give slow tasks more time (smaller `explorer.over_rollout.ratio`, \
         larger `explorer.max_timeout`) or a separate job"
    )
}

pub(super) fn quarantined(step: u64, runs: u64) -> String {
    format!(
        "{runs} runs of step {step} could not be delivered and are in the folder `quarantine` of \
         the job: they are not trained on\nhint: `reason.txt` there has the error; correct the \
         operator or the workflow that it names (`explorer.delivery_attempts` is the number of \
         tries)"
    )
}

pub(super) fn dropped(drops: &BTreeMap<&'static str, u64>) -> String {
    let drops: Vec<String> =
        drops.iter().map(|(observer, count)| format!("{observer}: {count}")).collect();
    format!(
        "observers cannot keep up and drop events ({}); the job is not affected\nhint: check the \
         disk or the server of the monitor; `rollway_telemetry_dropped_total` has the count",
        drops.join(", ")
    )
}

pub(super) fn broken(broken: &BTreeMap<RunnerId, Arc<str>>) -> String {
    let first =
        broken.iter().next().map(|(runner, message)| format!("{runner}: {}", headline(message)));
    format!(
        "runners fail to start repeatedly; starts are retried. Runner {}\nhint: test with the \
         job's Python: `python -c 'import rollway'`",
        first.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use rollway_core::FailureKind;

    use super::*;

    #[test]
    fn failure_shows_the_exception_and_not_the_end_of_its_traceback() {
        let message = "KeyError: 'answer' (flows.py:7)\n    task.raw[\"answer\"]\n    ~~~~~~~~^^^^";
        let failure = RunFailure::new(FailureKind::Workflow, message);
        let alarm = failures(50, &failure, false);
        assert!(alarm.contains("as workflow: KeyError: 'answer' (flows.py:7)\n"), "{alarm}");
    }
}
