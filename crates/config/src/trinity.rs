//! Compatibility with files for Trinity-RFT: translated values, keys that are accepted with a
//! warning and have no effect, and hints for removed or renamed keys.

use super::error::ConfigWarning;
use super::key_schema::PATHS;
use super::node::{NodeEntry, Scalar, Tree};

/// Keys that are accepted and have no effect.
pub(super) struct UnusedKeys {
    /// Sections of the keys; the empty one is the top level.
    pub(super) sections: &'static [&'static str],
    /// Names of the keys, separated by spaces.
    keys: &'static str,
    /// Explanation, or the key to use instead.
    pub(super) note: &'static str,
}

const fn unused(
    sections: &'static [&'static str],
    keys: &'static str,
    note: &'static str,
) -> UnusedKeys {
    UnusedKeys { sections, keys, note }
}

impl UnusedKeys {
    pub(super) fn keys(&self) -> impl Iterator<Item = &'static str> {
        self.keys.split_whitespace()
    }
}

const MODELS: &[&str] = &["explorer.rollout_model", "explorer.auxiliary_models"];
const TASKSETS: &[&str] = &[
    "buffer.explorer_input.taskset",
    "buffer.explorer_input.tasksets",
    "buffer.explorer_input.eval_tasksets",
];
const FORMATS: &[&str] = &[
    "buffer.explorer_input.taskset.format",
    "buffer.explorer_input.tasksets.format",
    "buffer.explorer_input.eval_tasksets.format",
];

pub(super) const UNUSED: &[UnusedKeys] = &[
    unused(
        &["trainer"],
        "actor_grad_clip enable_preview grad_clip max_token_len_per_gpu save_hf_checkpoint \
         save_strategy trainer_config trainer_config_path trainer_strategy \
         ulysses_sequence_parallel_size use_dynamic_bsz",
        "the trainer is a program of its own and has its own configuration",
    ),
    unused(
        &[""],
        "model",
        "models are loaded by inference servers and by the trainer; `explorer.rollout_model` names \
         the servers",
    ),
    unused(&[""], "ray_namespace", "the namespace is `cluster.namespace`"),
    unused(
        &[""],
        "service",
        "services are not started; an operator of the pipeline can call a running one",
    ),
    unused(
        &[""],
        "stages",
        "only this file is run; give every stage a file and run one after the other",
    ),
    unused(&[""], "global_config", "every key is given in its own section"),
    unused(
        &["cluster"],
        "node_num gpu_per_node",
        "Ray and the inference servers manage their own machines",
    ),
    unused(
        MODELS,
        "bundle_indices chat_template cuda_visible_devices dtype enable_auto_tool_choice \
         enable_chunked_prefill enable_log_requests enable_lora enable_prefix_caching \
         enable_runtime_lora_updating enable_thinking enforce_eager fully_sharded_loras \
         gpu_memory_utilization lora_kwargs lora_modules max_cpu_loras max_logprobs max_model_len \
         reasoning_parser rope_scaling rope_theta tool_call_parser use_v1",
        "Rollway does not start inference servers: give it to the server when you start it",
    ),
    unused(
        MODELS,
        "ignore_eos logprobs min_response_tokens n repetition_penalty",
        "sampling options that not every server has go into `rollout_args` of the taskset",
    ),
    unused(
        MODELS,
        "enable_history enable_openai_api",
        "every model has an OpenAI API, and every call of the trained model is recorded",
    ),
    unused(
        &["explorer"],
        "runner_num",
        "the number of runners is `explorer.runner_per_model` for each model",
    ),
    unused(&["explorer"], "api_port", "the port of mode `serve` is `explorer.proxy_port`"),
    unused(&["explorer"], "runner_prepare_concurrency", "all workers are started at once"),
    unused(
        &["explorer"],
        "runner_prepare_max_retries",
        "a runner that does not start is retried without limit, with backoff; it counts as broken \
         after `explorer.supervision.max_start_failures` failures",
    ),
    unused(
        &["buffer"],
        "max_retry_times max_retry_interval",
        "set it in `buffer.trainer_input.experience_buffer`",
    ),
    unused(
        &["buffer"],
        "pad_token_id tokenizer_path",
        "experiences hold token ids without padding; tokenizers belong to the servers",
    ),
    unused(
        &["buffer.explorer_input"],
        "reply_prefix system_prompt",
        "the system prompt is `format.system_prompt` of each taskset; a prefix of the reply \
         belongs to the workflow",
    ),
    unused(
        TASKSETS,
        "enable_progress_bar reply_prefix system_prompt wrap_in_ray",
        "the system prompt is `format.system_prompt`; the rest is not needed",
    ),
    unused(
        TASKSETS,
        "batch_size total_epochs total_steps",
        "the sizes of a job are set in `buffer`, for all tasksets",
    ),
    unused(
        FORMATS,
        "chat_template chosen_key enable_concatenated_multi_turn label_key prompt_type \
         rejected_key",
        "for data of the trainer; tasks need `prompt_key` or `messages_key`",
    ),
    unused(
        &["buffer.trainer_input"],
        "auxiliary_buffers sft_warmup_dataset sft_warmup_steps",
        "the trainer reads other data itself",
    ),
    unused(
        &["buffer.trainer_input.experience_buffer"],
        "format schema_type tokenizer_path wrap_in_ray",
        "experiences have one format, and every trainer can reach the buffer",
    ),
    unused(&["data_processor"], "task_pipeline", "tasks are not processed before they run"),
    unused(
        &["data_processor.experience_pipeline"],
        "inputs output",
        "experiences come from the workflows and go to `buffer.trainer_input.experience_buffer`",
    ),
    unused(
        &["algorithm"],
        "compute_advantage_in_trainer entropy_loss_fn entropy_loss_fn_args kl_loss_fn \
         kl_loss_fn_args kl_penalty_fn kl_penalty_fn_args loss_agg_mode optimizer policy_loss_fn \
         policy_loss_fn_args use_critic",
        "losses and optimizers belong to the trainer",
    ),
    unused(
        &["algorithm"],
        "sample_strategy sample_strategy_args",
        "the trainer reads experiences in the order of the buffer; `synchronizer.max_staleness` \
         bounds their staleness, and `experience_buffer.replay_buffer` their reuse",
    ),
    unused(
        &["synchronizer"],
        "explorer_world_size ray_namespace wait_for_checkpoint",
        "not needed",
    ),
    unused(&["monitor"], "cache_dir enable_ray_timeline", "monitor files are in the job's folder"),
    UnusedKeys {
        sections: &["log"],
        keys: "save_dir",
        note: "the log goes to standard error: redirect it to a file",
    },
    UnusedKeys { sections: &["log"], keys: "group_by_node", note: "logs are not split by machine" },
];

