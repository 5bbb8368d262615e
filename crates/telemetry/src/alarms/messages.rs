//! What is said to people when something goes wrong: what it is, and what to do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub(super) use rollway_base::human::duration as time;
use rollway_core::{FailureKind, RunnerId};

use super::fairness::StarvedWorkflow;

/// How much of an error message is shown.
const MESSAGE: usize = 300;

pub(super) fn no_progress(stood: Duration, under_way: &[String]) -> String {
    let what = match under_way {
        [] => "no runner is at work, though runs wait: see whether runners start and models are \
               there"
            .to_owned(),
        oldest => format!(
            "the oldest: {}\nhint: look at what they wait for; `explorer.max_timeout` bounds an \
             attempt, and a run can be cancelled by itself",
            oldest.join("; ")
        ),
    };
    format!("no run has ended for {}; {what}", time(stood))
}

pub(super) fn failures(count: u32, kind: FailureKind, message: &str, stops: bool) -> String {
    let remedy = match kind {
        FailureKind::Workflow => "`rollway debug` runs one task and shows the whole traceback",
        FailureKind::Timeout => {
            "see what takes so long, or raise `explorer.max_timeout`; `rollway debug` runs one task"
        }
        FailureKind::RunnerLost => {
            "the log says how the processes of runners ended; memory is the usual cause"
        }
        FailureKind::ModelUnavailable => "see whether the inference servers answer",
        FailureKind::InvalidOutput => {
            "`rollway debug` runs one task and shows what the workflow returned"
        }
    };
    let then = match stops {
        true => "; the job is ended, and the same command goes on",
        false => "",
    };
    let message = clip(message);
    format!("{count} runs failed in a row, the last as {kind}: {message}\nhint: {remedy}{then}")
}

pub(super) fn staleness(step: u64, mean: f64, most: f64) -> String {
    format!(
        "experiences of step {step} lag {mean:.1} versions behind the newest weights on average \
         (alarms.staleness: {most})\nhint: exchange weights more often \
         (`synchronizer.sync_interval`), have fewer steps in flight (`synchronizer.sync_offset`), \
         or drop what is too old in the pipeline"
    )
}

pub(super) fn starvation(starved: &StarvedWorkflow) -> String {
    let what = match starved {
        StarvedWorkflow::Waits { class, its, others } => format!(
            "tasks of `{class}` wait {its:.1} s until they are begun, those of others {others:.1} s"
        ),
        StarvedWorkflow::Cut { class, its, others } => format!(
            "of the tasks of `{class}` {:.0} % are kept, of others {:.0} %: what is trained on is \
             biased",
            its * 100.0,
            others * 100.0
        ),
    };
    format!(
        "{what}\nhint: give slow tasks more time (a smaller `explorer.over_rollout.ratio`, a \
         larger `explorer.max_timeout`), or a job of their own"
    )
}

pub(super) fn dropped(drops: &BTreeMap<&'static str, u64>) -> String {
    let drops: Vec<String> = drops.iter().map(|(who, count)| format!("{who}: {count}")).collect();
    format!(
        "what watches the job cannot keep up and drops what it is told ({}); the job itself is not \
         affected\nhint: see its disk or its server; `rollway_telemetry_dropped_total` counts on",
        drops.join(", ")
    )
}

pub(super) fn broken(broken: &BTreeMap<RunnerId, Arc<str>>) -> String {
    let first =
        broken.iter().next().map(|(runner, message)| format!("{runner}: {}", clip(message)));
    format!(
        "runners do not start, again and again; they are tried on and on. Runner {}\nhint: start \
         one by hand to see what is wrong: `python -c 'import rollway'` with the job's Python",
        first.unwrap_or_default()
    )
}

/// The last line of a traceback says most; long ones are cut.
fn clip(message: &str) -> String {
    let line = message.trim_end().lines().last().unwrap_or("no message");
    match line.char_indices().nth(MESSAGE) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}
