//! Metrics for Python: dictionaries in, dictionaries out, the arithmetic in the core.

use std::cell::{Cell, RefCell};

use pyo3::exceptions::{PyMemoryError, PyRuntimeWarning, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyDict};
use rollway_core::metrics::{self, BootstrapError, EvalDetail, Metrics, Purpose, Reduce, Stat};

/// A function that turns a draw into a number: one that the core knows, or the caller's.
enum Function<'py> {
    Known(Stat),
    Own(Bound<'py, PyAny>),
}

/// A function of the caller as the core takes it.
type Boxed<'a> = Box<dyn Fn(&[f64]) -> f64 + 'a>;

/// Estimates by resampling; see `rollway.metrics.bootstrap_metric`.
#[pyfunction]
pub(crate) fn bootstrap_metric(
    py: Python<'_>,
    data: Vec<f64>,
    subset_size: usize,
    reduce_fns: Vec<Bound<'_, PyAny>>,
    n_bootstrap: usize,
    seed: i64,
) -> PyResult<Vec<(f64, f64)>> {
    let seed = u32::try_from(seed)
        .map_err(|_| PyValueError::new_err("seed must be between 0 and 2**32 - 1"))?;
    let numpy = py.import("numpy")?;
    let functions = reduce_fns
        .into_iter()
        .map(|function| recognise(&numpy, function))
        .collect::<PyResult<Vec<_>>>()?;
    let entry: Option<Vec<Stat>> = functions
        .iter()
        .map(|function| match function {
            Function::Known(stat) => Some(*stat),
            Function::Own(_) => None,
        })
        .collect();
    if let Some(entry) = entry {
        let estimate = py.detach(|| {
            let entry: Vec<Reduce<'_>> = entry.into_iter().map(Reduce::Stat).collect();
            metrics::bootstrap_metric(&data, subset_size, &entry, n_bootstrap, seed)
        });
        return estimate.map_err(bootstrap_error);
    }
    bootstrap_own(&numpy, &data, subset_size, &functions, n_bootstrap, seed)
}

/// As above with functions of the caller among them, the first error of which is raised.
fn bootstrap_own(
    numpy: &Bound<'_, PyModule>,
    data: &[f64],
    subset_size: usize,
    functions: &[Function<'_>],
    n_bootstrap: usize,
    seed: u32,
) -> PyResult<Vec<(f64, f64)>> {
    let frombuffer = numpy.getattr("frombuffer")?;
    let failed: RefCell<Option<PyErr>> = RefCell::new(None);
    let calls = Cell::new(0u32);
    let call = |function: &Bound<'_, PyAny>, draw: &[f64]| -> PyResult<f64> {
        let py = function.py();
        // Regular signal checks make long calculations interruptible.
        calls.set(calls.get().wrapping_add(1));
        if calls.get().is_multiple_of(1024) {
            py.check_signals()?;
        }
        let bytes: Vec<u8> = draw.iter().flat_map(|value| value.to_ne_bytes()).collect();
        // A bytearray, so that the function may write to its argument as with NumPy's draws.
        let array = frombuffer.call1((PyByteArray::new(py, &bytes), "float64"))?;
        function.call1((array,))?.extract()
    };
    let own: Vec<Option<Boxed<'_>>> = functions
        .iter()
        .map(|function| {
            let Function::Own(function) = function else { return None };
            let reduce = |draw: &[f64]| {
                if failed.borrow().is_some() {
                    return f64::NAN;
                }
                call(function, draw).unwrap_or_else(|error| {
                    *failed.borrow_mut() = Some(error);
                    f64::NAN
                })
            };
            Some(Box::new(reduce) as Boxed<'_>)
        })
        .collect();
    let reduce_fns: Vec<Reduce<'_>> = functions
        .iter()
        .zip(&own)
        .map(|(function, own)| match (function, own) {
            (Function::Known(stat), _) => Reduce::Stat(*stat),
            (Function::Own(_), Some(own)) => Reduce::Custom(&**own),
            (Function::Own(_), None) => unreachable!("every own function is wrapped"),
        })
        .collect();
    let estimate = metrics::bootstrap_metric(data, subset_size, &reduce_fns, n_bootstrap, seed);
    drop(reduce_fns);
    drop(own);
    match failed.into_inner() {
        Some(error) => Err(error),
        None => estimate.map_err(bootstrap_error),
    }
}

/// Recognises NumPy's own functions, which the core computes to the same bits.
fn recognise<'py>(
    numpy: &Bound<'py, PyModule>,
    function: Bound<'py, PyAny>,
) -> PyResult<Function<'py>> {
    let names = [
        ("mean", Stat::Mean),
        ("max", Stat::Max),
        ("amax", Stat::Max),
        ("min", Stat::Min),
        ("amin", Stat::Min),
        ("sum", Stat::Sum),
        ("std", Stat::Std),
    ];
    for (name, stat) in names {
        if function.is(numpy.getattr(name)?) {
            return Ok(Function::Known(stat));
        }
    }
    Ok(Function::Own(function))
}