/// Translation of a value.
pub(super) struct ValueAlias {
    pub(super) key: &'static str,
    pub(super) from: &'static str,
    pub(super) to: &'static str,
    /// Difference in meaning. `None`: the same meaning.
    pub(super) note: Option<&'static str>,
}

const fn value_alias(key: &'static str, from: &'static str, to: &'static str) -> ValueAlias {
    ValueAlias { key, from, to, note: None }
}

pub(super) const SPELLINGS: &[ValueAlias] = &[
    value_alias("synchronizer.sync_method", "online", "nccl"),
    value_alias("synchronizer.sync_method", "offline", "checkpoint"),
    value_alias("synchronizer.sync_style", "dynamic_by_explorer", "explorer_driven"),
    value_alias("synchronizer.sync_style", "dynamic_by_trainer", "trainer_driven"),
    ValueAlias {
        key: "trainer.trainer_type",
        from: "verl",
        to: "command",
        note: Some("the trainer is a separate program: `trainer.command` starts it"),
    },
    value_alias("explorer.rollout_model.engine_type", "vllm_async", "vllm"),
    value_alias("explorer.rollout_model.engine_type", "external", "openai"),
    value_alias("explorer.auxiliary_models.engine_type", "vllm_async", "vllm"),
    value_alias("explorer.auxiliary_models.engine_type", "external", "openai"),
    value_alias("log.level", "warn", "WARNING"),
    value_alias("log.level", "critical", "ERROR"),
    ValueAlias {
        key: "mode",
        from: "colocate",
        to: "both",
        note: Some(
            "runs as `both`: servers and trainer decide about sharing a GPU; on one machine, use \
             `synchronizer.sync_method: memory`",
        ),
    },
];

/// Refused keys with their hints.
const REFUSED: &[(&str, &str)] = &[
    (
        "explorer.limits.joined_runners",
        "`joined_runners` was removed, because every runner belongs to the pool; remove the key, \
         and limit the pool with `explorer.limits.runners`",
    ),
    ("explorer.rollout_model.api_key", API_KEY),
    ("explorer.auxiliary_models.api_key", API_KEY),
    ("explorer.rollout_model.max_prompt_tokens", MAX_PROMPT_TOKENS),
    ("explorer.auxiliary_models.max_prompt_tokens", MAX_PROMPT_TOKENS),
];

const API_KEY: &str = "files must not contain secrets: set an environment variable and name it, as \
                       in `api_key_env: MY_KEY`";

const MAX_PROMPT_TOKENS: &str = "prompts are not truncated: limit the context of the inference \
                                 server when you start it, or remove long prompts from the taskset";

/// Refused values: key, value, hint.
const REFUSED_VALUES: &[(&str, &str, &str)] = &[
    ("buffer.explorer_input.taskset.storage_type", "sql", EXPORT_TABLE),
    ("buffer.explorer_input.tasksets.storage_type", "sql", EXPORT_TABLE),
    ("buffer.explorer_input.eval_tasksets.storage_type", "sql", EXPORT_TABLE),
];

const EXPORT_TABLE: &str = "tasks are not read from databases: export the table as JSON lines or \
                            Parquet, and remove `storage_type`";

