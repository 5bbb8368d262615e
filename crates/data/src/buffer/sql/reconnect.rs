//! A session that reconnects, and transactions that are retried.

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use super::super::Result;
use super::{Session, SqlDatabase, SqlError, SqlStore, TransactionId};

pub(super) struct ReconnectingSession<D: SqlDatabase> {
    pub(super) store: Arc<SqlStore<D>>,
    session: Option<D::SqlSession>,
}

/// Result of a transaction whose commit is unconfirmed.
pub(super) type UnconfirmedCommit<T> = Option<(T, TransactionId)>;

impl<D: SqlDatabase> ReconnectingSession<D> {
    pub(super) fn new(store: Arc<SqlStore<D>>) -> Self {
        Self { store, session: None }
    }

    /// Runs a transaction with retries. An error means that nothing changed, unless the connection
    /// was lost during the commit: then `unsettled` holds the result, and the next call settles it
    /// first.
    pub(super) fn transact<T>(
        &mut self,
        unsettled: &mut UnconfirmedCommit<T>,
        mut work: impl FnMut(&mut D::SqlSession) -> Result<T, SqlError>,
    ) -> Result<T> {
        self.retry(|session| {
            if let Some((result, token)) = unsettled.take() {
                match session.settled(&token) {
                    Ok(true) => return Ok(result),
                    Ok(false) => {}
                    Err(fault) => {
                        *unsettled = Some((result, token));
                        return Err(fault);
                    }
                }
            }
            session.begin()?;
            let result = match work(session) {
                Ok(result) => result,
                Err(mut fault) => {
                    // A session that cannot roll back is unusable.
                    fault.breaks |= fault.breaks || session.rollback().is_err();
                    return Err(fault);
                }
            };
            match session.commit() {
                Ok(()) => Ok(result),
                Err((fault, token)) => {
                    *unsettled = token.map(|token| (result, token));
                    Err(fault)
                }
            }
        })
    }

    /// Waits for a change since the last mark. The loss of the session ends the wait; the next
    /// query reconnects.
    pub(super) fn wait(&mut self, until: Instant) {
        let waited = self.session.as_mut().map(|session| session.wait(until));
        if let Some(Err(fault)) = waited {
            tracing::warn!(error = %fault.error, "the wait for samples was interrupted");
            self.session = None;
        }
    }

    /// Runs `work`, again with a new session if the session was lost.
    pub(super) fn retry<T>(
        &mut self,
        mut work: impl FnMut(&mut D::SqlSession) -> Result<T, SqlError>,
    ) -> Result<T> {
        let options = &self.store.options;
        let mut left = options.max_retry_times;
        loop {
            let fault = match attempt(&self.store, &mut self.session, &mut work) {
                Ok(result) => return Ok(result),
                Err(fault) => fault,
            };
            if fault.breaks {
                self.session = None;
            }
            if !fault.is_retryable || left == 0 {
                return Err(fault.error);
            }
            left -= 1;
            tracing::warn!(error = %fault.error, left, "trying again");
            thread::sleep(options.max_retry_interval / 2_u32.saturating_pow(left));
        }
    }
}

fn attempt<D: SqlDatabase, T>(
    store: &SqlStore<D>,
    session: &mut Option<D::SqlSession>,
    work: &mut impl FnMut(&mut D::SqlSession) -> Result<T, SqlError>,
) -> Result<T, SqlError> {
    let session = match session {
        Some(session) => session,
        None => session.insert(store.database.connect(&store.options)?),
    };
    session.limit(Instant::now() + store.options.call_timeout);
    work(session)
}
