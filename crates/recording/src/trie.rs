//! Trie of pieces. Every prompt of a chat contains all earlier turns: as paths of a trie they take
//! memory for new content only, instead of quadratic memory.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};

/// A node: the path to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TrieNode(usize);

pub(super) const ROOT: TrieNode = TrieNode(0);

/// Estimated memory of a node besides its content.
const NODE_BYTES: usize = 64;

/// Equal sequences of pieces lead to the same node.
#[derive(Debug)]
pub(super) struct Trie<T: ?Sized> {
    /// Node `n` is at `n - 1`; the root has no entry.
    pieces: Vec<(TrieNode, Box<T>)>,
    /// Children by the hash of their piece. Colliding pieces are at the following hashes.
    next: HashMap<(TrieNode, u64), TrieNode>,
    hasher: RandomState,
    bytes: usize,
}

impl<T: ?Sized> Default for Trie<T> {
    fn default() -> Self {
        Self { pieces: Vec::new(), next: HashMap::new(), hasher: RandomState::new(), bytes: 0 }
    }
}

impl<T: ?Sized + Hash + Eq> Trie<T>
where
    for<'a> Box<T>: From<&'a T>,
{
    pub(super) fn step(&mut self, from: TrieNode, piece: &T) -> TrieNode {
        let mut hash = self.hasher.hash_one(piece);
        while let Some(&found) = self.next.get(&(from, hash)) {
            if self.piece(found).is_some_and(|known| known == piece) {
                return found;
            }
            hash = hash.wrapping_add(1);
        }
        self.pieces.push((from, Box::from(piece)));
        self.bytes += NODE_BYTES + size_of_val(piece);
        let node = TrieNode(self.pieces.len());
        self.next.insert((from, hash), node);
        node
    }
}

impl<T: ?Sized> Trie<T> {
    pub(super) fn piece(&self, node: TrieNode) -> Option<&T> {
        self.pieces.get(node.0.checked_sub(1)?).map(|(_, piece)| &**piece)
    }

    pub(super) fn parent(&self, node: TrieNode) -> Option<TrieNode> {
        self.pieces.get(node.0.checked_sub(1)?).map(|(parent, _)| *parent)
    }

    /// Nodes of the path, including the last, without the root.
    pub(super) fn path(&self, node: TrieNode) -> Vec<TrieNode> {
        let mut path = Vec::new();
        let mut node = node;
        while let Some(parent) = self.parent(node) {
            path.push(node);
            node = parent;
        }
        path.reverse();
        path
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
