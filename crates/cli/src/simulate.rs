//! `rollway run` in mode `simulate`: runs the job of a configuration in virtual time.

use rollway::config::{Config, SimulationFaults};
use rollway_core::CancelReason;
use rollway_sim::job::{JobFaults as Rates, JobReport, SimStepReport, SimulatedJob, run_job};
use rollway_sim::random::FaultRate;

use crate::CliError;

/// Runs the job of a checked configuration to its end.
pub(crate) fn simulate(config: &Config) -> Result<(), CliError> {
    let job = job(config);
    outln!(
        "{} steps of {} tasks × {} runs on {} simulated runners, seed {}",
        job.steps,
        job.batch_size,
        job.repeat_times,
        job.config.runners,
        job.seed
    );
    outln!(" step    time     ok  partial  failed  canc  delivered  dropped");
    let report = run_job(&job, print_step).map_err(CliError::Job)?;
    print_summary(&report);
    if report.counters.balanced() {
        return Ok(());
    }
    Err(CliError::Job(format!(
        "internal error: counters do not balance: {:?}; report it with the configuration",
        report.counters
    )))
}

fn print_step(step: SimStepReport) {
    let SimStepReport { step, at, result } = step;
    let seconds = at.as_nanos() / 1_000_000_000;
    let tasks = result.tasks;
    outln!(
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
    outln!();
    outln!(
        "done in {:.0} s of virtual time; runners busy {:.0} % of it",
        took.as_secs_f64(),
        utilization * 100.0
    );
    outln!(
        "runs: {} submitted = {} succeeded + {} failed + {} cancelled",
        runs.submitted,
        runs.succeeded,
        runs.failed.total(),
        runs.cancelled.total(),
    );
    let failed = runs.failed.nonzero().map(|(kind, count)| format!("{count} {kind}"));
    print_list("failed after all retries", failed);
    let retried = counters.retries.nonzero().map(|(kind, count)| format!("{count} {kind}"));
    print_list("retried after", retried);
    let over = runs.cancelled[CancelReason::OverRollout];
    if over > 0 {
        outln!("  cancelled because enough others finished: {over}");
    }
    outln!(
        "payloads: {} received = {} delivered + {} dropped",
        counters.payloads_received,
        counters.payloads_delivered,
        counters.payloads_dropped.total()
    );
    let dropped = counters.payloads_dropped.nonzero();
    print_list("dropped as", dropped.map(|(reason, count)| format!("{count} {reason}")));
    outln!("runners lost and replaced: {}", counters.runners_lost);
}

fn print_list(label: &str, items: impl Iterator<Item = String>) {
    let items: Vec<String> = items.collect();
    if !items.is_empty() {
        outln!("  {label}: {}", items.join(", "));
    }
}

/// Returns the simulated job that a checked configuration describes.
fn job(config: &Config) -> SimulatedJob {
    let SimulationFaults { raise, hang, crash, model_unavailable } = config.simulation.faults;
    let buffer = &config.buffer;
    SimulatedJob {
        seed: config.simulation.seed,
        config: config.to_core(config.explorer.runner_per_model),
        steps: buffer.total_steps.unwrap_or(1),
        window: config.synchronizer.sync_interval,
        batch_size: buffer.batch_size,
        repeat_times: config.algorithm.repeat_times,
        min_wait_num: config.explorer.over_rollout.min_wait_num(buffer.batch_size),
        run_time: config.simulation.run_seconds.0,
        faults: Rates {
            raise: rate(raise),
            hang: rate(hang),
            crash: rate(crash),
            model_unavailable: rate(model_unavailable),
        },
    }
}

fn rate(percent: f64) -> FaultRate {
    FaultRate((percent * 100.0).round() as u32)
}
