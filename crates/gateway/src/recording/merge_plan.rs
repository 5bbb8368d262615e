//! Which turn continues which.
//!
//! A turn ends where its prompt and its response end, and it is entered where the first token of
//! its response ends. Both places are marked in the tree of tokens. A prompt walks back along its
//! own blocks until it meets the last mark that it goes through: it is looked up once for every
//! block and never compared with other prompts.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use super::tokens::{BLOCK, Unfolded};
use super::trie::TrieNode;
use super::turn_table::{StoredTurn, TurnTable};

/// Which turns make which experience.
#[derive(Debug, Default)]
pub(super) struct MergePlan {
    places: HashMap<TrieNode, Boundaries>,
    /// Where the messages of the turns lead to.
    said: HashSet<TrieNode>,
    /// The numbers of the turns of every experience. Each prompt begins with all tokens of the turn
    /// before it.
    pub(super) threads: Vec<Vec<usize>>,
    pub(super) counts: PlanCounts,
}

/// How turns stood to those before them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PlanCounts {
    pub(super) continued: u64,
    pub(super) drift: u64,
    pub(super) branches: u64,
    pub(super) empty: u64,
}

/// What the marks of a turn take at most: two of them, each with less than a block of tokens.
pub(super) const MARKS_BYTES: usize = 2 * (BLOCK * size_of::<i32>() + size_of::<Mark>() + 128);

/// How a turn stands to those before it.
#[derive(Debug, PartialEq, Eq)]
enum TurnRelation {
    /// It continues a thread.
    Continues(usize),
    /// It begins like an earlier one but not with all of its tokens.
    Drifts,
    /// It begins with all tokens of a turn that another one has continued.
    Branches,
    /// It has nothing to do with those before it.
    Begins,
}

/// The marks after one block and before the next.
#[derive(Debug, Default)]
struct Boundaries {
    /// Bit `n` is set if there is a mark after `n` tokens.
    lengths: u64,
    /// By the tokens since the block.
    marks: HashMap<Box<[i32]>, Mark>,
}

const _: () = assert!(BLOCK <= u64::BITS as usize);

/// Where turns end or are entered.
#[derive(Debug, Default)]
struct Mark {
    /// Whether a turn ends here.
    is_end: bool,
    /// Threads that end here so far, with their models; the first is continued first.
    open: Vec<(usize, String)>,
    /// Where the messages of the turns that end here lead to.
    said: HashSet<TrieNode>,
}

impl MergePlan {
    /// Finds out which of the turns from one on make which experience.
    pub(super) fn of(store: &TurnTable, since: usize) -> Self {
        let mut plan = Self::default();
        for number in since..store.len() {
            plan.add(store, number);
        }
        plan
    }

    /// Adds a turn that came after all others.
    pub(super) fn add(&mut self, store: &TurnTable, number: usize) {
        let Some(turn) = store.get(number) else { return };
        if turn.response() == 0 {
            self.counts.empty += 1;
            return;
        }
        let unfolded = store.tokens.unfold(&turn.sequence);
        let thread = match self.place(store, turn, &unfolded) {
            TurnRelation::Continues(thread) => {
                self.counts.continued += 1;
                self.threads[thread].push(number);
                thread
            }
            place @ (TurnRelation::Drifts | TurnRelation::Branches | TurnRelation::Begins) => {
                self.counts.drift += u64::from(place == TurnRelation::Drifts);
                self.counts.branches += u64::from(place == TurnRelation::Branches);
                self.threads.push(vec![number]);
                self.threads.len() - 1
            }
        };
        self.mark(turn, &unfolded, thread);
    }

    fn place(
        &mut self,
        store: &TurnTable,
        turn: &StoredTurn,
        unfolded: &Unfolded<'_>,
    ) -> TurnRelation {
        let mut entered = false;
        let mut end = None;
        self.walk(turn, unfolded, |length, mark| {
            if mark.is_end {
                end = Some(length);
                return ControlFlow::Break(());
            }
            entered = true;
            ControlFlow::Continue(())
        });
        if let Some(thread) = end.and_then(|length| self.take(unfolded, length, &turn.model)) {
            return TurnRelation::Continues(thread);
        }
        if entered || self.drifts_in_words(store, turn, unfolded) {
            return TurnRelation::Drifts;
        }
        if end.is_some() { TurnRelation::Branches } else { TurnRelation::Begins }
    }

    /// Visits the marks that a prompt goes through, the last one first.
    fn walk(
        &self,
        turn: &StoredTurn,
        unfolded: &Unfolded<'_>,
        mut visit: impl FnMut(usize, &Mark) -> ControlFlow<()>,
    ) {
        for blocks in (0..=turn.prompt / BLOCK).rev() {
            let Some(here) = self.places.get(&unfolded.node(blocks)) else { continue };
            let after = unfolded.after(blocks);
            let most = (turn.prompt - blocks * BLOCK).min(BLOCK - 1);
            for length in (0..=most).rev().filter(|length| here.lengths >> length & 1 == 1) {
                let mark = after.get(..length).and_then(|tokens| here.marks.get(tokens));
                if let Some(mark) = mark
                    && visit(blocks * BLOCK + length, mark).is_break()
                {
                    return;
                }
            }
        }
    }

    /// Returns a thread of the model that ends after `length` tokens; it no longer does.
    fn take(&mut self, unfolded: &Unfolded<'_>, length: usize, model: &str) -> Option<usize> {
        let (node, rest) = unfolded.prefix(length);
        let open = &mut self.places.get_mut(&node)?.marks.get_mut(rest)?.open;
        let position = open.iter().position(|(_, of)| of == model)?;
        Some(open.remove(position).0)
    }

    /// Whether the messages continue those of an earlier turn although the tokens do not. Of
    /// several such turns the one with the most messages counts.
    fn drifts_in_words(
        &self,
        store: &TurnTable,
        turn: &StoredTurn,
        unfolded: &Unfolded<'_>,
    ) -> bool {
        let Some(mut next) = turn.said.messages else { return false };
        let answered = loop {
            let Some(node) = store.texts.parent(next) else { return false };
            if self.said.contains(&node) && store.is_assistant(next) {
                break node;
            }
            next = node;
        };
        let mut agrees = false;
        self.walk(turn, unfolded, |_, mark| {
            agrees = mark.said.contains(&answered);
            if agrees { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        !agrees
    }

    /// Marks where a turn is entered and where it ends.
    fn mark(&mut self, turn: &StoredTurn, unfolded: &Unfolded<'_>, thread: usize) {
        self.at(unfolded, turn.prompt + 1);
        let end = self.at(unfolded, turn.sequence.len());
        end.is_end = true;
        end.open.push((thread, turn.model.clone()));
        end.said.extend(turn.said.messages);
        self.said.extend(turn.said.messages);
    }

    fn at(&mut self, unfolded: &Unfolded<'_>, length: usize) -> &mut Mark {
        let (node, rest) = unfolded.prefix(length);
        let here = self.places.entry(node).or_default();
        here.lengths |= 1 << rest.len();
        here.marks.entry(rest.into()).or_default()
    }
}
