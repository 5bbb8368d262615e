//! A whole job in virtual time: steps of tasks on a pool of runners whose runs take heavy-tailed
//! times and sometimes go wrong. It answers what-if questions about a configuration before anybody
//! pays for a cluster; the decisions are the ones that production takes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rollway_core::metrics::Metrics;
use rollway_core::{
    Action, AttemptId, BatchId, BatchResult, BatchType, Core, CoreConfig, Counters,
    DeliveryOutcome, FailureKind, Incarnation, Input, Payload, PayloadId, Request, RequestId,
    Response, RunFailure, RunOutput, RunRange, RunnerId, RunnerReport, TaskSpec, Time, WorkflowId,
};

use crate::queue::EventQueue;
use crate::random::{FaultRate, SimRandom};

/// What is simulated.
#[derive(Clone, Debug)]
pub struct SimulatedJob {
    /// Decides every duration and every fault.
    pub seed: u64,
    /// The scheduler's own configuration, the number of runners included.
    pub config: CoreConfig,
    /// How many batches are run.
    pub steps: u32,
    /// How many of them are in flight at once.
    pub window: u32,
    /// How many tasks a batch has.
    pub batch_size: u32,
    /// How many runs a task has.
    pub repeat_times: u32,
    /// How many tasks of a batch are enough; none: all.
    pub min_wait_num: Option<u32>,
    /// What a run usually takes. Some take ten times as long, a few hundreds of times.
    pub run_time: Duration,
    /// What goes wrong.
    pub faults: JobFaults,
}

/// How often runs go wrong.
#[derive(Clone, Copy, Debug, Default)]
pub struct JobFaults {
    /// The user's code raises.
    pub raise: FaultRate,
    /// The run never ends.
    pub hang: FaultRate,
    /// The runner dies.
    pub crash: FaultRate,
    /// No inference server answers.
    pub model_unavailable: FaultRate,
}

/// What came of a step.
#[derive(Clone, Debug)]
pub struct SimStepReport {
    pub step: u32,
    /// When it was finalized.
    pub at: Time,
    pub result: Arc<BatchResult>,
}

/// What came of a job.
#[derive(Clone, Debug)]
pub struct JobReport {
    /// How long it took in virtual time.
    pub took: Duration,
    /// The share of the runners' time that was spent on attempts.
    pub utilization: f64,
    /// What the core counted.
    pub counters: Counters,
}

enum JobWorldEvent {
    Tell(Input),
    /// A runner that executes an attempt gets to its next run.
    NextRun {
        runner: RunnerId,
        life: Incarnation,
        attempt: AttemptId,
    },
}

/// What a simulated runner is doing.
struct JobWork {
    life: Incarnation,
    attempt: AttemptId,
    left: std::vec::IntoIter<u32>,
    since: Time,
}

struct JobWorld<'a, F> {
    job: &'a SimulatedJob,
    core: Core,
    dice: SimRandom,
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

