//! Servers that keep the weights they were started with.

use super::{ControlError, Wrong, cannot_update};
use crate::dialect::Engine;

/// Says that they cannot be given others.
pub(super) fn refuse(engine: Engine) -> Result<(), ControlError> {
    let why = cannot_update(engine).unwrap_or("it cannot be given other weights");
    Err(ControlError::new(Wrong::Refused, why))
}
