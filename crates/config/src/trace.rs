//! `trace`: where the spans of a job go.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where the spans of a job go: what was done when, and inside of what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TraceConfig {
    /// Whether the job's folder gets a `trace.json` that Perfetto and Chrome show.
    pub file: bool,
    /// How large that file may become, in bytes; what comes later is dropped and counted.
    #[schemars(range(min = 1))]
    pub max_file_bytes: u64,
    /// Address of an OpenTelemetry collector that takes OTLP over HTTP, such as
    /// `http://localhost:4318`. Absent: what `OTEL_EXPORTER_OTLP_ENDPOINT` says, or none.
    pub otlp_endpoint: Option<String>,
    /// Headers for the collector.
    pub otlp_headers: BTreeMap<String, String>,
    /// Which part of all tasks is traced, chosen by the task's own name so that it is whole.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub sample: f64,
}

impl Default for TraceConfig {
    fn default() -> Self {
        Self {
            file: false,
            max_file_bytes: 512 << 20,
            otlp_endpoint: None,
            otlp_headers: BTreeMap::new(),
            sample: 1.0,
        }
    }
}
