//! Applies arbitrary sequences of valid and invalid inputs to the core. It must not panic, must not
//! contradict itself, and must answer every request exactly once.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use rollway_core::metrics::Metrics;
use rollway_core::{
    Action, AttemptId, BatchId, BatchKey, BatchPolicy, BatchType, CancelReason, Core, CoreConfig,
    CoreEvent, CoreLimits, DeliveryOutcome, FailureKind, FailurePolicy, GroupPolicy, Incarnation,
    Input, LeaseId, LedgerRecord, OnExhausted, OverRollout, Payload, PayloadId, Request, RequestId,
    RunEnd, RunFailure, RunId, RunOutcome, RunOutput, RunnerId, RunnerReport, Supervision,
    Suspicion, TaskId, TaskSpec, Time, UnresponsivePolicy, WorkflowId,
};

const fn suspicion(choice: u32) -> Suspicion {
    match choice {
        0 => Suspicion::Sole,
        1 => Suspicion::Shared,
        2 => Suspicion::Neighbour,
        _ => Suspicion::None,
    }
}

fn seconds(most: u64) -> impl Strategy<Value = Duration> {
    (0..=most).prop_map(Duration::from_secs)
}

fn batch_id() -> impl Strategy<Value = BatchId> {
    prop_oneof![
        (0..4i64).prop_map(BatchId::from),
        prop::sample::select(vec!["1/a", "2/b", "eval"]).prop_map(BatchId::from),
    ]
}

fn kind() -> impl Strategy<Value = BatchType> {
    prop::sample::select(vec![BatchType::Train, BatchType::Train, BatchType::Eval])
}

fn tasks() -> impl Strategy<Value = Vec<TaskSpec>> {
    let task = (0..20u32, 0..3u32).prop_map(|(runs, workflow)| TaskSpec {
        // Includes tasks without runs, which must be refused.
        repeat_times: runs.div_ceil(5),
        workflow: WorkflowId(workflow),
    });
    prop::collection::vec(task, 0..5)
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        3 => (batch_id(), kind(), tasks()).prop_map(|(batch, kind, tasks)| Request::Schedule {
            batch, kind, tasks
        }),
        3 => (batch_id(), kind(), tasks(), prop::option::of(0..4u32)).prop_map(
            |(batch, kind, tasks, min_wait_num)| Request::Submit {
                batch, kind, tasks, min_wait_num
            }
        ),
        2 => (batch_id(), prop::option::of(0..4u32), prop::option::of(seconds(20)), any::<bool>(),
            any::<bool>()).prop_map(|(batch, min_num, timeout, clear, partial)| Request::Collect {
                batch, min_num, timeout, clear_timeout_tasks: clear, return_partial_tasks: partial
            }),
        2 => (batch_id(), kind(), prop::option::of(seconds(20))).prop_map(
            |(batch, kind, timeout)| Request::Finalize { batch, kind, timeout }
        ),
        1 => batch_id().prop_map(|batch| Request::Drain { batch }),
        1 => batch_id().prop_map(|batch| Request::Discard { batch }),
        1 => (batch_id(), any::<bool>(), any::<bool>()).prop_map(|(batch, keep, wait)| {
            let unresponsive =
                if wait { UnresponsivePolicy::Wait } else { UnresponsivePolicy::Replace };
            Request::Abort {
                batch, reason: "because".into(), keep_partial_results: keep, unresponsive
            }
        }),
        2 => (batch_id(), 0..5u32, 0..4u32).prop_map(|(batch, task, run)| {
            Request::CancelRun { batch, task: TaskId(task), run: RunId(run) }
        }),
        1 => (prop::option::of(seconds(20)), any::<bool>()).prop_map(|(timeout, clear)| {
            Request::WaitAll { timeout, clear_timeout_tasks: clear }
        }),
        2 => Just(Request::Start),
        1 => seconds(10).prop_map(|timeout| Request::Stop { timeout }),
    ]
}

