//! Token sequences in blocks that sequences with the same beginning share.

use super::trie::{ROOT, Trie, TrieNode};

/// Tokens per block. Only whole blocks are shared.
pub(super) const BLOCK: usize = 64;

#[derive(Debug, Default)]
pub(super) struct TokenBlocks {
    blocks: Trie<[i32]>,
}

#[derive(Debug)]
pub(super) struct Sequence {
    last: TrieNode,
    rest: Box<[i32]>,
    length: usize,
}

impl Sequence {
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Memory besides the blocks.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.rest)
    }
}

impl TokenBlocks {
    pub(super) fn keep(&mut self, tokens: &[i32]) -> Sequence {
        let blocks = tokens.chunks_exact(BLOCK);
        let rest = blocks.remainder().into();
        let last = blocks.fold(ROOT, |node, block| self.blocks.step(node, block));
        Sequence { last, rest, length: tokens.len() }
    }

    pub(super) fn read(&self, sequence: &Sequence) -> Vec<i32> {
        let mut tokens = Vec::with_capacity(sequence.length);
        for node in self.blocks.path(sequence.last) {
            tokens.extend_from_slice(self.blocks.piece(node).unwrap_or_default());
        }
        tokens.extend_from_slice(&sequence.rest);
        tokens
    }

    /// Returns a sequence with access to its blocks.
    pub(super) fn unfold<'a>(&'a self, sequence: &'a Sequence) -> Unfolded<'a> {
        Unfolded { path: self.blocks.path(sequence.last), tokens: self, rest: &sequence.rest }
    }

    pub(super) fn bytes(&self) -> usize {
        self.blocks.bytes()
    }
}

#[derive(Debug)]
pub(super) struct Unfolded<'a> {
    path: Vec<TrieNode>,
    tokens: &'a TokenBlocks,
    rest: &'a [i32],
}

impl<'a> Unfolded<'a> {
    /// Node of the first `blocks` blocks.
    pub(super) fn node(&self, blocks: usize) -> TrieNode {
        blocks.checked_sub(1).and_then(|last| self.path.get(last)).copied().unwrap_or(ROOT)
    }

    /// Tokens after the first `blocks` blocks, at most one block.
    pub(super) fn after(&self, blocks: usize) -> &'a [i32] {
        match self.path.get(blocks) {
            Some(&node) => self.tokens.blocks.piece(node).unwrap_or_default(),
            None => self.rest,
        }
    }

    /// Node of the whole blocks of the first `length` tokens, and the tokens that follow.
    pub(super) fn prefix(&self, length: usize) -> (TrieNode, &'a [i32]) {
        let blocks = length / BLOCK;
        let after = self.after(blocks);
        (self.node(blocks), after.get(..length % BLOCK).unwrap_or(after))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn sequences_are_read_back_and_share_blocks(
            first in prop::collection::vec(0..3, 0..200),
            second in prop::collection::vec(0..3, 0..200),
        ) {
            let mut tokens = TokenBlocks::default();
            let whole: Vec<i32> = first.iter().chain(&second).copied().collect();
            let (a, b) = (tokens.keep(&first), tokens.keep(&whole));
            prop_assert_eq!(tokens.read(&a), &first[..]);
            prop_assert_eq!(tokens.read(&b), &whole[..]);
            let bytes = tokens.bytes();
            tokens.keep(&whole);
            prop_assert_eq!(tokens.bytes(), bytes);
            let (a, b) = (tokens.unfold(&a).prefix(a.len()), tokens.unfold(&b).prefix(a.len()));
            prop_assert_eq!(a, b);
        }
    }
}
