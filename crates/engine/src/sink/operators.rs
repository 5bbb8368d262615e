//! Pipeline operators of a configuration.

use rollway_config::{AlgorithmConfig, Config};
use rollway_data::pipeline::{Operator, OperatorRegistry};
use serde_json::Value;

use super::SinkError;

/// Checks names and arguments of the pipeline operators by making them.
pub fn check_operators(config: &Config, registry: &OperatorRegistry) -> Result<(), SinkError> {
    operators(config, registry).map(drop)
}

/// Returns the listed operators, and last the advantage operator of the algorithm unless it is
/// listed.
pub(super) fn operators(
    config: &Config,
    registry: &OperatorRegistry,
) -> Result<Vec<Box<dyn Operator>>, SinkError> {
    let listed = &config.data_processor.experience_pipeline.operators;
    let mut operators = Vec::new();
    for (at, one) in listed.iter().enumerate() {
        let key = format!("data_processor.experience_pipeline.operators[{at}]");
        let made = registry.build(&one.name, &Value::Object(one.args.clone()));
        operators.push(made.map_err(|error| SinkError::config(key, error.to_string()))?);
    }
    if let Some(name) = advantages(&config.algorithm)
        && listed.iter().all(|one| one.name != name)
    {
        let args = Value::Object(config.algorithm.advantage_fn_args.clone());
        let made = registry.build(name, &args);
        let wrong = |error: rollway_data::pipeline::OperatorRegistryError| {
            SinkError::config("algorithm.advantage_fn", error.to_string())
        };
        operators.push(made.map_err(wrong)?);
    }
    Ok(operators)
}

/// Returns the advantage operator. `None`: the trainer computes advantages, or none are needed.
fn advantages(algorithm: &AlgorithmConfig) -> Option<&str> {
    let chosen = algorithm.advantage_fn.as_deref().filter(|name| !name.is_empty());
    chosen.or_else(|| (algorithm.algorithm_type == "grpo").then_some("grpo"))
}