/// Returns the warnings about a key without an effect. `None`: the key is unknown.
pub(super) fn warnings(
    entry: &NodeEntry,
    shown: &str,
    pattern: &str,
) -> Option<Vec<ConfigWarning>> {
    let (section, key) = pattern.rsplit_once('.').unwrap_or(("", pattern));
    let unused = UNUSED.iter().find(|unused| {
        unused.sections.contains(&section) && unused.keys().any(|name| name == key)
    })?;
    let mut warnings = vec![unused_warning(entry, shown, unused.note.to_owned())];
    // Many keys of `model` exist in `explorer.rollout_model`.
    if let ("model", Tree::Map(entries)) = (pattern, &entry.node.tree) {
        for entry in entries {
            let there = format!("explorer.rollout_model.{}", entry.key);
            if PATHS.contains(&there) {
                let note = format!("set `{there}`");
                warnings.push(unused_warning(entry, &format!("{shown}.{}", entry.key), note));
            }
        }
    }
    Some(warnings)
}

/// Translates a value, with a warning if the meaning differs.
pub(super) fn replaced(
    scalar: &Scalar,
    entry: &NodeEntry,
    shown: &str,
    pattern: &str,
) -> Option<(&'static str, Option<ConfigWarning>)> {
    let spelling = SPELLINGS.iter().find(|spelling| {
        spelling.key == pattern && spelling.from.eq_ignore_ascii_case(&scalar.text)
    })?;
    let warning = spelling.note.map(|note| ConfigWarning {
        key: shown.to_owned(),
        span: entry.node.span.clone(),
        message: format!("`{}` is read as `{}`", spelling.from, spelling.to),
        note: note.to_owned(),
    });
    Some((spelling.to, warning))
}

/// Former keys and their current names.
const RENAMED: &[(&str, &str)] = &[
    ("buffer.trainer_input.experience_buffer.when_full", "on_full"),
    ("cluster.idle_time", "idle_timeout"),
    ("explorer.batch.eval.success_min_percent", "min_success_percent"),
    ("explorer.batch.train.success_min_percent", "min_success_percent"),
    ("explorer.batch.train.when_short", "on_missing_tasks"),
    ("explorer.failures.groups", "group_policy"),
    ("explorer.failures.invalid_output.then", "on_exhausted"),
    ("explorer.failures.model_unavailable.then", "on_exhausted"),
    ("explorer.failures.runner_lost.then", "on_exhausted"),
    ("explorer.failures.timeout.then", "on_exhausted"),
    ("explorer.failures.workflow.then", "on_exhausted"),
    ("explorer.history", "serve_retention"),
    ("explorer.supervision.broken_rest", "broken_retry_delay"),
    ("explorer.supervision.elsewhere_wait", "other_runner_wait"),
    ("explorer.supervision.restart_backoff_max", "max_restart_backoff"),
    ("explorer.supervision.silence_timeout", "heartbeat_timeout"),
    ("explorer.supervision.start_failures_max", "max_start_failures"),
];

/// Returns the current name of a former key.
pub(super) fn renamed(pattern: &str) -> Option<&'static str> {
    RENAMED.iter().find(|(key, _)| *key == pattern).map(|(_, name)| *name)
}

/// Returns the hint for a refused key.
pub(super) fn hint(pattern: &str) -> Option<&'static str> {
    REFUSED.iter().find(|(key, _)| *key == pattern).map(|(_, hint)| *hint)
}

/// Returns the hint for a refused value.
pub(super) fn value_hint(pattern: &str, text: &str) -> Option<&'static str> {
    let is_refused =
        |(key, value, _): &&(&str, &str, &str)| *key == pattern && value.eq_ignore_ascii_case(text);
    REFUSED_VALUES.iter().find(is_refused).map(|(_, _, hint)| *hint)
}

fn unused_warning(entry: &NodeEntry, shown: &str, note: String) -> ConfigWarning {
    ConfigWarning {
        key: shown.to_owned(),
        span: entry.span.clone(),
        message: "not used by Rollway".to_owned(),
        note,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_name_existing_sections_and_keys() {
        for unused in UNUSED {
            for section in unused.sections {
                let section_exists = section.is_empty() || PATHS.iter().any(|path| path == section);
                assert!(section_exists, "{section}");
                for key in unused.keys() {
                    let path = super::super::key_schema::join(section, key);
                    assert!(!PATHS.contains(&path), "{path} is a key");
                }
            }
            for word in unused.note.split('`').skip(1).step_by(2).filter(|w| w.contains('.')) {
                let exists = PATHS.iter().any(|path| path.ends_with(word));
                assert!(exists, "{word} is no key");
            }
        }
        for (key, name) in RENAMED {
            let (section, _) = key.rsplit_once('.').expect("it is in a section");
            let path = super::super::key_schema::join(section, name);
            assert!(PATHS.contains(&path), "{path} is no key");
            assert!(!PATHS.iter().any(|path| path == key), "{key} is a key");
        }
        for spelling in SPELLINGS {
            assert!(PATHS.iter().any(|path| path == spelling.key), "{}", spelling.key);
        }
    }
}
