//! Sequences that begin alike, with their beginnings kept once.
//!
//! Every turn of a chat has all earlier turns in its prompt. Kept one by one they would take room
//! that grows with the square of their number; as paths in a tree they take what is new of each.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};

/// A place in a tree: everything on the way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TrieNode(usize);

/// Where every sequence begins.
pub(super) const ROOT: TrieNode = TrieNode(0);

/// What a place takes beside its content.
const NODE_BYTES: usize = 64;

/// A tree of pieces. The same pieces in the same order lead to the same place.
#[derive(Debug)]
pub(super) struct Trie<T: ?Sized> {
    /// The root has no entry: place `n` is at `n - 1`.
    pieces: Vec<(TrieNode, Box<T>)>,
    /// Which places follow a place, by the hash of their piece. Of pieces with the same hash the
    /// later ones are found under the numbers that follow it.
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
    /// Returns the place that a piece leads to.
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
    /// The piece that leads to a place; none for the root.
    pub(super) fn piece(&self, node: TrieNode) -> Option<&T> {
        self.pieces.get(node.0.checked_sub(1)?).map(|(_, piece)| &**piece)
    }

    /// The place before.
    pub(super) fn parent(&self, node: TrieNode) -> Option<TrieNode> {
        self.pieces.get(node.0.checked_sub(1)?).map(|(parent, _)| *parent)
    }

    /// The places on the way to one, it included, the root not.
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

    /// How many bytes it takes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
