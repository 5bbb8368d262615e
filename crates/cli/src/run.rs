//! `rollway run`: runs the job and shows what came of it.

#![expect(clippy::print_stdout, reason = "the result of a job is data for standard output")]

use rollway::config::{Config, Mode, schema};
use rollway_core::CancelReason;
use rollway_sim::job::{JobReport, StepReport, run_job};

use crate::Failure;
use crate::serve::serve;
use crate::simulate::job;

/// Prints the JSON Schema of the configuration.
pub(crate) fn print_schema() {
    println!("{:#}", schema());
}

/// Runs the job of a checked configuration to its end.
pub(crate) fn run(config: &Config) -> Result<(), Failure> {
    match config.mode {
        Mode::Simulate => simulate(config),
        Mode::Serve => serve(config),
        Mode::Both | Mode::Explore | Mode::Train | Mode::Bench => {
            let message = "this version runs `mode: simulate` and `mode: serve` only\n\
                hint: the scheduler and the coordinator can be used from Python and from Rust";
            Err(Failure::Input(message.to_owned()))
        }
    }
}

fn simulate(config: &Config) -> Result<(), Failure> {
    let job = job(config);
    println!(
        "{} steps of {} tasks × {} runs on {} simulated runners, seed {}",
        job.steps, job.batch_size, job.repeat_times, job.config.runners, job.seed
    );
    println!(" step    time     ok  partial  failed  cut   delivered  dropped");
    let report = run_job(&job, print_step).map_err(Failure::Job)?;
    print_summary(&report);
    if report.counters.balanced() {
        return Ok(());
    }
    Err(Failure::Job(format!("the counters do not add up: {:?}", report.counters)))
}

fn print_step(step: StepReport) {
    let StepReport { step, at, result } = step;
    let seconds = at.as_nanos() / 1_000_000_000;
    let tasks = result.tasks;
    println!(
        "{step:>5} {:>3}m {:02}s  {:>5}  {:>7}  {:>6}  {:>3}   {:>9}  {:>7}",
        seconds / 60,
        seconds % 60,
        tasks.ok,
        tasks.partial,
        tasks.failed,
        tasks.cancelled,
        result.delivered,
        result.dropped.total(),
    );
}

fn print_summary(report: &JobReport) {
    let JobReport { took, utilization, counters } = report;
    let runs = &counters.runs;
    println!();
    println!(
        "done in {:.0} s of virtual time; runners busy {:.0} % of it",
        took.as_secs_f64(),
        utilization * 100.0
    );
    println!(
        "runs: {} submitted = {} succeeded + {} failed + {} cancelled",
        runs.submitted,
        runs.succeeded,
        runs.failed.total(),
        runs.cancelled.total(),
    );
    let failed = runs.failed.nonzero().map(|(kind, count)| format!("{count} {kind}"));
    print_list("failed for good", failed);
    let retried = counters.retries.nonzero().map(|(kind, count)| format!("{count} {kind}"));
    print_list("tried again after", retried);
    let over = runs.cancelled[CancelReason::OverRollout];
    if over > 0 {
        println!("  cut because enough others had finished: {over}");
    }
    println!(
        "payloads: {} received = {} delivered + {} dropped",
        counters.payloads_received,
        counters.payloads_delivered,
        counters.payloads_dropped.total()
    );
    let dropped = counters.payloads_dropped.nonzero();
    print_list("dropped as", dropped.map(|(reason, count)| format!("{count} {reason}")));
    println!("runners lost and replaced: {}", counters.runners_lost);
}

fn print_list(what: &str, items: impl Iterator<Item = String>) {
    let items: Vec<String> = items.collect();
    if !items.is_empty() {
        println!("  {what}: {}", items.join(", "));
    }
}
