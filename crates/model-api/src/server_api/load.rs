//! Load of a server, read from its Prometheus metrics.

/// Bound of all values, so that sums never overflow.
const MAX_VALUE: f64 = 1e12;

/// Metrics of a server kind that describe its load; of each property, the names in its versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadMetrics {
    /// Path of the metrics.
    pub path: &'static str,
    pub running: &'static [&'static str],
    pub waiting: &'static [&'static str],
    pub cache_usage: &'static [&'static str],
    pub preemptions: &'static [&'static str],
}

/// Load of a server. Values of several engines in one server are added, except for the cache usage,
/// of which the highest counts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServerLoad {
    /// Sequences that are being generated.
    pub running: u64,
    /// Sequences in the server's queue.
    pub waiting: u64,
    /// Share of the KV cache that is in use, from 0 to 1. `None`: not reported.
    pub cache_usage: Option<f64>,
    /// Sequences that lost their KV cache to others and were computed again, since the start.
    pub preemptions: Option<u64>,
}

impl ServerLoad {
    /// Reads the load from Prometheus' text format. `None`: it reports no queue.
    pub fn parse(text: &str, metrics: &LoadMetrics) -> Option<Self> {
        let running = Samples::read(text, metrics.running)?.sum;
        let waiting = Samples::read(text, metrics.waiting)?.sum;
        let cache_usage = Samples::read(text, metrics.cache_usage).map(|it| it.max.min(1.0));
        let preemptions = Samples::read(text, metrics.preemptions).map(|it| it.sum as u64);
        Some(Self { running: running as u64, waiting: waiting as u64, cache_usage, preemptions })
    }
}

/// Sum and maximum of the finite, non-negative samples of a metric.
struct Samples {
    sum: f64,
    max: f64,
}

impl Samples {
    /// `None`: there is no sample of any of the names. The first name with samples counts.
    fn read(text: &str, names: &[&str]) -> Option<Self> {
        names.iter().find_map(|name| {
            let values = text.lines().filter_map(|line| sample(line, name));
            values.fold(None, |samples: Option<Self>, value| {
                let Self { sum, max } = samples.unwrap_or(Self { sum: 0.0, max: 0.0 });
                Some(Self { sum: sum + value, max: max.max(value) })
            })
        })
    }
}

/// Returns the value of a line `name{labels} value [timestamp]`.
fn sample(line: &str, name: &str) -> Option<f64> {
    let rest = line.strip_prefix(name)?;
    let rest = match rest.strip_prefix('{') {
        Some(labels) => labels.rsplit_once('}')?.1,
        None => rest.strip_prefix(' ')?,
    };
    let value: f64 = rest.split_whitespace().next()?.parse().ok()?;
    (value.is_finite() && value >= 0.0).then_some(value.min(MAX_VALUE))
}

#[cfg(test)]
mod tests {
    use rollway_base::ServerKind;

    use super::*;
    use crate::server_api::server_api;

    fn parse(kind: ServerKind, text: &str) -> Option<ServerLoad> {
        ServerLoad::parse(text, server_api(kind).load_metrics().unwrap())
    }

    /// Lines of a vLLM 0.32 with two engines.
    const VLLM: &str = r#"# HELP vllm:num_requests_running Number of requests in execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 8.0
vllm:num_requests_running{engine="1",model_name="tiny"} 7.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 3.0
vllm:num_requests_waiting{engine="1",model_name="tiny"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="tiny"} 0.875
vllm:num_preemptions_total{engine="0",model_name="tiny"} 2.0
vllm:num_preemptions_created{engine="0",model_name="tiny"} 1.7950317586203232e+09
"#;

    #[test]
    fn engines_of_one_server_are_added() {
        let (running, waiting) = (15, 3);
        let (cache_usage, preemptions) = (Some(0.875), Some(2));
        let load = ServerLoad { running, waiting, cache_usage, preemptions };
        assert_eq!(parse(ServerKind::Vllm, VLLM), Some(load));
    }

    #[test]
    fn other_kinds_have_other_names() {
        let text = "sglang:num_running_reqs{model_name=\"a } b\"} 4\n\
                    sglang:num_queue_reqs{model_name=\"a } b\"} 5 1700000000\n\
                    sglang:token_usage{model_name=\"a } b\"} 0.5\n";
        let load = ServerLoad { running: 4, waiting: 5, cache_usage: Some(0.5), preemptions: None };
        assert_eq!(parse(ServerKind::Sglang, text), Some(load));
        let text = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 2\n";
        let load = ServerLoad { running: 1, waiting: 2, ..ServerLoad::default() };
        assert_eq!(parse(ServerKind::LlamaCpp, text), Some(load));
        assert!(server_api(ServerKind::Openai).load_metrics().is_none());
    }

    #[test]
    fn incomplete_and_invalid_metrics_are_no_load() {
        assert_eq!(parse(ServerKind::Vllm, ""), None);
        assert_eq!(parse(ServerKind::Vllm, "vllm:num_requests_running 1\n"), None);
        let text = "vllm:num_requests_running NaN\nvllm:num_requests_waiting -1\n";
        assert_eq!(parse(ServerKind::Vllm, text), None);
    }
}
