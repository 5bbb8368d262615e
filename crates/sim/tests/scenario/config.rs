//! The `config` command: a configuration in short form.

use std::time::Duration;

use rollway_core::{CoreConfig, FailureKind, FailurePolicy, ScalingBounds};

use super::tokens::{BadScript, CommandTokens};

/// Returns the default configuration of scenarios: two runners and no heartbeat timeout, because most
/// scenarios advance time in large steps.
pub(super) fn usual() -> CoreConfig {
    let mut config = CoreConfig { runners: 2, ..CoreConfig::default() };
    config.supervision.silence_timeout = None;
    config
}

/// Returns the default configuration with the changes of the tokens.
pub(super) fn read(words: &mut CommandTokens) -> Result<CoreConfig, BadScript> {
    let mut config = usual();
    let retries = words.get("retries")?.unwrap_or(2);
    config.failures = FailurePolicy::with_retries(retries);
    words.set("runners", &mut config.runners)?;
    config.scaling = scaling(words)?;
    words.set("slice", &mut config.max_repeat_times_per_runner)?;
    words.set("in_turn", &mut config.runs_in_turn)?;
    words.set("max_timeout", &mut config.max_timeout)?;
    config.default_timeout = config.max_timeout * (retries + 1);
    words.set("default_timeout", &mut config.default_timeout)?;
    words.set("delivery_timeout", &mut config.delivery_timeout)?;
    config.ledger = words.flag("records");
    failures(words, &mut config.failures)?;
    batches(words, &mut config)?;
    supervision(words, &mut config)?;
    limits(words, &mut config)?;
    Ok(config)
}

/// Parses the scaling bounds, if there are any.
fn scaling(words: &mut CommandTokens) -> Result<Option<ScalingBounds>, BadScript> {
    let Some(min) = words.get("min_runners")? else { return Ok(None) };
    let max = words.get("max_runners")?.unwrap_or(min);
    let together = words.get("together")?.unwrap_or(1);
    let quiet = words.get("quiet")?.unwrap_or(Duration::from_secs(60));
    Ok(Some(ScalingBounds { min, max, runners_per_worker: together, idle_timeout: quiet }))
}

fn failures(words: &mut CommandTokens, policy: &mut FailurePolicy) -> Result<(), BadScript> {
    for kind in FailureKind::ALL {
        let rule = policy.rule_mut(*kind);
        words.set(&format!("{kind}_retries"), &mut rule.retries)?;
        words.set(&format!("{kind}_backoff"), &mut rule.backoff)?;
        words.set(&format!("{kind}_then"), &mut rule.then)?;
    }
    words.set("poison", &mut policy.poison_limit)?;
    words.set("groups", &mut policy.groups)
}

fn batches(words: &mut CommandTokens, config: &mut CoreConfig) -> Result<(), BadScript> {
    words.set("wait_after_min", &mut config.over_rollout.wait_after_min)?;
    config.over_rollout.return_partial_tasks = words.flag("partial");
    words.set("train_quorum", &mut config.train.quorum_percent)?;
    words.set("train_success", &mut config.train.success_min_percent)?;
    words.set("eval_quorum", &mut config.eval.quorum_percent)?;
    words.set("eval_success", &mut config.eval.success_min_percent)?;
    let dynamic = &mut config.dynamic_timeout;
    dynamic.enable = words.flag("dynamic");
    words.set("warmup", &mut dynamic.warmup_min_steps)?;
    words.set("samples", &mut dynamic.min_samples)?;
    words.set("window", &mut dynamic.window)?;
    words.set("ratio", &mut dynamic.ratio)?;
    words.set("floor", &mut dynamic.floor)
}

fn supervision(words: &mut CommandTokens, config: &mut CoreConfig) -> Result<(), BadScript> {
    let supervision = &mut config.supervision;
    words.set("start_timeout", &mut supervision.start_timeout)?;
    words.set("begin_timeout", &mut supervision.begin_timeout)?;
    words.set("silence", &mut supervision.silence_timeout)?;
    words.set("grace", &mut supervision.cancel_grace)?;
    words.set("backoff", &mut supervision.restart_backoff)?;
    words.set("backoff_max", &mut supervision.restart_backoff_max)?;
    words.set("start_failures", &mut supervision.start_failures_max)?;
    words.set("broken_rest", &mut supervision.broken_rest)?;
    words.set("elsewhere", &mut supervision.elsewhere_wait)
}

fn limits(words: &mut CommandTokens, config: &mut CoreConfig) -> Result<(), BadScript> {
    let limits = &mut config.limits;
    words.set("limit.batches", &mut limits.batches)?;
    words.set("limit.open_tasks", &mut limits.open_tasks)?;
    words.set("limit.runs_per_task", &mut limits.runs_per_task)?;
    words.set("limit.waiters", &mut limits.waiters)?;
    words.set("limit.runners", &mut limits.runners)?;
    words.set("limit.payload_bytes", &mut limits.payload_bytes)?;
    let per_run = &mut limits.payload_bytes_per_run;
    words.set("limit.payload_bytes_per_run", per_run)?;
    words.set("limit.message_bytes", &mut limits.message_bytes)?;
    words.set("limit.metrics_per_run", &mut limits.metrics_per_run)?;
    words.set("limit.terminal_batches", &mut limits.terminal_batches)?;
    words.set("limit.workflows", &mut limits.workflows)
}
