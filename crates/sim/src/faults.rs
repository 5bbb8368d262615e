//! What can go wrong in the simulated world. Every class is on or off in a given world, at a rate
//! of its own ("swarm"): worlds in which everything goes wrong at once rarely get far enough to be
//! interesting.

use crate::random::{FaultRate, SimRandom};

macro_rules! faults {
    ($($(#[$doc:meta])* $variant:ident = $text:literal,)+) => {
        /// A class of faults.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault { $($(#[$doc])* $variant,)+ }

        impl Fault {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Returns the name used in reports.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }
    };
}

faults! {
    /// A runner cannot be started.
    StartFails = "start_fails",
    /// A runner takes very long to start, or never does.
    SlowStart = "slow_start",
    /// A runner dies while it is idle.
    CrashIdle = "crash_idle",
    /// A runner dies during an attempt.
    CrashBusy = "crash_busy",
    /// Nobody notices that a runner died; only its silence tells.
    CrashUnseen = "crash_unseen",
    /// A runner that died through no fault of its task is reported as if the task had killed it.
    WrongSuspect = "wrong_suspect",
    /// A run never ends, but can be cancelled.
    Hang = "hang",
    /// A run never ends and cannot be cancelled.
    HangDeaf = "hang_deaf",
    /// A runner takes long to give an attempt up.
    SlowCancel = "slow_cancel",
    /// A runner takes an attempt and never begins.
    NeverBegins = "never_begins",
    /// A task kills whoever runs it.
    Poison = "poison",
    /// A runner is cut off for a while; what it says arrives later.
    Partition = "partition",
    /// A runner is cut off for a while; what it says is lost.
    Blackout = "blackout",
    /// A machine is lost, with every runner on it, and comes back later.
    MachineLost = "machine_lost",
    /// A machine is cut off with every runner on it: nothing reaches them, not even their end, and
    /// what they said meanwhile arrives when it is over.
    NetworkCut = "network_cut",
    RunFails = "run_fails",
    /// A task fails whenever it is tried.
    TaskFails = "task_fails",
    /// A run yields more than it may.
    TooLarge = "too_large",
    /// An attempt ends without a word about one of its runs.
    Unspoken = "unspoken",
    /// A report takes long.
    ReportLate = "report_late",
    ReportLost = "report_lost",
    /// A report arrives twice.
    ReportTwice = "report_twice",
    /// A report overtakes others.
    ReportOvertakes = "report_overtakes",
    /// A report makes no sense: of nobody, about nothing, from another life.
    ReportBogus = "report_bogus",
    /// An order to a runner takes long.
    OrderLate = "order_late",
    /// An order to a runner is lost.
    OrderLost = "order_lost",
    /// An order to a runner arrives twice, or overtakes others.
    OrderTwice = "order_twice",
    /// It takes long to end a life by force.
    SlowKill = "slow_kill",
    /// The sink refuses before it has stored anything.
    SinkRefuses = "sink_refuses",
    /// The sink stores and then says that it failed.
    SinkForgets = "sink_forgets",
    /// The sink takes long.
    SinkSlow = "sink_slow",
    /// The sink stores and never says anything.
    SinkSilent = "sink_silent",
    /// The sink says it twice.
    SinkTwice = "sink_twice",
    /// Whoever collected is gone when the results arrive.
    CollectorGone = "collector_gone",
    /// Nobody ever says whether collected results arrived.
    CollectorSilent = "collector_silent",
    /// Whoever asked goes away.
    Withdrawal = "withdrawal",
    /// A request is sent twice under one number.
    AskedTwice = "asked_twice",
    /// The caller of the core looks at the clock too late.
    LateClock = "late_clock",
    /// The caller of the core looks at the clock for nothing.
    IdleClock = "idle_clock",
    /// The core and its caller are gone from one moment to the next, and begin anew with what the
    /// ledger has.
    CoordinatorCrash = "coordinator_crash",
    /// It takes long until a record is safe.
    LedgerSlow = "ledger_slow",
    /// A record is told twice to a core that begins anew.
    RecordedTwice = "recorded_twice",
}

/// Which faults strike in one world, how often, and how often they did.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    rates: Vec<FaultRate>,
    struck: Vec<u64>,
}

impl FaultPlan {
    /// Draws a mix: about half of the classes are off, the others rare or frequent.
    pub fn draw(dice: &mut SimRandom) -> Self {
        // Some worlds are calm, so that what healthy runs do is looked at as well.
        let on = *dice.pick(&[0, 15, 30, 50, 70]);
        let mut rates = vec![FaultRate::NEVER; Fault::ALL.len()];
        for rate in &mut rates {
            if dice.percent(on) {
                *rate = FaultRate(dice.small(20, 200) * dice.small(1, 12));
            }
        }
        let mut faults = Self { rates, struck: vec![0; Fault::ALL.len()] };
        faults.temper();
        faults
    }

    /// Keeps those faults rare of which one is enough for a while, and makes those frequent that
    /// seldom have a chance.
    fn temper(&mut self) {
        for fault in [
            Fault::SinkRefuses,
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

    /// Decides whether a fault strikes now.
    pub fn strikes(&mut self, fault: Fault, dice: &mut SimRandom) -> bool {
        let rate = self.rates[fault as usize];
        let strikes = rate > FaultRate::NEVER && dice.chance(rate);
        self.struck[fault as usize] += u64::from(strikes);
        strikes
    }

    /// Tells whether a fault can strike in this world.
    pub fn on(&self, fault: Fault) -> bool {
        self.rates[fault as usize] > FaultRate::NEVER
    }

    /// Returns the rate of a fault.
    pub fn rate(&self, fault: Fault) -> FaultRate {
        self.rates[fault as usize]
    }

    /// Counts a fault that was decided elsewhere.
    pub fn note(&mut self, fault: Fault) {
        self.struck[fault as usize] += 1;
    }

    /// Lets nothing go wrong any more.
    pub fn heal(&mut self) {
        self.rates.fill(FaultRate::NEVER);
    }

    /// Iterates over how often each fault struck.
    pub fn struck(&self) -> impl Iterator<Item = (Fault, u64)> + '_ {
        Fault::ALL.iter().map(|fault| (*fault, self.struck[*fault as usize]))
    }
}