fn failure_kind() -> impl Strategy<Value = FailureKind> {
    prop::sample::select(FailureKind::ALL)
}

fn outcome() -> impl Strategy<Value = RunOutcome> {
    prop_oneof![
        3 => (0..120u64).prop_map(|bytes| Ok(RunOutput {
            // The id is set when the input is built: payload ids are unique.
            payload: (bytes > 5).then_some(Payload { id: PayloadId(0), bytes }),
            metrics: [("a", 1.0), ("b", 2.0), ("c", 3.0)].into_iter().collect(),
        })),
        1 => failure_kind().prop_map(|kind| Err(RunFailure {
            kind, message: "a rather long message".into()
        })),
    ]
}

/// An input; `back` counts attempts or leases from the latest one.
#[derive(Clone, Debug)]
enum ArbitraryInput {
    /// Any other input.
    Input(Input),
    /// A report that may be invalid.
    Reported {
        runner: u32,
        life_back: u32,
        attempt_back: u64,
        kind: u8,
        run: u32,
        outcome: RunOutcome,
    },
    /// The next valid report of a runner.
    Truth { runner: u32, run: u32, outcome: RunOutcome },
    /// The outcome of a recent delivery.
    Delivered { lease_back: u64, delivery: DeliveryOutcome },
    /// A crash; the records, except the last `lost`, are restored into a new core, one of them
    /// twice.
    Crash { lost: usize, twice: usize },
}

/// A record of a batch that may exist or not.
fn record() -> impl Strategy<Value = LedgerRecord> {
    let key = || prop_oneof![9 => 0..6u64, 1 => any::<u64>()].prop_map(BatchKey);
    let ending = prop_oneof![
        4 => outcome().prop_map(|outcome| outcome.map_or_else(RunEnd::Failed, RunEnd::Succeeded)),
        1 => Just(RunEnd::Cancelled(CancelReason::NoRoom)),
    ];
    prop_oneof![
        2 => (key(), batch_id(), kind(), tasks(), prop::option::of(0..4u32)).prop_map(
            |(batch, id, kind, tasks, min_wait_num)| LedgerRecord::Submitted {
                batch, id, kind, tasks, min_wait_num
            }
        ),
        4 => (key(), 0..3u32, 0..3u32, ending).prop_map(|(batch, task, run, ending)| {
            LedgerRecord::RunEnded { batch, task: TaskId(task), run: RunId(run), ending }
        }),
        1 => (key(), any::<bool>()).prop_map(|(batch, keep)| {
            LedgerRecord::Truncated { batch, reason: CancelReason::Aborted, keep }
        }),
        1 => key().prop_map(|batch| LedgerRecord::Aborting { batch, reason: "because".into() }),
        1 => key().prop_map(|batch| LedgerRecord::DeliveryStarted { batch }),
    ]
}

fn arbitrary_input() -> impl Strategy<Value = ArbitraryInput> {
    let delivery = prop_oneof![
        2 => Just(DeliveryOutcome::Acknowledged { metrics: Metrics::new() }),
        1 => Just(DeliveryOutcome::Failed { message: "disk full".into() }),
    ];
    prop_oneof![
        6 => (any::<u8>(), request()).prop_map(|(request, what)| {
            ArbitraryInput::Input(Input::Requested { request: RequestId(u64::from(request)), what })
        }),
        1 => any::<u8>().prop_map(|request| {
            let request = RequestId(u64::from(request));
            ArbitraryInput::Input(Input::RequestAbandoned { request })
        }),
        4 => Just(ArbitraryInput::Input(Input::TimePassed)),
        12 => (0..6u32, 0..3u32, outcome()).prop_map(|(runner, run, outcome)| {
            ArbitraryInput::Truth { runner, run, outcome }
        }),
        4 => (0..6u32, 0..2u32, 0..3u64, 0..8u8, 0..5u32, outcome()).prop_map(
            |(runner, life_back, attempt_back, kind, run, outcome)| ArbitraryInput::Reported {
                runner, life_back, attempt_back, kind, run, outcome
            }
        ),
        1 => record().prop_map(|record| ArbitraryInput::Input(Input::Restore(record))),
        1 => (0..4usize, 0..20usize)
            .prop_map(|(lost, twice)| ArbitraryInput::Crash { lost, twice }),
        3 => (0..2u64, delivery).prop_map(|(lease_back, delivery)| ArbitraryInput::Delivered {
            lease_back, delivery
        }),
    ]
}