fn bootstrap_error(error: BootstrapError) -> PyErr {
    match error {
        BootstrapError::EmptyData | BootstrapError::EmptySubset => {
            PyValueError::new_err(error.to_string())
        }
        BootstrapError::TooLarge => PyMemoryError::new_err(error.to_string()),
    }
}

/// Combines the metrics of a task's runs; see `rollway.metrics.calculate_task_level_metrics`.
#[pyfunction]
pub(crate) fn calculate_task_level_metrics<'py>(
    py: Python<'py>,
    metrics: Vec<Bound<'py, PyDict>>,
    is_eval: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let runs = from_dicts(py, &metrics)?;
    let purpose = if is_eval { Purpose::Eval { planned: None } } else { Purpose::Train };
    to_dict(py, &py.detach(|| metrics::calculate_task_level_metrics(&runs, purpose)))
}

/// Combines the metrics of experiences into those of their run.
#[pyfunction]
pub(crate) fn run_metrics<'py>(
    py: Python<'py>,
    metrics: Vec<Bound<'py, PyDict>>,
    seconds: f64,
) -> PyResult<Bound<'py, PyDict>> {
    to_dict(py, &metrics::run_metrics(&from_dicts(py, &metrics)?, seconds))
}

/// Combines the metrics of tasks; see `rollway.metrics.gather_metrics`.
#[pyfunction]
pub(crate) fn gather_metrics<'py>(
    py: Python<'py>,
    metric_list: Vec<Bound<'py, PyDict>>,
    prefix: &str,
    output_stats: Vec<String>,
) -> PyResult<Bound<'py, PyDict>> {
    let stats = stats(&output_stats)?;
    to_dict(py, &metrics::gather_metrics(&from_dicts(py, &metric_list)?, prefix, &stats))
}

/// Combines the metrics of evaluated tasks; see `rollway.metrics.gather_eval_metrics`.
#[pyfunction]
pub(crate) fn gather_eval_metrics<'py>(
    py: Python<'py>,
    metric_list: Vec<Bound<'py, PyDict>>,
    prefix: &str,
    output_stats: Vec<String>,
    detailed_stats: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let stats = stats(&output_stats)?;
    let detail = if detailed_stats { EvalDetail::Stats(&stats) } else { EvalDetail::Mean };
    to_dict(py, &metrics::gather_eval_metrics(&from_dicts(py, &metric_list)?, prefix, detail))
}

fn stats(names: &[String]) -> PyResult<Vec<Stat>> {
    let find = |name: &String| {
        Stat::ALL.into_iter().find(|stat| stat.name() == name).ok_or_else(|| {
            let entry = Stat::ALL.map(Stat::name).join(", ");
            PyValueError::new_err(format!("unknown statistic `{name}`; there is {entry}"))
        })
    };
    names.iter().map(find).collect()
}

/// Converts one dictionary, without what is no number.
pub(crate) fn from_dict(dict: &Bound<'_, PyDict>) -> PyResult<Metrics> {
    Ok(from_dicts(dict.py(), std::slice::from_ref(dict))?.pop().unwrap_or_default())
}

/// Converts dictionaries. Values that are no numbers are left out, with one warning for all.
fn from_dicts(py: Python<'_>, dicts: &[Bound<'_, PyDict>]) -> PyResult<Vec<Metrics>> {
    let mut ignored: Option<String> = None;
    let mut all = Vec::with_capacity(dicts.len());
    for dict in dicts {
        let mut pairs: Vec<(String, f64)> = Vec::with_capacity(dict.len());
        for (key, value) in dict.iter() {
            let key = key.str()?.to_string();
            if let Ok(number) = value.extract::<f64>() {
                pairs.push((key, number));
            } else if ignored.is_none() {
                ignored = Some(format!("`{key}` of type {}", value.get_type().name()?));
            }
        }
        all.push(pairs.into_iter().collect());
    }
    if let Some(first) = ignored {
        let message = format!("metrics that are not numbers are ignored, such as {first}");
        let message = std::ffi::CString::new(message).unwrap_or_default();
        PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &message, 2)?;
    }
    Ok(all)
}

/// Converts metrics to a dictionary.
pub(crate) fn to_dict<'py>(py: Python<'py>, metrics: &Metrics) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (key, value) in metrics.iter() {
        dict.set_item(&**key, value)?;
    }
    Ok(dict)
}
