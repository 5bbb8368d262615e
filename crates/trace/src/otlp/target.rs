//! Collector and resource attributes, from the configuration or OpenTelemetry's environment
//! variables.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use rollway_config::Config;

use super::messages::KeyValue;
use crate::ids::SpanNamer;

/// Path of traces below a collector's address.
const PATH: &str = "/v1/traces";

/// Default timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Target {
    pub(super) url: String,
    pub(super) headers: HeaderMap,
    pub(super) timeout: Duration,
    pub(super) resource: Vec<KeyValue>,
}

impl Target {
    /// Returns the collector of a job. `None`: none is configured.
    ///
    /// # Errors
    /// Message with remedy.
    pub(crate) fn of(
        config: &Config,
        names: &SpanNamer,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, String> {
        let variable = |name: &str| variable(name).filter(|text| !text.trim().is_empty());
        let Some((url, source)) = endpoint(config, &variable) else { return Ok(None) };
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(format!(
                "{source} is not an HTTP address: `{url}`; name a collector that takes OTLP over \
                 HTTP, such as `http://localhost:4318`"
            ));
        }
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        for (name, value) in named(config, &variable) {
            let wrong =
                |_| format!("invalid header of the collector: `{name}`; check its name and value");
            let key = HeaderName::try_from(name.as_str()).map_err(|_| wrong(()))?;
            let mut value = HeaderValue::try_from(value.as_str()).map_err(|_| wrong(()))?;
            value.set_sensitive(true);
            headers.insert(key, value);
        }
        let millis = variable("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT")
            .or_else(|| variable("OTEL_EXPORTER_OTLP_TIMEOUT"));
        let millis = millis.and_then(|text| text.trim().parse().ok());
        let timeout = millis.map_or(TIMEOUT, Duration::from_millis);
        let resource = resource(names, &variable);
        Ok(Some(Self { url, headers, timeout, resource }))
    }
}

/// Returns the URL for traces and the setting that it comes from.
fn endpoint(
    config: &Config,
    variable: &impl Fn(&str) -> Option<String>,
) -> Option<(String, &'static str)> {
    let below = |address: &str| {
        let address = address.trim().trim_end_matches('/');
        match address.ends_with(PATH) {
            true => address.to_owned(),
            false => format!("{address}{PATH}"),
        }
    };
    if let Some(address) = &config.trace.otlp_endpoint {
        return Some((below(address), "`trace.otlp_endpoint`"));
    }
    let is_off = variable("OTEL_SDK_DISABLED").is_some_and(|text| text.trim() == "true")
        || variable("OTEL_TRACES_EXPORTER").is_some_and(|text| text.trim() == "none");
    if is_off {
        return None;
    }
    const TRACES: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
    const ALL: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
    let traces = || variable(TRACES).map(|address| (address.trim().to_owned(), TRACES));
    traces().or_else(|| variable(ALL).map(|address| (below(&address), ALL)))
}

fn named(config: &Config, variable: &impl Fn(&str) -> Option<String>) -> BTreeMap<String, String> {
    let text = variable("OTEL_EXPORTER_OTLP_TRACES_HEADERS")
        .or_else(|| variable("OTEL_EXPORTER_OTLP_HEADERS"));
    let mut headers: BTreeMap<String, String> = pairs(&text.unwrap_or_default()).collect();
    headers.extend(config.trace.otlp_headers.clone());
    headers
}

/// Returns the resource attributes: variables before our own.
fn resource(names: &SpanNamer, variable: &impl Fn(&str) -> Option<String>) -> Vec<KeyValue> {
    let text = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let mut attributes: BTreeMap<String, String> = pairs(&text).collect();
    if let Some(name) = variable("OTEL_SERVICE_NAME") {
        attributes.insert("service.name".to_owned(), name);
    }
    let ours = [
        ("service.name", "rollway".to_owned()),
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("process.pid", std::process::id().to_string()),
        ("rollway.job", names.job().to_string()),
    ];
    for (name, value) in ours {
        attributes.entry(name.to_owned()).or_insert(value);
    }
    attributes.iter().map(|(key, value)| KeyValue::text(key, value)).collect()
}

/// Parses `a=b,c=d` with percent encoding.
fn pairs(text: &str) -> impl Iterator<Item = (String, String)> {
    text.split(',').filter_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        let name = decoded(name.trim());
        (!name.is_empty()).then(|| (name, decoded(value.trim())))
    })
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let code = after.get(..2).filter(|_| *first == b'%');
        let code = code.and_then(|hex| std::str::from_utf8(hex).ok());
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(config: &Config, variables: &[(&str, &str)]) -> Result<Option<Target>, String> {
        let find = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Target::of(config, &SpanNamer::new("p/j"), find)
    }

    #[test]
    fn opentelemetry_variables_name_the_collector() {
        let mut config = Config::default();
        assert!(target(&config, &[]).unwrap().is_none());
        let all = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4318/");
        let url = |config: &Config, variables: &[(&str, &str)]| {
            target(config, variables).unwrap().map(|target| target.url)
        };
        assert_eq!(url(&config, &[all]).as_deref(), Some("http://all:4318/v1/traces"));
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://some:1/x");
        assert_eq!(url(&config, &[all, traces]).as_deref(), Some("http://some:1/x"));
        assert_eq!(url(&config, &[all, ("OTEL_SDK_DISABLED", "true")]), None);
        config.trace.otlp_endpoint = Some("https://own".to_owned());
        assert_eq!(url(&config, &[all, traces]).as_deref(), Some("https://own/v1/traces"));
        config.trace.otlp_endpoint = Some("localhost:4318".to_owned());
        let message = target(&config, &[]).unwrap_err();
        assert!(message.contains("trace.otlp_endpoint"), "{message}");
    }

    #[test]
    fn opentelemetry_variables_set_headers_and_resource() {
        let mut config = Config::default();
        config.trace.otlp_endpoint = Some("http://own".to_owned());
        config.trace.otlp_headers.insert("x-own".to_owned(), "1".to_owned());
        let variables = [
            ("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Basic%20abc, x-own=2"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=other,deployment.environment=lab"),
            ("OTEL_SERVICE_NAME", "mine"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "1500"),
        ];
        let target = target(&config, &variables).unwrap().unwrap();
        assert_eq!(target.headers["authorization"], "Basic abc");
        assert_eq!(target.headers["x-own"], "1");
        assert_eq!(target.timeout, Duration::from_millis(1500));
        assert!(target.resource.contains(&KeyValue::text("service.name", "mine")));
        assert!(target.resource.contains(&KeyValue::text("deployment.environment", "lab")));
        assert!(target.resource.contains(&KeyValue::text("rollway.job", "p/j")));
    }
}
