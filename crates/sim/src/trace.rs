//! One line per input and action, in fixed columns, and a hash over all of them.
//!
//! ```text
//!  step           time   what           about
//!    12       3.501200 > reported       w3 l1 finished a7 r2 p19 120B
//!    12       3.501200 < answer         q4 finalized 5 b2 ok=3 partial=0 failed=0 cancelled=0
//! ```
//!
//! The step counts inputs from 1; an action carries the step of the input it follows from. The time
//! is in seconds since the beginning. `>` is an input, `<` an action. Then what it is, padded to 14
//! columns, and what it is about: ids with their letter (`w` runner, `l` life, `a` attempt, `b`
//! batch key, `t` task, `r` run, `p` payload, `d` delivery, `q` request), then the rest. Two runs
//! are the same if their hashes (FNV-1a, 64 bits, over the lines with their line ends) are.

mod render;

use std::fmt::{self, Write};
use std::io;

use rollway_core::{Action, Input, Time};

/// A trace.
#[derive(Debug)]
pub struct SimTrace {
    to: TraceTarget,
    hash: u64,
}

/// Where a trace goes.
pub enum TraceTarget {
    /// Nowhere; there is no hash either.
    Nowhere,
    /// Into the hash.
    Hash,
    /// Into the hash, and line by line to somebody who shows them.
    Lines(Box<dyn io::Write + Send>),
}

impl fmt::Debug for TraceTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nowhere => "Nowhere",
            Self::Hash => "Hash",
            Self::Lines(_) => "Lines",
        })
    }
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

impl SimTrace {
    /// Returns an empty trace.
    pub const fn new(to: TraceTarget) -> Self {
        Self { to, hash: FNV_OFFSET }
    }

    /// Returns the hash over all lines.
    pub const fn hash(&self) -> u64 {
        self.hash
    }

    /// Adds an input.
    pub fn input(&mut self, step: u64, now: Time, input: &Input) {
        self.add(step, now, '>', render::input_kind(input), render::TraceSubject::Input(input));
    }

    /// Adds an action.
    pub fn action(&mut self, step: u64, now: Time, action: &Action) {
        self.add(step, now, '<', render::action_kind(action), render::TraceSubject::Action(action));
    }

    /// Adds what explorers say and hear, each with its number.
    pub(crate) fn line<T: fmt::Debug>(
        &mut self,
        step: u64,
        now: Time,
        way: char,
        what: &str,
        (explorer, about): (usize, T),
    ) {
        self.add(step, now, way, what, format_args!("e{explorer} {about:?}"));
    }

    fn add(&mut self, step: u64, now: Time, way: char, what: &str, about: impl fmt::Display) {
        if matches!(self.to, TraceTarget::Nowhere) {
            return;
        }
        let time = TraceSeconds(now);
        // Whoever was shown the lines may have seen enough; the hash goes on.
        let _ = writeln!(Hashing(self), "{step:>6} {time:>14} {way} {what:<14} {about}");
    }
}

/// The kind of an input, as in the trace.
pub fn input_kind(input: &Input) -> &'static str {
    render::input_kind(input)
}

/// The kind of an action, as in the trace.
pub fn action_kind(action: &Action) -> &'static str {
    render::action_kind(action)
}

/// The kind of a record, as in the trace.
pub fn record_kind(record: &rollway_core::LedgerRecord) -> &'static str {
    render::record_kind(record)
}

/// The kind of an answer, as in the trace.
pub fn answer_kind(answer: &rollway_core::Response) -> &'static str {
    render::answer_kind(answer)
}

/// The kind of a report, as in the trace.
pub fn report_kind(report: &rollway_core::RunnerReport) -> &'static str {
    render::report_kind(report)
}

struct Hashing<'a>(&'a mut SimTrace);

impl Write for Hashing<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0.hash = (self.0.hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME);
        }
        if let TraceTarget::Lines(to) = &mut self.0.to
            && to.write_all(text.as_bytes()).is_err()
        {
            self.0.to = TraceTarget::Hash;
        }
        Ok(())
    }
}

/// An instant, padded.
struct TraceSeconds(Time);

impl fmt::Display for TraceSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = f.width().unwrap_or(0).saturating_sub(7);
        let nanos = self.0.as_nanos();
        write!(f, "{:>width$}.{:06}", nanos / 1_000_000_000, nanos / 1_000 % 1_000_000)
    }
}
