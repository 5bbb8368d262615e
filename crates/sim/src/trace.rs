//! One line per input and action, in fixed columns, and a hash over all of them.
//!
//! ```text
//!  step           time   kind           details
//!    12       3.501200 > reported       w3 l1 finished a7 r2 p19 120B
//!    12       3.501200 < answer         q4 finalized 5 b2 ok=3 partial=0 failed=0 cancelled=0
//! ```
//!
//! The step counts inputs from 1; an action carries the step of its input. The time is in seconds
//! since the start. `>` is an input, `<` an action. Details begin with ids (`w` runner, `l`
//! incarnation, `a` attempt, `b` batch key, `t` task, `r` run, `p` payload, `d` delivery, `q`
//! request). Two runs are equal if their hashes (FNV-1a, 64 bits, over the lines) are.

mod render;

use std::fmt::{self, Write};
use std::io;

use rollway_core::{Action, Input, Time};

#[derive(Debug)]
pub struct SimTrace {
    to: TraceTarget,
    hash: u64,
}

pub enum TraceTarget {
    /// No output and no hash.
    Nowhere,
    Hash,
    /// Hash, and output line by line.
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
    pub const fn new(to: TraceTarget) -> Self {
        Self { to, hash: FNV_OFFSET }
    }

    pub const fn hash(&self) -> u64 {
        self.hash
    }

    pub fn input(&mut self, step: u64, now: Time, input: &Input) {
        self.add(step, now, '>', input_kind(input), render::TraceSubject::Input(input));
    }

    pub fn action(&mut self, step: u64, now: Time, action: &Action) {
        self.add(step, now, '<', action_kind(action), render::TraceSubject::Action(action));
    }

    /// Adds an event of an explorer.
    pub(crate) fn line<T: fmt::Debug>(
        &mut self,
        step: u64,
        now: Time,
        direction: char,
        what: &str,
        (explorer, about): (usize, T),
    ) {
        self.add(step, now, direction, what, format_args!("e{explorer} {about:?}"));
    }

    fn add(&mut self, step: u64, now: Time, direction: char, what: &str, about: impl fmt::Display) {
        if matches!(self.to, TraceTarget::Nowhere) {
            return;
        }
        let time = TraceSeconds(now);
        // A closed output is ignored; the hash continues.
        let _ = writeln!(Hashing(self), "{step:>6} {time:>14} {direction} {what:<14} {about}");
    }
}

pub use self::render::{action_kind, answer_kind, input_kind, record_kind, report_kind};

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

struct TraceSeconds(Time);

impl fmt::Display for TraceSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = f.width().unwrap_or(0).saturating_sub(7);
        let nanos = self.0.as_nanos();
        write!(f, "{:>width$}.{:06}", nanos / 1_000_000_000, nanos / 1_000 % 1_000_000)
    }
}
