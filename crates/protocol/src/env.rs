//! Names of the environment variables that configure a worker.

/// Address of the engine.
pub const ADDRESS: &str = "ROLLWAY_WORKER_ADDRESS";
/// Secret of the engine.
pub const SECRET: &str = "ROLLWAY_WORKER_SECRET";
/// The worker's token.
pub const TOKEN: &str = "ROLLWAY_WORKER_TOKEN";
/// Number of runners that the worker offers.
pub const RUNNERS: &str = "ROLLWAY_WORKER_RUNNERS";
/// A file with a byte for every runner of the worker, at the runner's number modulo
/// [`RUNNERS`]. It is not 0 while the worker executes code for the runner, and 0 while that
/// code waits, so that it is known whose code was executed when a worker died.
pub const EXECUTION_MARKS: &str = "ROLLWAY_WORKER_EXECUTION_MARKS";
/// Set if the engine reads the worker's output: a line may begin with a record separator
/// (U+001E), and is then a JSON object with `line` and, where known, `level`, `logger`,
/// `batch`, `task`, `run` and `attempt`.
pub const LOG_RELAY: &str = "ROLLWAY_WORKER_LOG_RELAY";
/// URL of the model gateway, with `/v1`; not set without a gateway.
pub const GATEWAY_URL: &str = "ROLLWAY_WORKER_GATEWAY_URL";
/// Certificate of the model gateway with its chain, as PEM; not set without TLS.
pub const GATEWAY_CERTIFICATE: &str = "ROLLWAY_WORKER_GATEWAY_CERTIFICATE";
/// Setup of a Python worker that the engine started, as JSON: models, search path, modules, stages
/// and sandbox settings.
pub const SETUP_JSON: &str = "ROLLWAY_WORKER_SETUP_JSON";