fn config() -> impl Strategy<Value = CoreConfig> {
    let rule = (0..3u32, 0..2u64, 0..8u8);
    (0..5u32, prop::option::of(1..3u32), rule, any::<bool>(), 0..3u64, prop::option::of(0..100u8))
        .prop_map(|(runners, slice, (retries, backoff, then), whole, grace, quorum)| {
            let mut failures = FailurePolicy::with_retries(retries);
            failures.rule_mut(FailureKind::RunnerLost).retries = 2;
            failures.rule_mut(FailureKind::Workflow).backoff = Duration::from_secs(backoff);
            failures.poison_limit = 2;
            failures.groups = if whole { GroupPolicy::Whole } else { GroupPolicy::Partial };
            if then == 0 {
                failures.rule_mut(FailureKind::Timeout).then = OnExhausted::FailBatch;
            }
            CoreConfig {
                runners,
                runners_per_worker: if whole { 2 } else { 1 },
                max_repeat_times_per_runner: slice,
                max_timeout: Duration::from_secs(15),
                default_timeout: Duration::from_secs(30),
                failures,
                over_rollout: OverRollout {
                    wait_after_min: Duration::from_secs(grace),
                    return_partial_tasks: whole,
                },
                train: BatchPolicy { quorum_percent: quorum, success_min_percent: retries as u8 },
                supervision: Supervision {
                    start_timeout: Duration::from_secs(10),
                    begin_timeout: Duration::from_secs(5),
                    heartbeat_timeout: Some(Duration::from_secs(20)),
                    ..Supervision::default()
                },
                delivery_timeout: Duration::from_secs(8),
                limits: CoreLimits {
                    batches: 5,
                    open_tasks: 12,
                    waiters: 6,
                    runners: 5,
                    payload_bytes: 600,
                    payload_bytes_per_run: 100,
                    message_bytes: 10,
                    metrics_per_run: 2,
                    terminal_batches: 2,
                    workflows: 2,
                    ..CoreLimits::default()
                },
                ledger: true,
                ..CoreConfig::default()
            }
        })
}

/// State that is needed to build inputs that almost match.
#[derive(Default)]
struct Memory {
    attempts: u64,
    leases: u64,
    payloads: u64,
    asked: BTreeSet<RequestId>,
    held: BTreeSet<PayloadId>,
    records: Vec<LedgerRecord>,
}

/// Returns the payload of a record.
const fn payload(record: &mut LedgerRecord) -> Option<&mut Payload> {
    match record {
        LedgerRecord::RunEnded { ending: RunEnd::Succeeded(output), .. } => output.payload.as_mut(),
        _ => None,
    }
}

impl Memory {
    /// Gives a payload a unique id.
    fn number(&mut self, payload: &mut Payload) {
        self.payloads += 1;
        payload.id = PayloadId(self.payloads);
        self.held.insert(payload.id);
    }

    fn outcome(&mut self, mut outcome: RunOutcome) -> RunOutcome {
        if let Ok(RunOutput { payload: Some(payload), .. }) = &mut outcome {
            self.number(payload);
        }
        outcome
    }

