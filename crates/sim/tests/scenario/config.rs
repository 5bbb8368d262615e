//! The `config` command: a configuration in short form.

use std::time::Duration;

use rollway_core::{CoreConfig, FailureKind, FailurePolicy, ScalingBounds};

use super::tokens::{BadScript, CommandTokens};

/// Returns the default configuration of scenarios: two runners and no heartbeat timeout, because
/// most scenarios advance time in large steps.
pub(super) fn default_config() -> CoreConfig {
    let mut config = CoreConfig { runners: 2, ..CoreConfig::default() };
    config.supervision.heartbeat_timeout = None;
    config
}

/// Returns the default configuration with the changes of the tokens.
pub(super) fn read(tokens: &mut CommandTokens) -> Result<CoreConfig, BadScript> {
    let mut config = default_config();
    let retries = tokens.get("retries")?.unwrap_or(2);
    config.failures = FailurePolicy::with_retries(retries);
    tokens.set("runners", &mut config.runners)?;
    config.scaling = scaling(tokens)?;
    tokens.set("slice", &mut config.max_repeat_times_per_runner)?;
    tokens.set("per_worker", &mut config.runners_per_worker)?;
    tokens.set("in_turn", &mut config.runs_in_turn)?;
    tokens.set("max_timeout", &mut config.max_timeout)?;
    config.default_timeout = config.max_timeout * (retries + 1);
    tokens.set("default_timeout", &mut config.default_timeout)?;
    tokens.set("delivery_timeout", &mut config.delivery_timeout)?;
    config.ledger = tokens.flag("records");
    failures(tokens, &mut config.failures)?;
    batches(tokens, &mut config)?;
    supervision(tokens, &mut config)?;
    limits(tokens, &mut config)?;
    Ok(config)
}

/// Parses the scaling bounds, if there are any.
fn scaling(tokens: &mut CommandTokens) -> Result<Option<ScalingBounds>, BadScript> {
    let Some(min) = tokens.get("min_runners")? else { return Ok(None) };
    let max = tokens.get("max_runners")?.unwrap_or(min);
    let together = tokens.get("runners_per_worker")?.unwrap_or(1);
    let quiet = tokens.get("idle_timeout")?.unwrap_or(Duration::from_secs(60));
    Ok(Some(ScalingBounds { min, max, runners_per_worker: together, idle_timeout: quiet }))
}

fn failures(tokens: &mut CommandTokens, policy: &mut FailurePolicy) -> Result<(), BadScript> {
    for kind in FailureKind::ALL {
        let rule = policy.rule_mut(*kind);
        tokens.set(&format!("{kind}_retries"), &mut rule.retries)?;
        tokens.set(&format!("{kind}_backoff"), &mut rule.backoff)?;
        tokens.set(&format!("{kind}_then"), &mut rule.then)?;
    }
    tokens.set("poison", &mut policy.poison_limit)?;
    tokens.set("groups", &mut policy.groups)
}

fn batches(tokens: &mut CommandTokens, config: &mut CoreConfig) -> Result<(), BadScript> {
    tokens.set("wait_after_min", &mut config.over_rollout.wait_after_min)?;
    config.over_rollout.return_partial_tasks = tokens.flag("partial");
    tokens.set("train_quorum", &mut config.train.quorum_percent)?;
    tokens.set("train_success", &mut config.train.success_min_percent)?;
    tokens.set("eval_quorum", &mut config.eval.quorum_percent)?;
    tokens.set("eval_success", &mut config.eval.success_min_percent)?;
    let dynamic = &mut config.dynamic_timeout;
    dynamic.enable = tokens.flag("dynamic");
    tokens.set("warmup", &mut dynamic.warmup_min_steps)?;
    tokens.set("samples", &mut dynamic.min_samples)?;
    tokens.set("window", &mut dynamic.window)?;
    tokens.set("ratio", &mut dynamic.ratio)?;
    tokens.set("floor", &mut dynamic.floor)
}

fn supervision(tokens: &mut CommandTokens, config: &mut CoreConfig) -> Result<(), BadScript> {
    let supervision = &mut config.supervision;
    tokens.set("start_timeout", &mut supervision.start_timeout)?;
    tokens.set("begin_timeout", &mut supervision.begin_timeout)?;
    tokens.set("heartbeat_timeout", &mut supervision.heartbeat_timeout)?;
    tokens.set("grace", &mut supervision.cancel_grace)?;
    tokens.set("backoff", &mut supervision.restart_backoff)?;
    tokens.set("backoff_max", &mut supervision.max_restart_backoff)?;
    tokens.set("start_failures", &mut supervision.max_start_failures)?;
    tokens.set("broken_retry_delay", &mut supervision.broken_retry_delay)?;
    tokens.set("other_runner_wait", &mut supervision.other_runner_wait)
}

fn limits(tokens: &mut CommandTokens, config: &mut CoreConfig) -> Result<(), BadScript> {
    let limits = &mut config.limits;
    tokens.set("limit.batches", &mut limits.batches)?;
    tokens.set("limit.open_tasks", &mut limits.open_tasks)?;
    tokens.set("limit.runs_per_task", &mut limits.runs_per_task)?;
    tokens.set("limit.waiters", &mut limits.waiters)?;
    tokens.set("limit.runners", &mut limits.runners)?;
    tokens.set("limit.payload_bytes", &mut limits.payload_bytes)?;
    let per_run = &mut limits.payload_bytes_per_run;
    tokens.set("limit.payload_bytes_per_run", per_run)?;
    tokens.set("limit.message_bytes", &mut limits.message_bytes)?;
    tokens.set("limit.metrics_per_run", &mut limits.metrics_per_run)?;
    tokens.set("limit.terminal_batches", &mut limits.terminal_batches)?;
    tokens.set("limit.workflows", &mut limits.workflows)
}
