//! A whole job in virtual time: steps of tasks on a pool of runners, with heavy-tailed run times
//! and faults. It predicts the effect of a configuration; the decisions are those of production.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rollway_core::metrics::Metrics;
use rollway_core::{
    Action, AttemptId, BatchId, BatchResult, BatchType, Core, CoreConfig, Counters,
    DeliveryOutcome, FailureKind, Incarnation, Input, Payload, PayloadId, Request, RequestId,
    Response, RunFailure, RunOutput, RunRange, RunnerId, RunnerReport, Suspicion, TaskSpec, Time,
    WorkflowId,
};

use crate::process::RunnerKey;
use crate::queue::EventQueue;
use crate::random::{FaultRate, SimRandom};

#[derive(Clone, Debug)]
pub struct SimulatedJob {
    /// Seed of all durations and faults.
    pub seed: u64,
    /// Configuration of the scheduler, including the number of runners.
    pub config: CoreConfig,
    pub steps: u32,
    /// Number of batches in flight at once.
    pub window: u32,
    pub batch_size: u32,
    pub repeat_times: u32,
    /// Minimum number of tasks of a batch. `None`: all.
    pub min_wait_num: Option<u32>,
    /// Typical duration of a run. Some take ten times as long, a few hundreds of times.
    pub run_time: Duration,
    pub faults: JobFaults,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct JobFaults {
    /// The user's code raises an error.
    pub raise: FaultRate,
    /// The run never ends.
    pub hang: FaultRate,
    /// The runner dies.
    pub crash: FaultRate,
    /// No inference server responds.
    pub model_unavailable: FaultRate,
}

#[derive(Clone, Debug)]
pub struct SimStepReport {
    pub step: u32,
    /// Time of its finalization.
    pub at: Time,
    pub result: Arc<BatchResult>,
}

#[derive(Clone, Debug)]
pub struct JobReport {
    /// Duration in virtual time.
    pub took: Duration,
    /// Share of the runners' time with an attempt.
    pub utilization: f64,
    pub counters: Counters,
}

enum JobWorldEvent {
    Input(Input),
    NextRun(RunnerKey, AttemptId),
}

struct JobWork {
    incarnation: Incarnation,
    attempt: AttemptId,
    left: std::vec::IntoIter<u32>,
    since: Time,
}

struct JobWorld<'a, F> {
    job: &'a SimulatedJob,
    core: Core,
    rng: SimRandom,
    now: Time,
    events: EventQueue<JobWorldEvent>,
    working: BTreeMap<RunnerId, JobWork>,
    busy: Duration,
    requests: u64,
    payloads: u64,
    submitted: u32,
    finalized: u32,
    on_step: F,
}

/// Runs a job to its end and reports every finalized step.
///
/// # Errors
/// Describes a refused request, which a valid configuration excludes.
pub fn run_job(
    job: &SimulatedJob,
    on_step: impl FnMut(SimStepReport),
) -> Result<JobReport, String> {
    let mut config = job.config.clone();
    // Losses are always reported: no heartbeat timeout is needed.
    config.supervision.heartbeat_timeout = None;
    let mut world = JobWorld {
        job,
        core: Core::new(config),
        rng: SimRandom::new(job.seed),
        now: Time::ZERO,
        events: EventQueue::default(),
        working: BTreeMap::new(),
        busy: Duration::ZERO,
        requests: 0,
        payloads: 0,
        submitted: 0,
        finalized: 0,
        on_step,
    };
    world.request(Request::Start);
    while world.submitted < job.window.clamp(1, job.steps) {
        world.submit();
    }
    while world.finalized < job.steps {
        world.advance()?;
    }
    world.core.check()?;
    let runners = job.config.runners.max(1);
    let took = world.now.since(Time::ZERO);
    let available = took.as_secs_f64() * f64::from(runners);
    let utilization = if available > 0.0 { world.busy.as_secs_f64() / available } else { 0.0 };
    Ok(JobReport { took, utilization, counters: *world.core.counters() })
}

