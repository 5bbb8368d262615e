//! Faults of the simulated world. Every class is on or off in a given world, with its own rate
//! ("swarm"): a world with all faults at once rarely gets far.

use crate::random::{FaultRate, SimRandom};

macro_rules! faults {
    ($($(#[$doc:meta])* $variant:ident = $text:literal,)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault { $($(#[$doc])* $variant,)+ }

        impl Fault {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Returns the name used in reports.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }
    };
}

faults! {
    StartFails = "start_fails",
    /// A runner takes very long to start, or never does.
    SlowStart = "slow_start",
    /// A runner dies while it is idle.
    CrashIdle = "crash_idle",
    /// A runner dies during an attempt.
    CrashBusy = "crash_busy",
    /// A crash is not reported; only missing heartbeats reveal it.
    CrashUnseen = "crash_unseen",
    /// A runner that died without fault of its task is reported as killed by it.
    WrongSuspect = "wrong_suspect",
    /// A run never ends, but can be cancelled.
    Hang = "hang",
    /// A run never ends and cannot be cancelled.
    HangDeaf = "hang_deaf",
    /// A runner takes long to confirm a cancel.
    SlowCancel = "slow_cancel",
    /// A runner receives an attempt and never begins it.
    NeverBegins = "never_begins",
    /// A task ends every process that executes it, with all runners of the process.
    Poison = "poison",
    /// A runner is disconnected for a while; its reports arrive later.
    Partition = "partition",
    /// A runner is disconnected for a while; its reports are lost.
    Blackout = "blackout",
    /// A machine is lost with all its runners, and returns later.
    MachineLost = "machine_lost",
    /// A machine is disconnected with all its runners: not even a kill reaches them, and their
    /// reports arrive later.
    NetworkCut = "network_cut",
    RunFails = "run_fails",
    TaskFails = "task_fails",
    /// The output of a run exceeds its limit.
    TooLarge = "too_large",
    /// The check on arrival refuses the output of a run.
    OutputInvalid = "output_invalid",
    /// An attempt ends without a report about one of its runs.
    Unspoken = "unspoken",
    ReportLate = "report_late",
    ReportLost = "report_lost",
    ReportTwice = "report_twice",
    /// A report arrives before earlier ones.
    ReportOvertakes = "report_overtakes",
    /// An invalid report: of an unknown runner or attempt, or of another incarnation.
    ReportBogus = "report_bogus",
    /// A command to a runner takes long.
    OrderLate = "order_late",
    OrderLost = "order_lost",
    /// A command to a runner arrives twice, or before earlier ones.
    OrderTwice = "order_twice",
    /// A kill takes long.
    SlowKill = "slow_kill",
    /// The sink refuses before it has stored anything.
    SinkRefuses = "sink_refuses",
    /// The sink refuses a batch for its content several times in a row, also after the other faults
    /// have ended, and then puts it into its quarantine.
    SinkRejects = "sink_rejects",
    /// The sink stores and reports a failure.
    SinkForgets = "sink_forgets",
    SinkSlow = "sink_slow",
    /// The sink stores and never answers.
    SinkSilent = "sink_silent",
    SinkTwice = "sink_twice",
    /// A collector is gone when the results arrive.
    CollectorGone = "collector_gone",
    /// A collector never acknowledges.
    CollectorSilent = "collector_silent",
    /// A requester is gone.
    Withdrawal = "withdrawal",
    /// A request is sent twice under one id.
    AskedTwice = "asked_twice",
    /// The driver reads the clock too late.
    LateClock = "late_clock",
    /// The driver reads the clock without need.
    IdleClock = "idle_clock",
    /// The coordinator crashes and restarts from the ledger.
    CoordinatorCrash = "coordinator_crash",
    /// A record takes long to become durable.
    LedgerSlow = "ledger_slow",
    RecordedTwice = "recorded_twice",
}

/// Rates of the faults in one world, and the number of their occurrences.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    rates: Vec<FaultRate>,
    occurrences: Vec<u64>,
}

impl FaultPlan {
    /// Draws rates: about half of the classes are off, the others rare or frequent.
    pub fn draw(rng: &mut SimRandom) -> Self {
        // Some worlds are calm, so that healthy runs are checked as well.
        let on = *rng.pick(&[0, 15, 30, 50, 70]);
        let mut rates = vec![FaultRate::NEVER; Fault::ALL.len()];
        for rate in &mut rates {
            if rng.percent(on) {
                *rate = FaultRate(rng.small(20, 200) * rng.small(1, 12));
            }
        }
        let mut faults = Self { rates, occurrences: vec![0; Fault::ALL.len()] };
        faults.balance_rates();
        faults
    }

    /// Makes faults rare of which one has a long effect, and those frequent that rarely have an
    /// occasion.
    fn balance_rates(&mut self) {
        for fault in [
            Fault::SinkRefuses,
            Fault::SinkRejects,
            Fault::SinkForgets,
            Fault::SinkSlow,
            Fault::SinkSilent,
            Fault::SinkTwice,
            Fault::CollectorGone,
            Fault::CollectorSilent,
            Fault::WrongSuspect,
            Fault::CoordinatorCrash,
            Fault::LedgerSlow,
            Fault::RecordedTwice,
        ] {
            let rate = &mut self.rates[fault as usize];
            *rate = FaultRate((rate.0 * 4).min(6_000));
        }
        for fault in [
            Fault::Partition,
            Fault::Blackout,
            Fault::MachineLost,
            Fault::NetworkCut,
            Fault::ReportLost,
            Fault::OrderLost,
        ] {
            let rate = &mut self.rates[fault as usize];
            *rate = FaultRate(rate.0 / 4);
        }
    }

    /// Draws whether a fault occurs now.
    pub fn strikes(&mut self, fault: Fault, rng: &mut SimRandom) -> bool {
        let rate = self.rates[fault as usize];
        let strikes = rate > FaultRate::NEVER && rng.chance(rate);
        self.occurrences[fault as usize] += u64::from(strikes);
        strikes
    }

    /// Returns whether a fault can occur in this world.
    pub fn on(&self, fault: Fault) -> bool {
        self.rates[fault as usize] > FaultRate::NEVER
    }

    pub fn rate(&self, fault: Fault) -> FaultRate {
        self.rates[fault as usize]
    }

    /// Counts a fault that was drawn elsewhere.
    pub fn note(&mut self, fault: Fault) {
        self.occurrences[fault as usize] += 1;
    }

    /// Disables all faults.
    pub fn end_faults(&mut self) {
        self.rates.fill(FaultRate::NEVER);
    }

    pub fn occurrences(&self) -> impl Iterator<Item = (Fault, u64)> + '_ {
        Fault::ALL.iter().map(|fault| (*fault, self.occurrences[*fault as usize]))
    }
}
