//! One taskset: rows, format and selector.

use std::sync::Arc;

use super::row_format::{RowFormat, SelectedTask, TaskDefaults};
use super::rows::Rows;
use super::selector::Selector;
use super::state::SetState;
use super::{Result, TasksetErrorKind as Kind};

#[derive(Debug)]
pub(super) struct OpenTaskset {
    pub(super) source: Arc<TaskDefaults>,
    pub(super) rows: Rows,
    pub(super) shape: RowFormat,
    pub(super) selector: Selector,
}

impl OpenTaskset {
    pub(super) fn draw(&mut self, index: u64, epoch: u64) -> Result<SelectedTask> {
        let raw = self.rows.get(index)?;
        let task = self.shape.task(raw).map_err(|fault| fault.at(self.rows.location(index)))?;
        Ok(SelectedTask { source: self.source.clone(), index, epoch, task })
    }

    /// Refuses rows without a required field before a job depends on them.
    pub(super) fn check(&mut self, location: &str) -> Result<()> {
        self.shape.check(location, self.rows.keys())?;
        let rows = self.rows.len();
        let Some(key) = self.shape.needed_key() else { return Ok(()) };
        if self.rows.keys().is_sometimes_absent(key, rows) {
            for index in 0..rows {
                self.draw(index, 0)?;
            }
        }
        Ok(())
    }

    pub(super) fn state(&self) -> SetState {
        SetState {
            name: self.source.name.to_string(),
            rows: self.rows.len(),
            fingerprint: self.rows.fingerprint().to_owned(),
            selector: self.selector.state(),
        }
    }

    /// Refuses a state of other rows or of another selector.
    pub(super) fn accept(&self, state: &SetState) -> Result<()> {
        let refuse = |what: String| {
            let hint = "restore it, or begin a new job with `continue_from_checkpoint: false`";
            let location = format!("taskset `{}`", self.source.name);
            Err(Kind::State.at(location, what, hint))
        };
        let rows = self.rows.len();
        if state.rows != rows {
            let was = state.rows;
            return refuse(format!("it had {was} rows when the job was saved, and has {rows}"));
        }
        if state.fingerprint != self.rows.fingerprint() {
            return refuse("its rows are not those with which the job was saved".to_owned());
        }
        self.selector.refuses(&state.selector).map_or(Ok(()), refuse)
    }
}
