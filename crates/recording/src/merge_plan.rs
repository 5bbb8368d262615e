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
    boundaries: HashMap<TrieNode, Boundaries>,
    /// Last message nodes of the turns.
    contents: HashSet<TrieNode>,
    /// Turn numbers of each experience. Each prompt begins with all tokens of the turn before it.
    pub(super) threads: Vec<Thread>,
    pub(super) counts: MergeCounts,
}

/// Turns of an experience.
#[derive(Debug)]
pub(super) struct Thread {
    pub(super) turns: Vec<usize>,
    pub(super) origin: Option<ThreadOrigin>,
}

/// Origin of an experience that does not begin a conversation, with the turn that it comes from,
/// if known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThreadOrigin {
    Branch(Option<usize>),
    Drift(Option<usize>),
}

impl ThreadOrigin {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Branch(_) => "branch",
            Self::Drift(_) => "drift",
        }
    }

    pub(super) const fn parent(self) -> Option<usize> {
        match self {
            Self::Branch(parent) | Self::Drift(parent) => parent,
        }
    }
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
    /// Begins like an earlier turn but not with all of its tokens (drift), or with all tokens of a
    /// turn that another one has continued (branch).
    Departs(ThreadOrigin),
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
    /// The last turn that ends here.
    end: Option<usize>,
    /// Threads that end here, with their models and agents; the first is continued first.
    open: Vec<(usize, String, Option<TrieNode>)>,
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
        let thread = match self.relation(store, number, &unfolded) {
            TurnRelation::Continues(thread) => {
                self.counts.continued += 1;
                self.threads[thread].turns.push(number);
                thread
            }
            TurnRelation::Departs(origin) => {
                match origin {
                    ThreadOrigin::Branch(_) => self.counts.branches += 1,
                    ThreadOrigin::Drift(_) => self.counts.drift += 1,
                }
                self.begin(number, Some(origin))
            }
            TurnRelation::Begins => self.begin(number, None),
        };
        self.mark(number, turn, &unfolded, thread);
    }

    /// Begins an experience, and returns its number.
    fn begin(&mut self, number: usize, origin: Option<ThreadOrigin>) -> usize {
        self.threads.push(Thread { turns: vec![number], origin });
        self.threads.len() - 1
    }

    fn relation(
        &mut self,
        store: &TurnTable,
        number: usize,
        unfolded: &Unfolded<'_>,
    ) -> TurnRelation {
        let Some(turn) = store.get(number) else { return TurnRelation::Begins };
        let mut entered = false;
        let mut end = None;
        self.visit_marks(turn, unfolded, |length, mark| {
            if let Some(number) = mark.end {
                end = Some((length, number));
                return ControlFlow::Break(());
            }
            entered = true;
            ControlFlow::Continue(())
        });
        if let Some(thread) = end.and_then(|(length, _)| self.take(unfolded, length, turn)) {
            return TurnRelation::Continues(thread);
        }
        let repeated = self.repeated_messages(store, turn);
        let drifts = |node| !self.passes_end(turn, unfolded, node);
        if entered || repeated.is_some_and(drifts) {
            let parent = repeated.and_then(|node| store.last_turn_after(node, number));
            return TurnRelation::Departs(ThreadOrigin::Drift(parent));
        }
        match end {
            Some((_, number)) => TurnRelation::Departs(ThreadOrigin::Branch(Some(number))),
            None => TurnRelation::Begins,
        }
    }

    /// Visits the marks that a prompt passes, the last one first.
    fn visit_marks(
        &self,
        turn: &StoredTurn,
        unfolded: &Unfolded<'_>,
        mut visit: impl FnMut(usize, &Mark) -> ControlFlow<()>,
    ) {
        for blocks in (0..=turn.prompt / BLOCK).rev() {
            let Some(boundaries) = self.boundaries.get(&unfolded.node(blocks)) else { continue };
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

    /// Takes a thread of the same model and agent that ends after `length` tokens.
    fn take(&mut self, unfolded: &Unfolded<'_>, length: usize, turn: &StoredTurn) -> Option<usize> {
        let (node, rest) = unfolded.prefix(length);
        let open = &mut self.boundaries.get_mut(&node)?.marks.get_mut(rest)?.open;
        let is_same = |(_, model, agent): &(usize, String, Option<TrieNode>)| {
            *model == turn.model && *agent == turn.content.agent
        };
        let position = open.iter().position(is_same)?;
        Some(open.remove(position).0)
    }

    /// Returns the last message before the reply that the messages of a turn repeat. Of several
    /// earlier turns the one with the most messages counts.
    fn repeated_messages(&self, store: &TurnTable, turn: &StoredTurn) -> Option<TrieNode> {
        let mut next = turn.content.messages?;
        loop {
            let node = store.texts.parent(next)?;
            if self.contents.contains(&node) && store.is_assistant(next) {
                return Some(node);
            }
            next = node;
        }
    }

    /// Returns whether a prompt passes the end of a turn with these messages.
    fn passes_end(&self, turn: &StoredTurn, unfolded: &Unfolded<'_>, messages: TrieNode) -> bool {
        let mut passes = false;
        self.visit_marks(turn, unfolded, |_, mark| {
            passes = mark.contents.contains(&messages);
            if passes { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        passes
    }

    fn mark(&mut self, number: usize, turn: &StoredTurn, unfolded: &Unfolded<'_>, thread: usize) {
        self.at(unfolded, turn.prompt + 1);
        let end = self.at(unfolded, turn.sequence.len());
        end.end = Some(number);
        end.open.push((thread, turn.model.clone(), turn.content.agent));
        end.contents.extend(turn.content.messages);
        self.contents.extend(turn.content.messages);
    }

    fn at(&mut self, unfolded: &Unfolded<'_>, length: usize) -> &mut Mark {
        let (node, rest) = unfolded.prefix(length);
        let boundaries = self.boundaries.entry(node).or_default();
        boundaries.lengths |= 1 << rest.len();
        boundaries.marks.entry(rest.into()).or_default()
    }
}
