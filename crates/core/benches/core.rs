//! Throughput and memory of the core. Measured on noisy machines: compare figures of one run only.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark reads the clock and its own memory"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use rollway_core::metrics::{Metrics, Purpose, calculate_task_level_metrics};
use rollway_core::{
    Action, BatchId, BatchType, Core, CoreConfig, DeliveryOutcome, Incarnation, Input, Payload,
    PayloadId, Request, RequestId, Response, RunOutput, RunnerId, RunnerReport, TaskSpec, Time,
    WorkflowId,
};

const BATCHES: u64 = 1_000;

/// Load that stays constant: every runner finishes at once, every finished batch is finalized and
/// replaced by a new one.
struct World {
    core: Core,
    now: Time,
    actions: Vec<Action>,
    queue: Vec<Input>,
    inputs: u64,
    request: u64,
    payload: u64,
    step: i64,
    tasks_per_batch: usize,
    runs_per_task: u32,
    /// Reports that are held back, so that runners stay busy. `None`: reports are applied.
    held: Option<Vec<Input>>,
}

impl World {
    fn new(runners: u32, pending: u64) -> Self {
        let config = CoreConfig { runners, ..CoreConfig::default() };
        let mut world = Self {
            core: Core::new(config),
            now: Time::ZERO,
            actions: Vec::new(),
            queue: Vec::new(),
            inputs: 0,
            request: 0,
            payload: 0,
            step: 0,
            tasks_per_batch: (pending / BATCHES) as usize,
            runs_per_task: 1,
            held: None,
        };
        world.request(Request::Start);
        for runner in 0..runners {
            let report = RunnerReport::Ready { after: None };
            world.queue.push(Input::Report {
                runner: RunnerId(runner),
                incarnation: Incarnation(1),
                report,
            });
        }
        world
    }

    fn fill(&mut self) {
        for _ in 0..BATCHES {
            self.submit();
        }
    }

    fn request(&mut self, what: Request) {
        self.request += 1;
        self.queue.push(Input::Requested { request: RequestId(self.request), what });
    }

    fn submit(&mut self) {
        self.step += 1;
        let batch = BatchId::from(self.step);
        let spec = TaskSpec { repeat_times: self.runs_per_task, workflow: WorkflowId(0) };
        let tasks = vec![spec; self.tasks_per_batch];
        self.request(Request::Submit {
            batch: batch.clone(),
            kind: BatchType::Train,
            tasks,
            min_wait_num: None,
        });
        self.request(Request::Finalize { batch, kind: BatchType::Train, timeout: None });
    }

    /// Applies the queued inputs and performs the actions. Returns false if the queue was empty.
    fn round(&mut self) -> bool {
        let mut queue = std::mem::take(&mut self.queue);
        let any = !queue.is_empty();
        for input in queue.drain(..) {
            self.inputs += 1;
            self.now = self.now.after(Duration::from_nanos(100));
            self.core.apply(self.now, input, &mut self.actions);
        }
        // Reuse the larger of the two buffers.
        std::mem::swap(&mut self.queue, &mut queue);
        let mut actions = std::mem::take(&mut self.actions);
        for action in actions.drain(..) {
            self.perform(action);
        }
        self.actions = actions;
        any
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::StartAttempt { runner, incarnation, attempt, runs, .. } => {
                let queue = self.held.as_mut().unwrap_or(&mut self.queue);
                let mut report = |report| queue.push(Input::Report { runner, incarnation, report });
                report(RunnerReport::AttemptBegan { attempt });
                for run in runs.iter() {
                    self.payload += 1;
                    let payload = Some(Payload { id: PayloadId(self.payload), bytes: 1_000 });
                    let outcome = Ok(RunOutput { payload, metrics: Metrics::new() });
                    report(RunnerReport::RunFinished { attempt, run, outcome });
                }
                report(RunnerReport::AttemptEnded { attempt });
            }
            Action::Deliver { lease, .. } => {
                let delivery = DeliveryOutcome::Acknowledged { metrics: Metrics::new() };
                self.queue.push(Input::DeliveryDone { lease, delivery });
            }
            Action::Respond { answer: Response::Finalized(_), .. } => self.submit(),
            Action::Respond { answer: Response::Refused(refusal), .. } => {
                panic!("request refused: {refusal:?}")
            }
            _ => {}
        }
    }

    fn settle(&mut self) {
        while self.round() {}
    }

    /// Runs for about `inputs` inputs; returns inputs per second.
    fn measure(&mut self, inputs: u64) -> f64 {
        let (before, start) = (self.inputs, Stopwatch::start());
        while self.inputs - before < inputs {
            assert!(self.round(), "no input is left");
        }
        (self.inputs - before) as f64 / start.seconds()
    }
}

/// Measures processor time of this thread where the system reports it, elsewhere wall time.
struct Stopwatch {
    wall: Instant,
    processor: Option<u64>,
}

impl Stopwatch {
    fn start() -> Self {
        Self { wall: Instant::now(), processor: processor_nanos() }
    }

    fn seconds(&self) -> f64 {
        match (self.processor, processor_nanos()) {
            (Some(before), Some(after)) => (after - before) as f64 / 1e9,
            _ => self.wall.elapsed().as_secs_f64(),
        }
    }
}

fn processor_nanos() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    stat.split_whitespace().next()?.parse().ok()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

const ROUNDS: usize = 9;

/// Returns the median inputs per second of each world. Rounds alternate, so that noise affects all
/// worlds alike.
fn median_rates(worlds: &mut [World]) -> Vec<f64> {
    for world in &mut *worlds {
        world.fill();
        world.measure(200_000);
    }
    let mut rates = vec![Vec::new(); worlds.len()];
    for _ in 0..ROUNDS {
        for (world, rates) in worlds.iter_mut().zip(&mut rates) {
            rates.push(world.measure(600_000));
        }
    }
    rates.into_iter().map(median).collect()
}

