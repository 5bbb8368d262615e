//! The end that brings experiences.

use std::sync::Arc;

use super::super::{BufferError, Result, Writer, Written};
use super::link::{Link, Unsettled};
use super::{Cell, Database, Fault, Session, Value, signed};
use crate::Lot;

/// Writes lots, each in a transaction of its own.
pub(super) struct SqlWriter<D: Database> {
    link: Link<D>,
    name: String,
    closed: bool,
}

impl<D: Database> SqlWriter<D> {
    pub(super) fn open(mut link: Link<D>, name: &str) -> Result<Self> {
        let store = Arc::clone(&link.store);
        link.transact(&mut None, |session| {
            session.execute(&store.queries.open_writer, &[Value::Text(name)])
        })?;
        Ok(Self { link, name: name.into(), closed: false })
    }
}

impl<D: Database> Writer for SqlWriter<D> {
    /// Stores a lot. After [`BufferError::Unavailable`] it may be in the database or not: writing
    /// it again makes sure of it, and has no effect if it is.
    fn write(&mut self, lot: &Lot) -> Result<Written> {
        if self.closed {
            return Err(BufferError::Closed(format!("writer `{}`", self.name)));
        }
        let store = Arc::clone(&self.link.store);
        let count = lot.samples.len();
        // What stays unsettled when the retries are used up is settled by the key of the lot.
        self.link.transact(&mut Unsettled::None, |session| {
            let key = [Value::Text(&lot.key), Value::Int(signed(count as u64))];
            if session.execute(&store.queries.insert_lot, &key)? == 0 {
                return Ok(Written { known: count, ..Written::default() });
            }
            if let (Some(size), Some(most)) = (&store.queries.size, store.options.max_bytes) {
                check_room::<D>(session, size, most, store.database.name())?;
            }
            let stored = session.insert(&lot.samples)?;
            session.announce()?;
            Ok(Written { stored, known: count - stored, ..Written::default() })
        })
    }

    fn close(&mut self) -> Result<()> {
        let store = Arc::clone(&self.link.store);
        self.link.transact(&mut None, |session| {
            session.execute(&store.queries.close_writer, &[Value::Text(&self.name)])?;
            session.announce()
        })?;
        self.closed = true;
        Ok(())
    }
}

fn check_room<D: Database>(
    session: &mut D::Session,
    size: &str,
    most: u64,
    storage: &str,
) -> Result<(), Fault> {
    let rows = session.query(size, &[])?;
    match rows.first().and_then(|row| row.first()) {
        Some(Cell::Int(bytes)) if *bytes > signed(most) => Err(BufferError::Full {
            storage: storage.into(),
            message: format!("it has {bytes} bytes, and `max_bytes` is {most}"),
        }
        .into()),
        _ => Ok(()),
    }
}
