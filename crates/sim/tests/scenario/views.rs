//! Text of the core's getters for the `show` command.

use rollway_core::{BatchView, Core, Counters, DeadlineReason, RunnerState, RunnerView};

use super::command::ScenarioView;
use super::labels::{self, ScenarioLabels, batch_id, instant, seconds};
use super::results::{counted, run_tally, task_tally, wrapped};

pub(super) fn show(
    core: &Core,
    names: &ScenarioLabels,
    view: &ScenarioView,
    lines: &mut Vec<String>,
) {
    match view {
        ScenarioView::Batch(id) => match core.batch(id) {
            None => lines.push(format!("no batch {}", batch_id(id))),
            Some(view) => lines.extend(batch(names, &view)),
        },
        ScenarioView::Step(id) => {
            let has = if core.has_step(id) { "a" } else { "no" };
            lines.push(format!("{has} step {}", batch_id(id)));
        }
        ScenarioView::Runners => lines.extend(core.runners().map(|view| runner(names, &view))),
        ScenarioView::Counters => counters(core.counters(), lines),
        ScenarioView::Deadline => lines.push(core.next_deadline().map_or_else(
            || "no deadline".to_owned(),
            |deadline| format!("{} at {}", wake(deadline.reason), instant(deadline.at)),
        )),
        ScenarioView::Timeout => lines.push(seconds(core.dynamic_timeout(None))),
    }
}

fn batch(names: &ScenarioLabels, view: &BatchView) -> Vec<String> {
    let BatchView {
        batch: _,
        key,
        kind,
        state,
        runs,
        tasks,
        open_tasks,
        results,
        payload_bytes,
        waiters,
    } = view;
    let state = state.map_or_else(|| "scheduled".to_owned(), |state| state.to_string());
    let held = [("results", *results), ("bytes", *payload_bytes)];
    let name = names.batch(*key);
    let mut parts = vec![format!("{name} {kind} {state}: {}", task_tally(*open_tasks, tasks))];
    parts.push(run_tally(runs));
    parts.extend(counted("holds", held.into_iter()));
    if *waiters > 0 {
        parts.push(format!("waiters {waiters}"));
    }
    wrapped(&parts)
}

fn runner(names: &ScenarioLabels, view: &RunnerView) -> String {
    let RunnerView { runner, incarnation, state, since, work, message, .. } = view;
    let mut parts = vec![labels::runner(*runner, *incarnation), state.name().to_owned()];
    if let RunnerState::Busy(attempt) | RunnerState::Cancelling(attempt) = state {
        parts.push(labels::attempt(*attempt));
    }
    parts.push(format!("since {}", instant(*since)));
    if let Some((batch, task, began)) = work {
        parts.push(format!("{}/{task}", names.batch(*batch)));
        parts.push(
            began.map_or_else(
                || "not begun".to_owned(),
                |began| format!("begun {}", instant(began)),
            ),
        );
    }
    if let Some(message) = message {
        parts.push(format!("({message})"));
    }
    parts.join(" ")
}

/// Appends the counters that are not zero, without the number of inputs.
fn counters(counters: &Counters, lines: &mut Vec<String>) {
    let Counters {
        runs,
        // `runs` is the sum of both.
        train: _,
        eval: _,
        inputs: _,
        attempts_started,
        attempts_ended,
        retries,
        ignored_reports: disbelieved,
        batches_restored,
        runs_restored,
        payloads_restored,
        payloads_received,
        payloads_delivered,
        payloads_dropped,
        payloads_held,
        payload_bytes_held,
        requests,
        answers,
        abandoned: withdrawn,
        runners_started,
        runners_stopped,
        runners_lost,
        messages_truncated: messages_cut,
        metrics_dropped,
        durations_dropped,
    } = *counters;
    lines.push(run_tally(&runs));
    let groups: [(&str, &[(&str, u64)]); 6] = [
        ("attempts", &[("started", attempts_started), ("ended", attempts_ended)]),
        (
            "restored",
            &[
                ("batches", batches_restored),
                ("runs", runs_restored),
                ("payloads", payloads_restored),
            ],
        ),
        (
            "payloads",
            &[
                ("received", payloads_received),
                ("delivered", payloads_delivered),
                ("held", payloads_held),
                ("bytes", payload_bytes_held),
            ],
        ),
        ("requests", &[("asked", requests), ("answered", answers), ("withdrawn", withdrawn)]),
        (
            "runners",
            &[("started", runners_started), ("stopped", runners_stopped), ("lost", runners_lost)],
        ),
        (
            "limited",
            &[
                ("messages", messages_cut),
                ("metrics", metrics_dropped),
                ("durations", durations_dropped),
            ],
        ),
    ];
    for (what, counts) in groups {
        lines.extend(counted(what, counts.iter().copied()));
    }
    lines.extend(counted("retries", retries.named()));
    lines.extend(counted("dropped", payloads_dropped.named()));
    lines.extend(counted("ignored", disbelieved.named()));
}

fn wake(reason: DeadlineReason) -> String {
    match reason {
        DeadlineReason::Runner(runner) => format!("runner {runner}"),
        DeadlineReason::HeartbeatTimeout(runner) => format!("silence of {runner}"),
        DeadlineReason::Waiter(request) => format!("waiter {request}"),
        DeadlineReason::Retry(_) => "retry".to_owned(),
        DeadlineReason::AnyRunner => "elsewhere".to_owned(),
        DeadlineReason::Delivery(lease) => format!("delivery {}", labels::lease(lease)),
        DeadlineReason::Stop => "stop".to_owned(),
        DeadlineReason::Scaling => "scaling".to_owned(),
    }
}
