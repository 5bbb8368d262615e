//! Writer of SQL buffers.

use std::sync::Arc;

use super::super::{BufferError, ExperienceWriter, Result, WriteResult};
use super::reconnect::ReconnectingSession;
use super::{Session, SqlDatabase, SqlValue, signed};
use crate::WriteBatch;

pub(super) struct SqlWriter<D: SqlDatabase> {
    link: ReconnectingSession<D>,
    name: String,
    closed: bool,
}

impl<D: SqlDatabase> SqlWriter<D> {
    pub(super) fn open(mut link: ReconnectingSession<D>, name: &str) -> Result<Self> {
        let store = Arc::clone(&link.store);
        link.transact(&mut None, |session| {
            session.execute(&store.queries.open_writer, &[SqlValue::Text(name)])
        })?;
        Ok(Self { link, name: name.into(), closed: false })
    }
}

impl<D: SqlDatabase> ExperienceWriter for SqlWriter<D> {
    /// After [`BufferError::Unavailable`] the batch may be stored or not; writing it again makes
    /// sure.
    fn write(&mut self, batch: &WriteBatch) -> Result<WriteResult> {
        if self.closed {
            return Err(BufferError::Closed(format!("writer `{}`", self.name)));
        }
        let store = Arc::clone(&self.link.store);
        let count = batch.samples.len();
        // A commit that stays unconfirmed is settled by the key of the batch.
        self.link.transact(&mut None, |session| {
            let key = [SqlValue::Text(&batch.key), SqlValue::Int(signed(count as u64))];
            if session.execute(&store.queries.insert_lot, &key)? == 0 {
                return Ok(WriteResult { known: count, ..WriteResult::default() });
            }
            if let (Some(size), Some(most)) = (&store.queries.size, store.options.max_bytes) {
                let bytes = store.number(session.query(size, &[])?.first(), 0)?;
                if bytes > signed(most) {
                    let message = format!("it has {bytes} bytes, and `max_bytes` is {most}");
                    return Err(BufferError::full(store.database.name(), message).into());
                }
            }
            let stored = session.insert(&batch.samples)?;
            session.announce()?;
            Ok(WriteResult { stored, known: count - stored, ..WriteResult::default() })
        })
    }

    fn close(&mut self) -> Result<()> {
        let store = Arc::clone(&self.link.store);
        self.link.transact(&mut None, |session| {
            session.execute(&store.queries.close_writer, &[SqlValue::Text(&self.name)])?;
            session.announce()
        })?;
        self.closed = true;
        Ok(())
    }
}