    /// Drops the state that a crash loses; returns the records to restore.
    fn crash(&mut self, lost: usize, twice: usize) -> Vec<LedgerRecord> {
        self.asked.clear();
        self.held.clear();
        self.records.truncate(self.records.len().saturating_sub(lost));
        let ended = |key| {
            let end = |record: &LedgerRecord| {
                matches!(record, LedgerRecord::Closed(_)) && record.batch() == key
            };
            self.records.iter().any(end)
        };
        let needed = |record: &&LedgerRecord| {
            matches!(record, LedgerRecord::Closed(_)) || !ended(record.batch())
        };
        let mut restored: Vec<LedgerRecord> = self.records.iter().filter(needed).cloned().collect();
        for record in &restored {
            self.held.extend(payload(&mut record.clone()).map(|payload| payload.id));
        }
        if let Some(again) = restored.get(twice).cloned() {
            restored.push(again);
        }
        restored
    }

    fn input(&mut self, core: &Core, input: ArbitraryInput) -> Input {
        match input {
            ArbitraryInput::Input(Input::Restore(mut record)) => {
                if let Some(payload) = payload(&mut record) {
                    self.number(payload);
                }
                Input::Restore(record)
            }
            ArbitraryInput::Input(input) => input,
            ArbitraryInput::Crash { .. } => Input::TimePassed,
            ArbitraryInput::Delivered { lease_back, delivery } => {
                let lease = LeaseId(self.leases.saturating_sub(lease_back));
                Input::DeliveryDone { lease, delivery }
            }
            ArbitraryInput::Reported { runner, life_back, attempt_back, kind, run, outcome } => {
                let runner = RunnerId(runner);
                let incarnation = core.runner(runner).map_or(0, |view| view.incarnation.0);
                let attempt = AttemptId(self.attempts.saturating_sub(attempt_back));
                let report = match kind {
                    0 => RunnerReport::Ready { after: None },
                    1 => RunnerReport::Ready { after: Some(attempt) },
                    2 => RunnerReport::StartFailed { message: "no such file or directory".into() },
                    3 => RunnerReport::Lost { message: "killed".into(), suspicion: suspicion(run) },
                    4 => RunnerReport::AttemptBegan { attempt },
                    5 => RunnerReport::AttemptEnded { attempt },
                    6 => RunnerReport::StartBlocked {
                        reason: (run == 0).then(|| "no machine has room".into()),
                    },
                    _ => {
                        let outcome = self.outcome(outcome);
                        RunnerReport::RunFinished { attempt, run: RunId(run), outcome }
                    }
                };
                Input::Report {
                    runner,
                    incarnation: Incarnation(incarnation.saturating_sub(life_back)),
                    report,
                }
            }
            ArbitraryInput::Truth { runner, run, outcome } => {
                self.truth(core, RunnerId(runner), run, outcome)
            }
        }
    }

    fn truth(&mut self, core: &Core, runner: RunnerId, run: u32, outcome: RunOutcome) -> Input {
        use rollway_core::RunnerState::{Busy, Cancelling, Starting};
        let Some(view) = core.runner(runner) else {
            return Input::TimePassed;
        };
        let report = match (view.state, view.work) {
            (Starting, _) => RunnerReport::Ready { after: None },
            (Busy(attempt), Some((_, _, None))) => RunnerReport::AttemptBegan { attempt },
            (Busy(attempt), _) if run < 2 => {
                let outcome = self.outcome(outcome);
                RunnerReport::RunFinished { attempt, run: RunId(run), outcome }
            }
            (Busy(attempt) | Cancelling(attempt), _) => RunnerReport::AttemptEnded { attempt },
            _ => RunnerReport::Heartbeat,
        };
        Input::Report { runner, incarnation: view.incarnation, report }
    }

