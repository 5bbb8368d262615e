//! JSON of the plain values that most experiences carry; whatever is more is left to Python.

use std::fmt::Write as _;

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString};

/// Maximum nesting depth of values.
const DEPTH: u32 = 16;

/// Returns a value as JSON. `None`: it contains other than plain values.
#[pyfunction]
pub(crate) fn plain_json(value: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    let mut text = String::new();
    Ok(write(value, &mut text, DEPTH)?.map(|()| text))
}

/// Writes a value; nothing: it is not plain.
fn write(value: &Bound<'_, PyAny>, text: &mut String, depth: u32) -> PyResult<Option<()>> {
    if depth == 0 {
        return Ok(None);
    }
    if let Ok(string) = value.cast_exact::<PyString>() {
        return Ok(quote(string, text));
    }
    if let Ok(number) = value.cast_exact::<PyInt>() {
        let Ok(number) = number.extract::<i64>() else { return Ok(None) };
        let _ = write!(text, "{number}");
    } else if let Ok(number) = value.cast_exact::<PyFloat>() {
        let number: f64 = number.extract()?;
        if !number.is_finite() {
            return Ok(None);
        }
        // With a point or an exponent, as it is to be read back as a float.
        let _ = write!(text, "{number:?}");
    } else if value.is_none() {
        text.push_str("null");
    } else if let Ok(truth) = value.cast_exact::<PyBool>() {
        text.push_str(if truth.is_true() { "true" } else { "false" });
    } else if let Ok(list) = value.cast_exact::<PyList>() {
        text.push('[');
        for (index, item) in list.iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            if write(&item, text, depth - 1)?.is_none() {
                return Ok(None);
            }
        }
        text.push(']');
    } else if let Ok(dict) = value.cast_exact::<PyDict>() {
        text.push('{');
        for (index, (key, item)) in dict.iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            let Ok(key) = key.cast_exact::<PyString>() else { return Ok(None) };
            if quote(key, text).is_none() {
                return Ok(None);
            }
            text.push(':');
            if write(&item, text, depth - 1)?.is_none() {
                return Ok(None);
            }
        }
        text.push('}');
    } else {
        return Ok(None);
    }
    Ok(Some(()))
}

/// Writes a string in quotes; nothing: it is no text that UTF-8 has.
fn quote(string: &Bound<'_, PyString>, text: &mut String) -> Option<()> {
    let string = string.to_str().ok()?;
    text.push('"');
    for character in string.chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            control if (control as u32) < 0x20 => {
                let _ = write!(text, "\\u{:04x}", control as u32);
            }
            other => text.push(other),
        }
    }
    text.push('"');
    Some(())
}