/// Runs a job to its end and reports every step as it is finalized.
///
/// # Errors
/// Says which request was refused and why: a simulated job asks for nothing that it may not have.
pub fn run_job(
    job: &SimulatedJob,
    on_step: impl FnMut(SimStepReport),
) -> Result<JobReport, String> {
    let mut config = job.config.clone();
    // A simulated runner that dies is seen to die: nothing is learned from silence.
    config.supervision.silence_timeout = None;
    let mut world = JobWorld {
        job,
        core: Core::new(config),
        dice: SimRandom::new(job.seed),
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
    world.ask(Request::Start);
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
    fn ask(&mut self, what: Request) {
        self.requests += 1;
        let request = RequestId(self.requests);
        self.events.plan(self.now, JobWorldEvent::Tell(Input::Requested { request, what }));
    }

    fn submit(&mut self) {
        self.submitted += 1;
        let batch = BatchId::from(i64::from(self.submitted));
        let spec = TaskSpec { repeat_times: self.job.repeat_times, workflow: WorkflowId(0) };
        let tasks = vec![spec; self.job.batch_size as usize];
        let kind = BatchType::Train;
        let min_wait_num = self.job.min_wait_num;
        self.ask(Request::Submit { batch: batch.clone(), kind, tasks, min_wait_num });
        self.ask(Request::Finalize { batch, kind, timeout: None });
    }

    /// Lets the next thing happen, be it an event or a deadline of the core.
    fn advance(&mut self) -> Result<(), String> {
        let event = self.events.next_at();
        let deadline = self.core.next_deadline().map(|deadline| deadline.at);
        let input = match (event, deadline) {
            (Some(event), deadline) if deadline.is_none_or(|deadline| event <= deadline) => {
                let Some((at, event)) = self.events.take() else { return Ok(()) };
                self.now = at;
                match event {
                    JobWorldEvent::Tell(input) => input,
                    JobWorldEvent::NextRun { runner, life, attempt } => {
                        self.next_run(runner, life, attempt);
                        return Ok(());
                    }
                }
            }
            (_, Some(deadline)) => {
                self.now = self.now.max(deadline);
                Input::TimePassed
            }
            (_, None) => return Err("the job stands still".to_owned()),
        };
        let mut actions = Vec::new();
        self.core.apply(self.now, input, &mut actions);
        for action in actions {
            self.perform(action)?;
        }
        Ok(())
    }

    fn tell(&mut self, after: Duration, runner: RunnerId, life: Incarnation, report: RunnerReport) {
        let input = Input::Report { runner, life, report };
        self.events.plan(self.now.after(after), JobWorldEvent::Tell(input));
    }

    fn perform(&mut self, action: Action) -> Result<(), String> {
        const SHORT_DELAY: Duration = Duration::from_millis(1);
        match action {
            Action::StartRunner { runner, life } => {
                let ready = RunnerReport::Ready { after: None };
                self.tell(Duration::from_secs(1), runner, life, ready);
            }
            Action::StopRunner { runner, .. } => self.stop_working(runner),
            Action::StartAttempt { runner, life, attempt, runs, .. } => {
                self.start(runner, life, attempt, &runs);
            }
            Action::CancelAttempt { runner, life, attempt, .. } => {
                self.stop_working(runner);
                self.tell(SHORT_DELAY, runner, life, RunnerReport::AttemptEnded { attempt });
            }
            Action::Deliver { lease, .. } => {
                let delivery = DeliveryOutcome::Acknowledged { metrics: Metrics::new() };
                let input = Input::DeliveryDone { lease, delivery };
                self.events.plan(self.now.after(SHORT_DELAY), JobWorldEvent::Tell(input));
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

    fn start(&mut self, runner: RunnerId, life: Incarnation, attempt: AttemptId, runs: &RunRange) {
        let left: Vec<u32> = runs.iter().map(|run| run.0).collect();
        let work = JobWork { life, attempt, left: left.into_iter(), since: self.now };
        self.working.insert(runner, work);
        self.tell(Duration::ZERO, runner, life, RunnerReport::AttemptBegan { attempt });
        self.events.plan(self.now, JobWorldEvent::NextRun { runner, life, attempt });
    }

    fn stop_working(&mut self, runner: RunnerId) {
        if let Some(work) = self.working.remove(&runner) {
            self.busy += self.now.since(work.since);
        }
    }

    fn next_run(&mut self, runner: RunnerId, life: Incarnation, attempt: AttemptId) {
        let current = self.working.get_mut(&runner);
        let current = current.filter(|work| work.life == life && work.attempt == attempt);
        // Otherwise the attempt was cancelled, or its runner replaced.
        let Some(work) = current else { return };
        let Some(run) = work.left.next() else {
            self.stop_working(runner);
            return self.tell(Duration::ZERO, runner, life, RunnerReport::AttemptEnded { attempt });
        };
        let faults = self.job.faults;
        let took = self.dice.heavy(self.job.run_time);
        if self.dice.chance(faults.hang) {
            return;
        }
        if self.dice.chance(faults.crash) {
            let lost = RunnerReport::Lost { message: "killed".into(), suspect: true };
            return self.tell(took, runner, life, lost);
        }
        let outcome = if self.dice.chance(faults.raise) {
            Err(RunFailure { kind: FailureKind::Workflow, message: "ValueError".into() })
        } else if self.dice.chance(faults.model_unavailable) {
            let message = "connection refused".into();
            Err(RunFailure { kind: FailureKind::ModelUnavailable, message })
        } else {
            self.payloads += 1;
            let payload = Some(Payload { id: PayloadId(self.payloads), bytes: 4_096 });
            let metrics = [("time/run_execution", took.as_secs_f64())].into_iter().collect();
            Ok(RunOutput { payload, metrics })
        };
        let report = RunnerReport::RunFinished { attempt, run: rollway_core::RunId(run), outcome };
        self.tell(took, runner, life, report);
        let next = JobWorldEvent::NextRun { runner, life, attempt };
        self.events.plan(self.now.after(took), next);
    }
}
