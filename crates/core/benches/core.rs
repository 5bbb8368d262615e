//! How fast the core decides and how much it keeps. All figures come from one run, because the
//! machines we measure on are noisy: compare them with each other, not with another day's.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark has a clock and looks at its own memory"
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

/// A world in which every runner does what it is told at once, every finished batch is finalized,
/// and a new one takes its place: so that the same amount of work is always pending.
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
    /// What is under way and not told yet, if runners are to stay busy.
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
        world.ask(Request::Start);
        for runner in 0..runners {
            let report = RunnerReport::Ready { after: None };
            world.queue.push(Input::Report {
                runner: RunnerId(runner),
                life: Incarnation(1),
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

    fn ask(&mut self, what: Request) {
        self.request += 1;
        self.queue.push(Input::Requested { request: RequestId(self.request), what });
    }

    fn submit(&mut self) {
        self.step += 1;
        let batch = BatchId::from(self.step);
        let spec = TaskSpec { repeat_times: self.runs_per_task, workflow: WorkflowId(0) };
        let tasks = vec![spec; self.tasks_per_batch];
        self.ask(Request::Submit {
            batch: batch.clone(),
            kind: BatchType::Train,
            tasks,
            min_wait_num: None,
        });
        self.ask(Request::Finalize { batch, kind: BatchType::Train, timeout: None });
    }

    /// Applies what is queued and performs what is ordered; returns whether there was anything.
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
            Action::StartAttempt { runner, life, attempt, runs, .. } => {
                let queue = self.held.as_mut().unwrap_or(&mut self.queue);
                let mut say = |report| queue.push(Input::Report { runner, life, report });
                say(RunnerReport::AttemptBegan { attempt });
                for run in runs.iter() {
                    self.payload += 1;
                    let payload = Some(Payload { id: PayloadId(self.payload), bytes: 1_000 });
                    let outcome = Ok(RunOutput { payload, metrics: Metrics::new() });
                    say(RunnerReport::RunFinished { attempt, run, outcome });
                }
                say(RunnerReport::AttemptEnded { attempt });
            }
            Action::Deliver { lease, .. } => {
                let delivery = DeliveryOutcome::Acknowledged { metrics: Metrics::new() };
                self.queue.push(Input::DeliveryDone { lease, delivery });
            }
            Action::Respond { answer: Response::Finalized(_), .. } => self.submit(),
            Action::Respond { answer: Response::Refused(refusal), .. } => {
                panic!("the benchmark asked for too much: {refusal:?}")
            }
            _ => {}
        }
    }

    /// Goes on until nothing is queued.
    fn settle(&mut self) {
        while self.round() {}
    }

    /// Runs for about `inputs` inputs; returns inputs per second.
    fn measure(&mut self, inputs: u64) -> f64 {
        let (before, start) = (self.inputs, Stopwatch::start());
        while self.inputs - before < inputs {
            assert!(self.round(), "the world stands still");
        }
        (self.inputs - before) as f64 / start.seconds()
    }
}

/// Measures the time that this thread spends on a processor, where the system tells it: what other
/// programs do at the same time counts for less then. Elsewhere it measures the time on the wall.
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

