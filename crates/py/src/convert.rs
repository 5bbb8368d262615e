//! Conversions of plain Python values.

use std::time::Duration;

use pyo3::PyResult;
use pyo3::exceptions::PyValueError;

/// Converts a number of seconds.
pub(crate) fn seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        PyValueError::new_err(format!("{seconds} is not a duration; give seconds, 0 or more"))
    })
}
