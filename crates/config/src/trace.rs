//! `trace`: export of the spans of a job.

use std::collections::BTreeMap;

section! {
    /// Export of the spans of a job.
    pub struct TraceConfig {
        /// Writes `trace.json` for Perfetto and Chrome into the job's folder.
        pub file: bool,
        /// Maximum size of that file in bytes; later spans are dropped and counted.
        #[schemars(range(min = 1))]
        pub max_file_bytes: u64 = 512 << 20,
        /// Address of an OpenTelemetry collector that accepts OTLP over HTTP, such as
        /// `http://localhost:4318`. Absent: the value of `OTEL_EXPORTER_OTLP_ENDPOINT`, or none.
        pub otlp_endpoint: Option<String>,
        /// HTTP headers of requests to the collector.
        pub otlp_headers: BTreeMap<String, String>,
        /// Share of tasks that are traced. A task is traced with all its runs or not at all.
        #[schemars(range(min = 0.0, max = 1.0))]
        pub sample: f64 = 1.0,
    }
}
