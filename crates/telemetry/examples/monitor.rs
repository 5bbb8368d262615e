//! Sends scripted events to monitors, for tests that read them with TensorBoard and the packages.
//!
//! `monitor FOLDER [MONITOR]`, with the section `monitor` of a configuration in JSON, reads one
//! JSON object per line: `{"began": 3}` (the last finalized step),
//! `{"step": 4, "metrics": {…}}`, `{"eval": 4, …}` or `{"trained": 4, …}`. Event files are below
//! `FOLDER`.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rollway_config::{Config, Mode};
use rollway_core::metrics::Metrics;
use rollway_core::{
    BatchId, BatchKey, BatchResult, BatchState, BatchType, ByDropReason, RunTally, TaskTally,
};
use rollway_engine::job_event::{JobEvent, JobObservers};
use rollway_telemetry::DropCounters;
use rollway_telemetry::monitors;
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    began: Option<u64>,
    step: Option<u64>,
    eval: Option<u64>,
    trained: Option<u64>,
    #[serde(default)]
    metrics: BTreeMap<String, f64>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut config = Config::default();
    let usage = "usage: monitor FOLDER [MONITOR]";
    config.checkpoint_root_dir = std::env::args().nth(1).ok_or(usage)?;
    if let Some(section) = std::env::args().nth(2) {
        config.monitor = serde_json::from_str(&section)?;
    }
    let drops = DropCounters::default();
    let watchers = JobObservers::new(monitors::open(&config, &drops)?);
    for line in io::stdin().lines() {
        watchers.emit(&event(&config, serde_json::from_str(&line?)?)?);
    }
    // Writes the queued messages.
    drop(watchers);
    serde_json::to_writer(io::stdout(), &drops.read())?;
    Ok(())
}

fn event(config: &Config, line: Line) -> Result<JobEvent, Box<dyn Error>> {
    let metrics: Metrics = line.metrics.into_iter().collect();
    Ok(match (line.began, line.step, line.eval, line.trained) {
        (Some(done_steps), None, None, None) => JobEvent::Began {
            mode: Mode::Both,
            job_dir: config.job_dir(),
            done_steps,
            total_steps: None,
            tasks_per_step: 1,
            runners: 1,
        },
        (None, Some(step), None, None) => {
            JobEvent::StepDone { step, result: empty_result(), metrics, waited: Duration::ZERO }
        }
        (None, None, Some(step), None) => JobEvent::Evaluated {
            step,
            version: step,
            set: "held_out".into(),
            score: None,
            result: empty_result(),
            metrics,
        },
        (None, None, None, Some(step)) => JobEvent::Trained { step, metrics },
        _ => return Err("a line has one of `began`, `step`, `eval`, `trained`".into()),
    })
}

/// Returns the result of a batch without tasks: monitors use the metrics only.
fn empty_result() -> Arc<BatchResult> {
    Arc::new(BatchResult {
        batch: BatchId::Number(1),
        key: BatchKey(1),
        kind: BatchType::Train,
        state: BatchState::Finalized,
        reason: None,
        tasks: TaskTally::default(),
        runs: RunTally::default(),
        delivered: 0,
        dropped: ByDropReason::default(),
        uncertain: 0,
        statuses: Vec::new(),
        sink_metrics: Metrics::new(),
    })
}
