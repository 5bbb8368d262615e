//! Which session was last at which server; the ones unheard of for longest are forgotten.

use std::collections::{BTreeMap, HashMap};

use super::ServerId;

/// A model's number and a session of it: the same session may talk to several models.
type Key = (u32, u64);

/// Remembers where sessions were.
#[derive(Debug)]
pub(super) struct StickySessions {
    limit: usize,
    next_use: u64,
    places: HashMap<Key, (ServerId, u64)>,
    /// The sessions by when they were last used.
    by_use: BTreeMap<u64, Key>,
    /// How many were forgotten for want of room.
    forgotten: u64,
}

impl StickySessions {
    /// Remembers at most `limit` sessions.
    pub(super) fn new(limit: usize) -> Self {
        let (places, by_use) = (HashMap::new(), BTreeMap::new());
        Self { limit, next_use: 0, places, by_use, forgotten: 0 }
    }

    /// Returns where a session was last.
    pub(super) fn place(&self, model: u32, session: u64) -> Option<ServerId> {
        self.places.get(&(model, session)).map(|(server, _)| *server)
    }

    /// A session is at a server now.
    pub(super) fn put(&mut self, model: u32, session: u64, server: ServerId) {
        if self.limit == 0 {
            return;
        }
        let key = (model, session);
        self.next_use += 1;
        if let Some((_, used)) = self.places.insert(key, (server, self.next_use)) {
            self.by_use.remove(&used);
        }
        self.by_use.insert(self.next_use, key);
        if self.places.len() > self.limit
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.places.remove(&oldest);
            self.forgotten += 1;
        }
    }

    /// How many are remembered.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// How many were forgotten for want of room.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }
}
