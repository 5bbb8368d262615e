//! Rollway for Python: the extension `rollway._rollway`. It translates and decides nothing.
//!
//! Start with `pending.rs`, through which everything goes that waits, and `engine.rs`. The other
//! side of a worker process is `link.rs`.

mod batch_id;
mod command;
mod config;
mod convert;
mod engine;
mod errors;
mod explorer;
mod gateway;
mod json;
mod link;
mod log;
mod metrics;
mod mock_server;
mod model_client;
mod operator;
mod payload;
mod pending;
mod reader;
mod runner_status;
mod runtime;
mod sink;
mod status;
mod supervisor;
mod synchronizer;
mod task_done;
mod task_snapshot;
mod tiny;

use pyo3::prelude::*;

/// The extension module; the package `rollway` is its only user.
#[pymodule]
mod _rollway {
    #[pymodule_export]
    use crate::batch_id::sort_batch_id;
    #[pymodule_export]
    use crate::command::run_command;
    #[pymodule_export]
    use crate::config::{built_in_names, config_check, config_default, config_load, config_read};
    #[pymodule_export]
    use crate::engine::{PyCoordinator, PyScheduler, worker_variables};
    #[pymodule_export]
    use crate::explorer::PyExplorer;
    #[pymodule_export]
    use crate::gateway::{PyGateway, server_kinds};
    #[pymodule_export]
    use crate::json::plain_json;
    #[pymodule_export]
    use crate::link::{PyAttempt, WorkerLink, failure_kinds};
    #[pymodule_export]
    use crate::metrics::{
        bootstrap_metric, calculate_task_level_metrics, gather_eval_metrics, gather_metrics,
        run_metrics,
    };
    #[pymodule_export]
    use crate::mock_server::PyMockServer;
    #[pymodule_export]
    use crate::model_client::ModelClient;
    #[pymodule_export]
    use crate::payload::{decode_experiences, encode_experiences};
    #[pymodule_export]
    use crate::pending::PyPending;
    #[pymodule_export]
    use crate::reader::{PyReader, PyReaderServer, close_writer, payload_to_arrow, write_batch};
    #[pymodule_export]
    use crate::runtime::{shutdown, version};
    #[pymodule_export]
    use crate::supervisor::supervise_workers;
    #[pymodule_export]
    use crate::synchronizer::{PySynchronizer, draft_weights, finish_weights};
    #[pymodule_export]
    use crate::tiny::PyTinyServer;
}
