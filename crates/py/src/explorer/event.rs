//! Passes job events to a Python function.

use std::fmt;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rollway::explorer::{JobEvent, JobObserver};

use crate::{metrics, runtime};

/// Calls a function with a dictionary for every event, in order, on the Python job thread.
pub(super) struct EventCallback(Arc<Py<PyAny>>);

impl EventCallback {
    pub(super) fn new(function: Py<PyAny>) -> Self {
        Self(Arc::new(function))
    }
}

impl fmt::Debug for EventCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Told")
    }
}

impl JobObserver for EventCallback {
    fn on_event(&self, event: &JobEvent) {
        if matches!(event, JobEvent::Ready(_)) {
            // It is available on request.
            return;
        }
        let (function, event) = (Arc::clone(&self.0), event.clone());
        runtime::in_python(move |py| {
            let called = event_dict(py, &event).and_then(|dict| function.call1(py, (dict,)));
            if let Err(error) = called {
                // An exception in a callback does not stop the job.
                error.write_unraisable(py, Some(function.bind(py)));
            }
        });
    }
}

fn event_dict<'py>(py: Python<'py>, event: &JobEvent) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let name = match event {
        JobEvent::Began { mode, job_dir, done_steps, total_steps, tasks_per_step, runners } => {
            dict.set_item("mode", format!("{mode:?}").to_lowercase())?;
            dict.set_item("job_dir", job_dir)?;
            dict.set_item("done_steps", done_steps)?;
            dict.set_item("total_steps", total_steps)?;
            dict.set_item("tasks_per_step", tasks_per_step)?;
            dict.set_item("runners", runners)?;
            "began"
        }
        JobEvent::StepBegun { step, tasks, runs } => {
            dict.set_item("step", step)?;
            dict.set_item("tasks", tasks)?;
            dict.set_item("runs", runs)?;
            "step_begun"
        }
        JobEvent::StepDone { step, result, metrics, waited } => {
            dict.set_item("step", step)?;
            dict.set_item("finished_task_count", result.finished())?;
            dict.set_item("expected_task_count", result.tasks.total())?;
            dict.set_item("metrics", metrics::to_dict(py, metrics)?)?;
            dict.set_item("waited", waited.as_secs_f64())?;
            "step_done"
        }
        JobEvent::Evaluated { step, version, set, score, result, metrics } => {
            dict.set_item("step", step)?;
            dict.set_item("version", version)?;
            dict.set_item("set", &**set)?;
            dict.set_item("score", score)?;
            dict.set_item("complete", result.complete())?;
            dict.set_item("metrics", metrics::to_dict(py, metrics)?)?;
            "evaluated"
        }
        JobEvent::Synced { step, version, waited, loading } => {
            dict.set_item("step", step)?;
            dict.set_item("version", version)?;
            dict.set_item("waited", waited.as_secs_f64())?;
            dict.set_item("loading", loading.as_secs_f64())?;
            "synced"
        }
        JobEvent::Trained { step, metrics } => {
            dict.set_item("step", step)?;
            dict.set_item("metrics", metrics::to_dict(py, metrics)?)?;
            "trained"
        }
        JobEvent::WaitBegun(wait) | JobEvent::WaitEnded(wait) => {
            dict.set_item("reason", wait.reason.name())?;
            dict.set_item("message", wait.reason.message())?;
            if matches!(event, JobEvent::WaitBegun(_)) { "wait_begun" } else { "wait_ended" }
        }
        JobEvent::Ready(_) => "pulse",
        JobEvent::Info(message) => {
            dict.set_item("message", message)?;
            "info"
        }
        JobEvent::Alarm(alarm) => {
            dict.set_item("kind", alarm.kind)?;
            dict.set_item("raised", alarm.raised)?;
            dict.set_item("message", &alarm.message)?;
            "alarm"
        }
    };
    dict.set_item("event", name)?;
    Ok(dict)
}
