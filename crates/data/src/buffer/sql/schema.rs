//! Creates the tables or checks existing ones.

use super::super::{BufferError, BufferOwner, Result};
use super::reconnect::ReconnectingSession;
use super::{Session, SqlCell, SqlDatabase, SqlValue};

/// Version of the table layout.
const VERSION: i64 = 1;

/// Maximum length of the table name, so that derived names fit into PostgreSQL's 63.
const MAX_NAME: usize = 40;

/// Refuses names that would need careful quoting.
pub(super) fn check_name(table: &str, storage: &str) -> Result<()> {
    let letter = |c: char| c.is_ascii_lowercase() || c == '_';
    let plain = table.chars().all(|c| letter(c) || c.is_ascii_digit());
    if plain && table.starts_with(letter) && table.len() <= MAX_NAME {
        return Ok(());
    }
    Err(BufferError::unsupported(
        storage,
        format!(
            "{table:?} is not a table name: use up to {MAX_NAME} lower-case letters, digits \
             and `_`, beginning with a letter"
        ),
    ))
}

pub(super) fn prepare<D: SqlDatabase>(link: &mut ReconnectingSession<D>) -> Result<()> {
    let store = std::sync::Arc::clone(&link.store);
    let queries = &store.queries;
    link.transact(&mut None, |session| {
        session.lock()?;
        let exist = |session: &mut D::SqlSession, names: &str| {
            let rows = session.query(&queries.existing, &[SqlValue::Text(names)])?;
            store.number(rows.first(), 0)
        };
        let table = &store.options.table;
        if exist(session, &queries.state_name)? == 0 {
            if exist(session, &queries.all_names)? > 0 {
                return Err(store
                    .unsupported(format!(
                        "there is a table `{table}`, or one whose name begins with `{table}_`, \
                         that is not Rollway's; choose another name with the option `table`"
                    ))
                    .into());
            }
            for statement in &queries.create {
                session.execute(statement, &[])?;
            }
            session.execute(&queries.set_version, &[SqlValue::Int(VERSION)])?;
        } else {
            let found = store.number(session.query(&queries.version, &[])?.first(), 0)?;
            if found != VERSION {
                return Err(store
                    .unsupported(format!(
                        "the tables of `{table}` have layout {found}, and this program reads \
                         layout {VERSION}; use the release that created them, or another `table`"
                    ))
                    .into());
            }
        }
        if let Some(index) = &queries.pool_index {
            session.execute(index, &[])?;
        }
        Ok(())
    })
}

/// Records the owner of the table, or refuses one with another owner.
pub(super) fn claim<D: SqlDatabase>(
    link: &mut ReconnectingSession<D>,
    owner: &BufferOwner,
) -> Result<()> {
    let store = std::sync::Arc::clone(&link.store);
    let queries = &store.queries;
    link.transact(&mut None, |session| {
        session.lock()?;
        session.execute(&queries.create_owner, &[])?;
        let rows = session.query(&queries.owner, &[])?;
        let Some(row) = rows.first() else {
            let values = [SqlValue::Text(&owner.id), SqlValue::Text(&owner.name)];
            session.execute(&queries.set_owner, &values)?;
            return Ok(());
        };
        let [SqlCell::Text(id), SqlCell::Text(name)] = &row[..] else {
            return Err(store.damaged("its table of owners has other columns").into());
        };
        let found = BufferOwner { id: id.clone(), name: name.clone() };
        let storage = format!("the table `{}` of {}", store.options.table, store.database.name());
        Ok(owner.check(&storage, &found)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_names_need_no_quoting() {
        for good in ["experience", "_e2", "a"] {
            assert!(check_name(good, "x").is_ok(), "{good}");
        }
        for bad in ["", "1a", "A", "a b", "a\"b", "a;drop", &"a".repeat(41), "ä"] {
            assert!(check_name(bad, "x").is_err(), "{bad}");
        }
    }
}
