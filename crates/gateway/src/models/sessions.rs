//! The last server of each session. The least recently used sessions are dropped.

use super::ServerId;
use crate::lru::LruMap;

/// Servers by model and session: a session may call several models.
#[derive(Debug)]
pub(super) struct StickySessions {
    limit: usize,
    servers: LruMap<(u32, u64), ServerId>,
}

impl StickySessions {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, servers: LruMap::default() }
    }

    pub(super) fn server(&self, model: u32, session: u64) -> Option<ServerId> {
        self.servers.peek(&(model, session)).copied()
    }

    pub(super) fn set(&mut self, model: u32, session: u64, server: ServerId) {
        if self.limit == 0 {
            return;
        }
        *self.servers.get_or_insert_with((model, session), || server) = server;
        if self.servers.len() > self.limit {
            self.servers.pop_oldest();
        }
    }
}