fn throughput() {
    const PENDING: [u64; 2] = [100_000, 1_000_000];
    println!("inputs per second of processor time, {BATCHES} batches, median of {ROUNDS} rounds");
    for runners in [64, 1_024] {
        let rates = median_rates(&mut PENDING.map(|pending| World::new(runners, pending)));
        for (pending, rate) in PENDING.iter().zip(&rates) {
            println!("  {runners:>5} runners, {pending:>9} pending: {rate:>12.0}");
        }
        let ratio = rates[1] / rates[0];
        println!("  {runners:>5} runners, ten times as much pending: {ratio:.2} of the speed");
    }
}

/// Returns the resident memory of this process in bytes.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

fn memory() {
    const TASKS: u64 = 1_000_000;
    let mut world = World::new(0, TASKS);
    world.settle();
    let before = resident();
    world.fill();
    world.settle();
    world.queue = Vec::new();
    world.actions = Vec::new();
    match (before, resident()) {
        (Some(before), Some(after)) => {
            let each = after.saturating_sub(before) as f64 / TASKS as f64;
            println!("bytes per pending task, {TASKS} tasks in {BATCHES} batches: {each:.0}");
        }
        _ => println!("bytes per pending task: not reported by this system"),
    }
    assert_eq!(world.core.counters().runs.pending, TASKS);
}

fn eval_metrics() {
    println!("eval metrics of one task, 5 keys, median of {ROUNDS} rounds");
    for runs in [16, 64, 256] {
        let metrics: Vec<Metrics> = (0..runs)
            .map(|run| {
                let keys = ["accuracy", "format", "length", "reward", "turns"];
                let value =
                    |key: usize| f64::from((run * 7919 + key as i32 * 104_729) % 1000) / 999.0;
                keys.iter().enumerate().map(|(at, key)| (*key, value(at))).collect()
            })
            .collect();
        // Many calls per measurement: processor time has a resolution of milliseconds.
        const CALLS: u32 = 100;
        let times = (0..ROUNDS).map(|_| {
            let start = Stopwatch::start();
            let purpose = Purpose::Eval { planned: Some(runs as usize) };
            for _ in 0..CALLS {
                black_box(calculate_task_level_metrics(black_box(&metrics), purpose));
            }
            start.seconds() * 1e3 / f64::from(CALLS)
        });
        println!("  {runs:>4} runs: {:.3} ms", median(times.collect()));
    }
}

/// Cost of an input in the largest supported pool, compared with small pools in the same run, and
/// the cost of events that affect all runners at once.
fn large() {
    const RUNNERS: u32 = 10_000;
    const RUNS: u32 = 10;
    let in_flight = RUNNERS * RUNS;
    println!("{RUNNERS} runners with {RUNS} runs each, {in_flight} runs in flight");
    // First, while the resident memory is that of this world alone.
    at_once(RUNNERS, RUNS, resident());
    const POOLS: [u32; 3] = [64, 1_024, RUNNERS];
    let mut worlds = POOLS.map(|runners| {
        let mut world = World::new(runners, 100_000);
        world.runs_per_task = RUNS;
        world
    });
    for (runners, rate) in POOLS.iter().zip(median_rates(&mut worlds)) {
        let nanos = 1e9 / rate;
        println!("  {runners:>6} runners: {nanos:>6.0} ns of processor time for an input");
    }
}

/// Measures events that affect all runners of a large pool, per runner.
fn at_once(runners: u32, runs: u32, before: Option<u64>) {
    let mut world = World::new(runners, 100_000);
    world.runs_per_task = runs;
    // Repeated, because processor time has a resolution of milliseconds.
    const TIMES: u32 = 50;
    let each = |name: &str, stopwatch: &Stopwatch, times: u32| {
        let micros = stopwatch.seconds() * 1e6 / f64::from(runners * times);
        println!("  {name:<32} {micros:>7.2} µs of processor time for a runner");
    };
    let start = Stopwatch::start();
    world.settle();
    each("all become ready:", &start, 1);
    world.held = Some(Vec::new());
    let start = Stopwatch::start();
    world.fill();
    world.settle();
    each("all get an attempt:", &start, 1);
    assert_eq!(world.core.counters().runs.running, u64::from(runners * runs));
    if let (Some(before), Some(after)) = (before, resident()) {
        let bytes = after.saturating_sub(before) as f64 / f64::from(runners);
        println!("  memory of the core, with {} pending tasks: {bytes:.0} bytes a runner", 100_000);
    }
    let all = |world: &mut World, report: &RunnerReport| {
        let views: Vec<_> =
            world.core.runners().map(|view| (view.runner, view.incarnation)).collect();
        let inputs = views.into_iter().map(|(runner, incarnation)| {
            let report = report.clone();
            Input::Report { runner, incarnation, report }
        });
        world.queue.extend(inputs);
    };
    let start = Stopwatch::start();
    for _ in 0..TIMES {
        all(&mut world, &RunnerReport::Heartbeat);
        world.settle();
    }
    each("all send a heartbeat:", &start, TIMES);
    let lost = RunnerReport::Lost {
        message: "machine lost".into(),
        suspicion: rollway_core::Suspicion::None,
    };
    let start = Stopwatch::start();
    all(&mut world, &lost);
    world.settle();
    each("all are lost:", &start, 1);
}

fn main() {
    memory();
    eval_metrics();
    throughput();
    large();
}