fn throughput() {
    const ROUNDS: usize = 9;
    println!("inputs per second of processor time, {BATCHES} batches, median of {ROUNDS} rounds");
    for runners in [64, 1_024] {
        let mut worlds =
            [100_000, 1_000_000].map(|pending| (pending, World::new(runners, pending)));
        for (_, world) in &mut worlds {
            world.fill();
            world.measure(200_000);
        }
        let mut rates = [Vec::new(), Vec::new()];
        // Turn by turn, so that noise hits both alike.
        for _ in 0..ROUNDS {
            for ((_, world), rates) in worlds.iter_mut().zip(&mut rates) {
                rates.push(world.measure(600_000));
            }
        }
        let rates = rates.map(median);
        for ((pending, _), rate) in worlds.iter().zip(rates) {
            println!("  {runners:>5} runners, {pending:>9} pending: {rate:>12.0}");
        }
        println!(
            "  {runners:>5} runners, ten times as much pending: {:.2} of the speed",
            rates[1] / rates[0]
        );
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
    while world.round() {}
    let before = resident();
    world.fill();
    while world.round() {}
    world.queue = Vec::new();
    world.actions = Vec::new();
    match (before, resident()) {
        (Some(before), Some(after)) => {
            let each = after.saturating_sub(before) as f64 / TASKS as f64;
            println!("bytes per pending task, {TASKS} tasks in {BATCHES} batches: {each:.0}");
        }
        _ => println!("bytes per pending task: this system does not tell"),
    }
    assert_eq!(world.core.counters().runs.pending, TASKS);
}

fn eval_metrics() {
    const ROUNDS: usize = 9;
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
        // Many at a time: the processor's time is told in steps of some milliseconds.
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

/// A pool as large as any that one coordinator is meant for: what one input costs there, against a
/// small pool in the same run, and what happens to everybody at once.
fn large() {
    const RUNNERS: u32 = 10_000;
    const RUNS: u32 = 10;
    let in_flight = RUNNERS * RUNS;
    println!("{RUNNERS} runners with {RUNS} runs each, {in_flight} runs in flight");
    // First, while the memory of this process is what it uses.
    at_once(RUNNERS, RUNS, resident());
    let mut worlds = [64, 1_024, RUNNERS].map(|runners| {
        let mut world = World::new(runners, 100_000);
        world.runs_per_task = RUNS;
        (runners, world)
    });
    let mut rates = worlds.each_mut().map(|(_, world)| {
        world.fill();
        world.measure(200_000);
        Vec::new()
    });
    for _ in 0..9 {
        for ((_, world), rates) in worlds.iter_mut().zip(&mut rates) {
            rates.push(world.measure(600_000));
        }
    }
    for ((runners, _), rates) in worlds.iter().zip(rates) {
        let nanos = 1e9 / median(rates);
        println!("  {runners:>6} runners: {nanos:>6.0} ns of processor time for an input");
    }
}

/// Lets something happen to all runners of a large pool: each costs so much.
fn at_once(runners: u32, runs: u32, before: Option<u64>) {
    let mut world = World::new(runners, 100_000);
    world.runs_per_task = runs;
    // The processor's time is told in steps of some milliseconds: what is quick is done often.
    const TIMES: u32 = 50;
    let each = |name: &str, stopwatch: &Stopwatch, times: u32| {
        let micros = stopwatch.seconds() * 1e6 / f64::from(runners * times);
        println!("  {name:<32} {micros:>7.2} µs of processor time for a runner");
    };
    let start = Stopwatch::start();
    world.settle();
    each("all of them are ready:", &start, 1);
    world.held = Some(Vec::new());
    let start = Stopwatch::start();
    world.fill();
    world.settle();
    each("all of them are given work:", &start, 1);
    assert_eq!(world.core.counters().runs.running, u64::from(runners * runs));
    if let (Some(before), Some(after)) = (before, resident()) {
        let bytes = after.saturating_sub(before) as f64 / f64::from(runners);
        println!("  memory of the core, with {} pending tasks: {bytes:.0} bytes a runner", 100_000);
    }
    let all = |world: &mut World, report: &RunnerReport| {
        let views: Vec<_> = world.core.runners().map(|view| (view.runner, view.life)).collect();
        let inputs = views.into_iter().map(|(runner, life)| {
            let report = report.clone();
            Input::Report { runner, life, report }
        });
        world.queue.extend(inputs);
    };
    let start = Stopwatch::start();
    for _ in 0..TIMES {
        all(&mut world, &RunnerReport::Heartbeat);
        world.settle();
    }
    each("all of them say they are alive:", &start, TIMES);
    let lost = RunnerReport::Lost { message: "its machine is gone".into(), suspect: false };
    let start = Stopwatch::start();
    all(&mut world, &lost);
    world.settle();
    each("all of them are lost:", &start, 1);
}

fn main() {
    memory();
    eval_metrics();
    throughput();
    large();
}
