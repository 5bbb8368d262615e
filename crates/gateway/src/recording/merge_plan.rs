//! Finds the turn that each turn continues.
//!
//! A turn marks two nodes of the token trie: its end, and the end of the first token of its
//! completion. A prompt walks back along its blocks to the last mark that it passes. It is looked
//! up once per block and never compared with other prompts.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use super::tokens::{BLOCK, Unfolded};
use super::trie::TrieNode;
use super::turn_table::{StoredTurn, TurnTable};

/// Turns of each experience.
#[derive(Debug, Default)]
pub(super) struct MergePlan {
    places: HashMap<TrieNode, Boundaries>,
    /// Last message nodes of the turns.
    contents: HashSet<TrieNode>,
    /// Turn numbers of each experience. Each prompt begins with all tokens of the turn before it.
    pub(super) threads: Vec<Vec<usize>>,
    pub(super) counts: MergeCounts,
}

/// Numbers of turns by their relation to earlier ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeCounts {
    /// Turns that continue an earlier one.
    pub continued: u64,
    /// Turns that begin like an earlier one but not with all of its tokens.
    pub drift: u64,
    /// Turns that branch off in the middle of an experience.
    pub branches: u64,
    /// Turns without a token, which make no experience.
    pub empty: u64,
}

/// Maximum memory of the two marks of a turn.
pub(super) const MARKS_BYTES: usize = 2 * (BLOCK * size_of::<i32>() + size_of::<Mark>() + 128);

/// Relation of a turn to earlier ones.
#[derive(Debug, PartialEq, Eq)]
enum TurnRelation {
    Continues(usize),
    /// Begins like an earlier turn but not with all of its tokens.
    Drifts,
    /// Begins with all tokens of a turn that another one has continued.
    Branches,
    Begins,
}

/// Marks between one block and the next.
#[derive(Debug, Default)]
struct Boundaries {
    /// Bit `n` is set if there is a mark after `n` tokens.
    lengths: u64,
    /// By the tokens since the block.
    marks: HashMap<Box<[i32]>, Mark>,
}

const _: () = assert!(BLOCK <= u64::BITS as usize);

/// End of turns, or of the first token of completions.
#[derive(Debug, Default)]
struct Mark {
    is_end: bool,
    /// Threads that end here, with their models; the first is continued first.
    open: Vec<(usize, String)>,
    contents: HashSet<TrieNode>,
}

impl MergePlan {
    /// Plans the turns from `since` on.
    pub(super) fn of(store: &TurnTable, since: usize) -> Self {
        let mut plan = Self::default();
        for number in since..store.len() {
            plan.add(store, number);
        }
        plan
    }

    pub(super) fn add(&mut self, store: &TurnTable, number: usize) {
        let Some(turn) = store.get(number) else { return };
        if turn.response() == 0 {
            self.counts.empty += 1;
            return;
        }
        let unfolded = store.tokens.unfold(&turn.sequence);
        let thread = match self.relation(store, turn, &unfolded) {
            TurnRelation::Continues(thread) => {
                self.counts.continued += 1;
                self.threads[thread].push(number);
                thread
            }
            relation @ (TurnRelation::Drifts | TurnRelation::Branches | TurnRelation::Begins) => {
                self.counts.drift += u64::from(relation == TurnRelation::Drifts);
                self.counts.branches += u64::from(relation == TurnRelation::Branches);
                self.threads.push(vec![number]);
                self.threads.len() - 1
            }
        };
        self.mark(turn, &unfolded, thread);
    }

    fn relation(
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
        if entered || self.drifts_in_messages(store, turn, unfolded) {
            return TurnRelation::Drifts;
        }
        if end.is_some() { TurnRelation::Branches } else { TurnRelation::Begins }
    }

    /// Visits the marks that a prompt passes, the last one first.
    fn walk(
        &self,
        turn: &StoredTurn,
        unfolded: &Unfolded<'_>,
        mut visit: impl FnMut(usize, &Mark) -> ControlFlow<()>,
    ) {
        for blocks in (0..=turn.prompt / BLOCK).rev() {
            let Some(boundaries) = self.places.get(&unfolded.node(blocks)) else { continue };
            let after = unfolded.after(blocks);
            let most = (turn.prompt - blocks * BLOCK).min(BLOCK - 1);
            for length in (0..=most).rev().filter(|length| boundaries.lengths >> length & 1 == 1) {
                let mark = after.get(..length).and_then(|tokens| boundaries.marks.get(tokens));
                if let Some(mark) = mark
                    && visit(blocks * BLOCK + length, mark).is_break()
                {
                    return;
                }
            }
        }
    }

    /// Takes a thread of the model that ends after `length` tokens.
    fn take(&mut self, unfolded: &Unfolded<'_>, length: usize, model: &str) -> Option<usize> {
        let (node, rest) = unfolded.prefix(length);
        let open = &mut self.places.get_mut(&node)?.marks.get_mut(rest)?.open;
        let position = open.iter().position(|(_, of)| of == model)?;
        Some(open.remove(position).0)
    }

    /// Returns whether the messages continue those of an earlier turn although the tokens do not.
    /// Of several such turns the one with the most messages counts.
    fn drifts_in_messages(
        &self,
        store: &TurnTable,
        turn: &StoredTurn,
        unfolded: &Unfolded<'_>,
    ) -> bool {
        let Some(mut next) = turn.content.messages else { return false };
        let answered = loop {
            let Some(node) = store.texts.parent(next) else { return false };
            if self.contents.contains(&node) && store.is_assistant(next) {
                break node;
            }
            next = node;
        };
        let mut agrees = false;
        self.walk(turn, unfolded, |_, mark| {
            agrees = mark.contents.contains(&answered);
            if agrees { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        !agrees
    }

    fn mark(&mut self, turn: &StoredTurn, unfolded: &Unfolded<'_>, thread: usize) {
        self.at(unfolded, turn.prompt + 1);
        let end = self.at(unfolded, turn.sequence.len());
        end.is_end = true;
        end.open.push((thread, turn.model.clone()));
        end.contents.extend(turn.content.messages);
        self.contents.extend(turn.content.messages);
    }

    fn at(&mut self, unfolded: &Unfolded<'_>, length: usize) -> &mut Mark {
        let (node, rest) = unfolded.prefix(length);
        let boundaries = self.places.entry(node).or_default();
        boundaries.lengths |= 1 << rest.len();
        boundaries.marks.entry(rest.into()).or_default()
    }
}