impl<F: FnMut(SimStepReport)> JobWorld<'_, F> {
    fn request(&mut self, what: Request) {
        self.requests += 1;
        let request = RequestId(self.requests);
        self.events.plan(self.now, JobWorldEvent::Input(Input::Requested { request, what }));
    }

    fn submit(&mut self) {
        self.submitted += 1;
        let batch = BatchId::from(i64::from(self.submitted));
        let spec = TaskSpec { repeat_times: self.job.repeat_times, workflow: WorkflowId(0) };
        let tasks = vec![spec; self.job.batch_size as usize];
        let kind = BatchType::Train;
        let min_wait_num = self.job.min_wait_num;
        self.request(Request::Submit { batch: batch.clone(), kind, tasks, min_wait_num });
        self.request(Request::Finalize { batch, kind, timeout: None });
    }

    /// Handles the next event or deadline of the core.
    fn advance(&mut self) -> Result<(), String> {
        let event = self.events.next_at();
        let deadline = self.core.next_deadline().map(|deadline| deadline.at);
        let input = match (event, deadline) {
            (Some(event), deadline) if deadline.is_none_or(|deadline| event <= deadline) => {
                let Some((at, event)) = self.events.take() else { return Ok(()) };
                self.now = at;
                match event {
                    JobWorldEvent::Input(input) => input,
                    JobWorldEvent::NextRun(at, attempt) => {
                        self.next_run(at, attempt);
                        return Ok(());
                    }
                }
            }
            (_, Some(deadline)) => {
                self.now = self.now.max(deadline);
                Input::TimePassed
            }
            (_, None) => return Err("no event is left".to_owned()),
        };
        let mut actions = Vec::new();
        self.core.apply(self.now, input, &mut actions);
        for action in actions {
            self.perform(action)?;
        }
        Ok(())
    }

    fn report(&mut self, after: Duration, (runner, incarnation): RunnerKey, report: RunnerReport) {
        let input = Input::Report { runner, incarnation, report };
        self.events.plan(self.now.after(after), JobWorldEvent::Input(input));
    }

    fn perform(&mut self, action: Action) -> Result<(), String> {
        const SHORT_DELAY: Duration = Duration::from_millis(1);
        match action {
            Action::StartRunner { runner, incarnation, .. } => {
                let ready = RunnerReport::Ready { after: None };
                self.report(Duration::from_secs(1), (runner, incarnation), ready);
            }
            Action::StopRunner { runner, .. } => self.stop_working(runner),
            Action::StartAttempt { runner, incarnation, attempt, runs, .. } => {
                self.start((runner, incarnation), attempt, &runs);
            }
            Action::CancelAttempt { runner, incarnation, attempt, .. } => {
                self.stop_working(runner);
                self.report(
                    SHORT_DELAY,
                    (runner, incarnation),
                    RunnerReport::AttemptEnded { attempt },
                );
            }
            Action::Deliver { lease, .. } => {
                let delivery = DeliveryOutcome::Acknowledged { metrics: Metrics::new() };
                let input = Input::DeliveryDone { lease, delivery };
                self.events.plan(self.now.after(SHORT_DELAY), JobWorldEvent::Input(input));
            }
            Action::Respond { answer: Response::Finalized(result), .. } => {
                self.finalized += 1;
                let step = self.finalized;
                (self.on_step)(SimStepReport { step, at: self.now, result });
                if self.submitted < self.job.steps {
                    self.submit();
                }
            }
            Action::Respond { answer: Response::Refused(refusal), .. } => {
                return Err(format!("refused: {refusal:?}"));
            }
            Action::Respond { .. }
            | Action::DropPayload { .. }
            | Action::ReleasePayloads(_)
            | Action::DropTasks { .. }
            | Action::AppendRecord(_) => {}
        }
        Ok(())
    }

    fn start(&mut self, at: RunnerKey, attempt: AttemptId, runs: &RunRange) {
        let left: Vec<u32> = runs.iter().map(|run| run.0).collect();
        let work = JobWork { incarnation: at.1, attempt, left: left.into_iter(), since: self.now };
        self.working.insert(at.0, work);
        self.report(Duration::ZERO, at, RunnerReport::AttemptBegan { attempt });
        self.events.plan(self.now, JobWorldEvent::NextRun(at, attempt));
    }

    fn stop_working(&mut self, runner: RunnerId) {
        if let Some(work) = self.working.remove(&runner) {
            self.busy += self.now.since(work.since);
        }
    }

    fn next_run(&mut self, at: RunnerKey, attempt: AttemptId) {
        let current = self.working.get_mut(&at.0);
        let current = current.filter(|work| work.incarnation == at.1 && work.attempt == attempt);
        // Otherwise the attempt was cancelled, or its runner replaced.
        let Some(work) = current else { return };
        let Some(run) = work.left.next() else {
            self.stop_working(at.0);
            return self.report(Duration::ZERO, at, RunnerReport::AttemptEnded { attempt });
        };
        let faults = self.job.faults;
        let took = self.rng.heavy(self.job.run_time);
        if self.rng.chance(faults.hang) {
            return;
        }
        if self.rng.chance(faults.crash) {
            let lost = RunnerReport::Lost { message: "killed".into(), suspicion: Suspicion::Sole };
            return self.report(took, at, lost);
        }
        let outcome = if self.rng.chance(faults.raise) {
            Err(RunFailure { kind: FailureKind::Workflow, message: "ValueError".into() })
        } else if self.rng.chance(faults.model_unavailable) {
            let message = "connection refused".into();
            Err(RunFailure { kind: FailureKind::ModelUnavailable, message })
        } else {
            self.payloads += 1;
            let payload = Some(Payload { id: PayloadId(self.payloads), bytes: 4_096 });
            let metrics = [("time/run_execution", took.as_secs_f64())].into_iter().collect();
            Ok(RunOutput { payload, metrics })
        };
        let report = RunnerReport::RunFinished { attempt, run: rollway_core::RunId(run), outcome };
        self.report(took, at, report);
        self.events.plan(self.now.after(took), JobWorldEvent::NextRun(at, attempt));
    }
}