    /// Applies actions, and asserts that every request is answered once and every payload dropped
    /// at most once.
    fn note(&mut self, actions: &[Action]) {
        for action in actions {
            match action {
                Action::StartAttempt { attempt, .. } => self.attempts = attempt.0,
                Action::Deliver { lease, .. } => self.leases = lease.0,
                Action::AppendRecord(record) => self.records.push(record.clone()),
                Action::DropPayload { payload, .. } => {
                    assert!(self.held.remove(&payload.id), "dropped twice: {payload:?}");
                }
                Action::ReleasePayloads(payloads) => {
                    for payload in payloads {
                        assert!(self.held.remove(payload), "released twice: {payload:?}");
                    }
                }
                Action::Respond { request, answer } => {
                    assert!(self.asked.remove(request), "no such request: {request} {answer:?}");
                    if let rollway_core::Response::Collected(collected) = answer {
                        self.leases = collected.lease.map_or(self.leases, |lease| lease.0);
                    }
                }
                _ => {}
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_core_accepts_any_sequence_of_inputs(
        config in config(),
        steps in prop::collection::vec((arbitrary_input(), 0..4u64), 1..250),
    ) {
        let mut config = config;
        let mut core = Core::new(config.clone());
        let mut memory = Memory::default();
        let mut now = Time::ZERO;
        let mut actions = Vec::new();
        let start = Input::Requested { request: RequestId(1000), what: Request::Start };
        memory.asked.insert(RequestId(1000));
        core.apply(now, start, &mut actions);
        core.enable_events();
        let mut events = 0;
        for (arbitrary, pause) in steps {
            now = now.after(Duration::from_secs(pause));
            if let ArbitraryInput::Crash { lost, twice } = arbitrary {
                config.epoch += 1;
                core = Core::new(config.clone());
                actions.clear();
                for record in memory.crash(lost, twice) {
                    core.apply(now, Input::Restore(record), &mut actions);
                    memory.note(&actions);
                    actions.clear();
                    if let Err(problem) = core.check() {
                        prop_assert!(false, "after a crash: {problem}");
                    }
                }
                // Events about earlier ends cover active batches only, and not each run.
                core.enable_events();
                core.drain_events().for_each(drop);
                let runs = &core.counters().runs;
                events = runs.succeeded + runs.failed.total() + runs.cancelled.total();
                continue;
            }
            let input = memory.input(&core, arbitrary);
            if let Input::Requested { request, .. } = &input {
                memory.asked.insert(*request);
            }
            if let Input::RequestAbandoned { request } = &input {
                memory.asked.remove(request);
            }
            core.apply(now, input.clone(), &mut actions);
            memory.note(&actions);
            actions.clear();
            let is_end = |event: &CoreEvent| matches!(event, CoreEvent::RunEnded { .. });
            events += core.drain_events().filter(is_end).count() as u64;
            let runs = &core.counters().runs;
            let ended = runs.succeeded + runs.failed.total() + runs.cancelled.total();
            prop_assert_eq!(events, ended, "every end of a run is one event");
            if let Err(problem) = core.check() {
                prop_assert!(false, "after {input:?}: {problem}");
            }
        }
    }
}

#[test]
fn new_batch_follows_a_restored_older_one() {
    let mut core = Core::new(CoreConfig::default());
    let mut actions = Vec::new();
    let mut apply = |input| core.apply(Time::ZERO, input, &mut actions);
    let requested = |request, what| Input::Requested { request: RequestId(request), what };
    let schedule = |id| Request::Schedule {
        batch: BatchId::from(id),
        kind: BatchType::Train,
        tasks: vec![TaskSpec { repeat_times: 1, workflow: WorkflowId(0) }],
    };
    for (request, id) in [(0, 0), (2, 1)] {
        apply(requested(request, schedule(id)));
        let cancel = Request::Collect {
            batch: BatchId::from(id),
            min_num: None,
            timeout: Some(Duration::ZERO),
            clear_timeout_tasks: true,
            return_partial_tasks: false,
        };
        apply(requested(request + 1, cancel));
    }
    apply(Input::Restore(LedgerRecord::Submitted {
        batch: BatchKey(0),
        id: BatchId::from(2),
        kind: BatchType::Train,
        min_wait_num: None,
        tasks: Vec::new(),
    }));
    apply(requested(4, schedule(3)));
    core.check().unwrap();
}
