//! Prometheus metrics of every server, collected at each scrape.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use rollway_model_api::server_api::ServerLoad;

use crate::models::{ModelView, Models, ServerState, ServerView};

#[derive(Debug)]
pub(super) struct Servers(pub(super) Models);

type Reading = fn(&ServerView) -> u64;

const GAUGES: [(&str, &str, Reading); 4] = [
    ("server_up", "1 if the server accepts requests, otherwise 0", |server| {
        u64::from(server.state == ServerState::Running)
    }),
    ("server_in_flight", "Requests in flight at the server", |server| u64::from(server.in_flight)),
    ("server_limit", "Maximum requests in flight, adapted to the load of the server", |server| {
        u64::from(server.limit)
    }),
    ("server_consecutive_failures", "Consecutive failed requests of the server", |server| {
        u64::from(server.failures)
    }),
];

const COUNTERS: [(&str, &str, Reading); 12] = [
    ("server_requests", "Requests sent to the server", |server| server.counts.requests),
    ("server_succeeded", "Succeeded requests of the server", |server| {
        server.counts.succeeded_requests
    }),
    ("server_failed", "Failed requests of the server", |server| server.counts.failed_requests),
    ("server_failed_checks", "Failed health checks", |server| server.counts.failed_checks),
    ("server_sessions_moved", "Sessions moved to another server because of load", |server| {
        server.counts.moved_away
    }),
    ("server_unusable", "Transitions of the server to unusable", |server| server.counts.lost),
    ("server_updates", "Weight updates", |server| server.counts.updates),
    ("server_failed_updates", "Failed weight updates", |server| server.counts.failed_updates),
    ("server_restarts", "Succeeded restart commands", |server| server.counts.restarts),
    ("server_failed_restarts", "Failed restart commands", |server| server.counts.failed_restarts),
    ("server_limit_raises", "Loads that raised `server_limit`", |server| {
        server.counts.limit_raises
    }),
    ("server_limit_reductions", "Loads that lowered `server_limit`", |server| {
        server.counts.limit_reductions
    }),
];

type LoadReading = fn(&ServerLoad) -> Option<f64>;

/// Gauges of servers that report their load.
const LOADS: [(&str, &str, LoadReading); 4] = [
    ("server_running", "Sequences that the server generates, as it reports", |load| {
        Some(load.running as f64)
    }),
    ("server_waiting", "Sequences in the queue of the server, as it reports", |load| {
        Some(load.waiting as f64)
    }),
    ("server_cache_usage", "Used share of the KV cache, as the server reports", |load| {
        load.cache_usage
    }),
    ("server_preemptions", "Preemptions since the start of the server, as it reports", |load| {
        load.preemptions.map(|count| count as f64)
    }),
];

impl Collector for Servers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let models = self.0.view();
        for (name, help, read) in GAUGES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            each(&models, |labels, server| {
                let value = i64::try_from(read(server)).unwrap_or(i64::MAX);
                ConstGauge::new(value).encode(family.encode_family(labels)?)
            })?;
        }
        for (name, help, read) in COUNTERS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            each(&models, |labels, server| {
                ConstCounter::new(read(server)).encode(family.encode_family(labels)?)
            })?;
        }
        for (name, help, read) in LOADS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            each(&models, |labels, server| {
                let Some(value) = server.load.as_ref().and_then(read) else { return Ok(()) };
                ConstGauge::new(value).encode(family.encode_family(labels)?)
            })?;
        }
        let help = "Version of the server's weights, if known";
        let mut family =
            encoder.encode_descriptor("server_model_version", help, None, MetricType::Gauge)?;
        each(&models, |labels, server| {
            let Some(version) = server.version else { return Ok(()) };
            let version = i64::try_from(version).unwrap_or(i64::MAX);
            ConstGauge::new(version).encode(family.encode_family(labels)?)
        })
    }
}

type Labels<'a> = [(&'static str, &'a str); 3];

fn each(
    models: &[ModelView],
    mut encode: impl FnMut(&Labels<'_>, &ServerView) -> Result<(), std::fmt::Error>,
) -> Result<(), std::fmt::Error> {
    for model in models {
        for server in &model.servers {
            let id = server.id.0.to_string();
            let labels = [("model", &*model.name), ("server", &*id), ("url", &*server.url)];
            encode(&labels, server)?;
        }
    }
    Ok(())
}
