//! Rules between keys, and completion of a configuration before it is run.

mod cluster;
mod modes;
mod monitors;
mod scaling;
mod tls;
mod training;

use std::collections::BTreeSet;

use rollway_base::{BufferKind, BufferStorage, ServerKind};
use serde_json::Value;

use super::buffer::StorageType;
use super::error::{ConfigError, ConfigProblem, ConfigWarning, SourceSpan};
use super::explorer::ConcurrentMode;
use super::model::{EngineType, ModelConfig};
use super::node::ConfigNode;
use super::read::{ConfigReader, display_text};
use super::synchronizer::SyncStyle;
use super::taskset::{SelectorType, Taskset};
use super::{Config, Mode, ResolvedConfig};

/// Maximum length of a name in bytes: names of files may have 255, with additions such as
/// `_state_1000000.safetensors`.
const MAX_NAME_BYTES: usize = 200;

/// Checks a configuration and completes it.
pub(super) fn resolve(config: &Config) -> Result<ResolvedConfig, ConfigError> {
    let value = config.to_value();
    let mut reader = ConfigReader::default();
    reader.root(&ConfigNode::from(&value));
    let mut check = Check {
        given: config,
        value,
        config: config.clone(),
        problems: Vec::new(),
        warnings: config.loaded.warnings.clone(),
    };
    for mut problem in reader.problems {
        problem.span = check.span(&problem.key);
        check.problems.push(problem);
    }
    check.names();
    check.mode_keys();
    check.tasks();
    check.buffers();
    check.models();
    check.rollouts();
    check.runners();
    check.scaling();
    check.training();
    check.synchronization();
    check.evaluation();
    check.serving();
    check.simulation();
    check.cluster();
    check.monitors();
    check.tls();
    check.metrics_listener();
    check.warnings.sort_by_key(|warning| SourceSpan::order(warning.span.as_ref()));
    if check.problems.is_empty() {
        Ok(ResolvedConfig { config: check.config, warnings: check.warnings })
    } else {
        Err(ConfigError::new(check.problems))
    }
}

struct Check<'a> {
    given: &'a Config,
    /// `given` as a tree.
    value: Value,
    /// The completed configuration.
    config: Config,
    problems: Vec<ConfigProblem>,
    warnings: Vec<ConfigWarning>,
}

impl Check<'_> {
    fn names(&mut self) {
        for (key, name, may_be_empty) in [
            ("project", &self.given.project, false),
            ("group", &self.given.group, true),
            ("name", &self.given.name, false),
            ("explorer.name", &self.given.explorer.name, false),
            ("trainer.name", &self.given.trainer.name, false),
        ] {
            let empty = name.is_empty() && !may_be_empty;
            if empty || name.contains(['/', '\\', '\0']) || name == "." || name == ".." {
                let message = format!("{name:?} cannot be the name of a folder");
                self.add_problem(key, message, "choose a name without slashes");
            } else if name.len() > MAX_NAME_BYTES {
                let message =
                    format!("{} bytes, which leave no room for the names of its files", name.len());
                self.add_problem(
                    key,
                    message,
                    format!("choose a name of at most {MAX_NAME_BYTES} bytes"),
                );
            }
        }
        if self.given.mode == Mode::Bench && !self.given.continue_from_checkpoint {
            self.config.continue_from_checkpoint = true;
            self.warn(
                "continue_from_checkpoint",
                "`false` has no effect in mode `bench`",
                "the checkpoints in the job's folder are evaluated",
            );
        }
    }

    fn tasks(&mut self) {
        let mode = self.given.mode;
        let input = &self.given.buffer.explorer_input;
        let trains = matches!(mode, Mode::Both | Mode::Explore);
        if !trains && mode != Mode::Bench {
            return;
        }
        if input.taskset.is_some() && !input.tasksets.is_empty() {
            self.add_problem(
                "buffer.explorer_input.tasksets",
                "given together with `taskset`",
                "keep one of them; `tasksets` can hold both",
            );
        } else if trains && input.train_tasksets().next().is_none() {
            let message = format!("missing; mode `{}` needs tasks", mode.name());
            self.add_problem(
                "buffer.explorer_input.taskset",
                message,
                "give their path: `buffer: {explorer_input: {taskset: {path: tasks.jsonl}}}`",
            );
        }
        if mode == Mode::Bench && input.eval_tasksets.is_empty() {
            self.add_problem(
                "buffer.explorer_input.eval_tasksets",
                "missing; mode `bench` has nothing to evaluate",
                "list the eval tasksets, each with its `path`",
            );
        }
        let repeat_times = self.given.algorithm.repeat_times;
        let input = &self.given.buffer.explorer_input;
        if let Some(taskset) = &input.taskset {
            let key = "buffer.explorer_input.taskset".to_owned();
            let resolved = self.taskset(&key, taskset, "taskset_0", Some(repeat_times));
            self.config.buffer.explorer_input.taskset = Some(resolved);
        }
        let list = |name: &str| format!("buffer.explorer_input.{name}");
        self.config.buffer.explorer_input.tasksets =
            self.tasksets(&list("tasksets"), &input.tasksets, "taskset", Some(repeat_times));
        self.config.buffer.explorer_input.eval_tasksets =
            self.tasksets(&list("eval_tasksets"), &input.eval_tasksets, "eval_taskset", None);
    }

    fn tasksets(
        &mut self,
        key: &str,
        tasksets: &[Taskset],
        prefix: &str,
        repeat_times: Option<u32>,
    ) -> Vec<Taskset> {
        let mut names = BTreeSet::new();
        let mut resolved = Vec::new();
        for (index, taskset) in tasksets.iter().enumerate() {
            let key = format!("{key}[{index}]");
            let taskset = self.taskset(&key, taskset, &format!("{prefix}_{index}"), repeat_times);
            if let Some(name) = &taskset.name
                && !names.insert(name.clone())
            {
                let message = format!("`{name}` is also the name of another taskset");
                let hint = "metrics are recorded by name: choose different names";
                self.add_problem(&format!("{key}.name"), message, hint);
            }
            resolved.push(taskset);
        }
        resolved
    }

    fn taskset(
        &mut self,
        key: &str,
        taskset: &Taskset,
        name: &str,
        repeat_times: Option<u32>,
    ) -> Taskset {
        let mut resolved = taskset.clone();
        if resolved.name.as_ref().is_none_or(String::is_empty) {
            resolved.name = Some(name.to_owned());
        }
        if taskset.path.as_ref().is_none_or(String::is_empty) {
            let hint = "give the path of the tasks: `path: tasks.jsonl`";
            self.add_problem(&format!("{key}.path"), "missing", hint);
        }
        if let Some(repeat_times) = repeat_times {
            if taskset.repeat_times != 1 && taskset.repeat_times != repeat_times {
                self.warn(
                    &format!("{key}.repeat_times"),
                    format!("{} has no effect on train tasks", taskset.repeat_times),
                    &format!("`algorithm.repeat_times` is used: {repeat_times}"),
                );
            }
            resolved.repeat_times = repeat_times;
        }
        let (min, max) = match taskset.data_selector.selector_type {
            SelectorType::OfflineEasy2hard => (1, usize::MAX),
            SelectorType::DifficultyBased => (2, 2),
            SelectorType::Sequential | SelectorType::Shuffle | SelectorType::Random => {
                (0, usize::MAX)
            }
        };
        let features = taskset.data_selector.feature_keys.len();
        if !(min..=max).contains(&features) {
            let message = format!("{features} given, but the selector needs {min}");
            let hint = "name the fields of a row that hold the difficulty of a task";
            self.add_problem(&format!("{key}.data_selector.feature_keys"), message, hint);
        }
        resolved
    }

    fn buffers(&mut self) {
        let buffer = &self.given.buffer;
        if buffer.train_batch_size == 0 {
            if self.given.mode == Mode::Train {
                self.add_problem(
                    "buffer.train_batch_size",
                    "missing; mode `train` has no tasks to compute it from",
                    "give the number of experiences of a train step",
                );
            }
            let experiences = buffer.batch_size.saturating_mul(self.given.algorithm.repeat_times);
            self.config.buffer.train_batch_size = experiences;
        }
        let buffer = &buffer.trainer_input.experience_buffer;
        let key = "buffer.trainer_input.experience_buffer";
        if let (StorageType::File, Some(path)) = (buffer.storage_type, &buffer.path)
            && storage(path) != Some(BufferStorage::Files)
        {
            let message =
                format!("`{path}` is neither a file of JSON lines nor a folder of Parquet files");
            self.add_problem(
                &format!("{key}.path"),
                message,
                format!("let it end in {}", BufferStorage::Files.endings()),
            );
        }
        for (index, operator) in
            self.given.data_processor.experience_pipeline.operators.iter().enumerate()
        {
            if operator.name.is_empty() {
                let key = format!("data_processor.experience_pipeline.operators[{index}].name");
                self.add_problem(&key, "missing", "name the operator, such as `reward_filter`");
            }
        }
        if let Some(path) = &self.given.data_processor.experience_pipeline.input_save_path
            && !matches!(storage(path), Some(BufferStorage::Files | BufferStorage::Database))
        {
            let (files, databases) = (BufferStorage::Files, BufferStorage::Database);
            self.add_problem(
                "data_processor.experience_pipeline.input_save_path",
                format!("`{path}` is neither a file nor a database"),
                format!("let it end in {}, or begin with {}", files.endings(), databases.schemes()),
            );
        }
    }

    fn models(&mut self) {
        let explorer = &self.given.explorer;
        for (index, model) in explorer.auxiliary_models.iter().enumerate() {
            if model.engine_type.is_server()
                && model.base_url.is_empty()
                && model.model_path.is_none()
            {
                let key = format!("explorer.auxiliary_models[{index}].base_url");
                self.add_problem(&key, "missing", "give the address of the server");
            }
            self.model(&format!("explorer.auxiliary_models[{index}]"), model);
        }
        let model = &explorer.rollout_model;
        self.model("explorer.rollout_model", model);
        let rolls_out = matches!(self.given.mode, Mode::Both | Mode::Explore | Mode::Bench);
        if rolls_out && model.engine_type.is_server() && model.base_url.is_empty() {
            self.warn(
                "explorer.rollout_model.base_url",
                "no inference server is given, and Rollway does not start one",
                "give the address, such as http://localhost:8000/v1, or pass the models in code",
            );
        }
    }

    fn model(&mut self, key: &str, model: &ModelConfig) {
        for (index, url) in model.base_url.iter().enumerate() {
            if !url.starts_with("http://") && !url.starts_with("https://") {
                let message = format!("`{url}` is not an address");
                let hint = format!("write http://{url} or https://{url}");
                self.add_problem(&format!("{key}.base_url[{index}]"), message, hint);
            }
        }
        if !model.base_url.is_empty()
            && model.engine_num != 1
            && model.engine_num != model.engines()
        {
            let message = format!("{} is not the number of addresses", model.engine_num);
            let note = format!("there are as many engines as addresses: {}", model.engines());
            self.warn(&format!("{key}.engine_num"), message, &note);
        }
    }

    fn rollouts(&mut self) {
        let explorer = &self.given.explorer;
        let over_rollout = &explorer.over_rollout;
        let trains = matches!(self.given.mode, Mode::Both | Mode::Explore);
        if trains && self.given.synchronizer.sync_style == SyncStyle::Fixed {
            let hint = "set `synchronizer.sync_style` to explorer_driven or trainer_driven";
            let reason = "cannot be used with `sync_style: fixed`, which needs complete batches";
            if over_rollout.ratio > 0.0 {
                self.add_problem(
                    "explorer.over_rollout.ratio",
                    format!("{} {reason}", over_rollout.ratio),
                    hint,
                );
            }
            if over_rollout.return_partial_tasks {
                let message = format!("true {reason}");
                self.add_problem("explorer.over_rollout.return_partial_tasks", message, hint);
            }
        }
        let repeat_times = self.given.algorithm.repeat_times;
        let max = explorer.limits.runs_per_task;
        if repeat_times > max {
            let message =
                format!("{repeat_times} is more than `explorer.limits.runs_per_task`: {max}");
            self.add_problem("algorithm.repeat_times", message, "lower it, or raise the limit");
        }
        let limits = &explorer.limits;
        if limits.payload_bytes_per_run > limits.payload_bytes {
            let message = format!("{} is more than `payload_bytes`", limits.payload_bytes_per_run);
            let hint = "lower it, or raise `payload_bytes`, the limit of all runs together";
            self.add_problem("explorer.limits.payload_bytes_per_run", message, hint);
        }
        let gateway = &explorer.gateway;
        for (key, per_run, total) in [
            ("request_bytes", gateway.request_bytes_per_run, gateway.request_bytes),
            ("response_bytes", gateway.response_bytes_per_run, gateway.response_bytes),
            ("recorded_bytes", gateway.recorded_bytes_per_run, gateway.recorded_bytes),
        ] {
            if per_run > total {
                let message = format!("{per_run} is more than `{key}`");
                let hint = format!("lower it, or raise `{key}`, the limit of all runs together");
                self.add_problem(&format!("explorer.gateway.{key}_per_run"), message, &hint);
            }
        }
        let supervision = &explorer.supervision;
        if supervision.restart_backoff > supervision.max_restart_backoff {
            let message =
                format!("{} is less than `restart_backoff`", supervision.max_restart_backoff);
            let hint = "set it to `restart_backoff` or more";
            self.add_problem("explorer.supervision.max_restart_backoff", message, hint);
        }
    }

    fn runners(&mut self) {
        let explorer = &self.given.explorer;
        if explorer.concurrent_mode != ConcurrentMode::Sequential
            && matches!(self.given.mode, Mode::Both | Mode::Explore)
        {
            let engines = explorer.rollout_model.engines().max(1);
            let max = self.given.buffer.batch_size.div_ceil(engines).max(1);
            if explorer.runner_per_model > max {
                self.config.explorer.runner_per_model = max;
                let given = explorer.runner_per_model;
                if self.is_chosen("explorer.runner_per_model") {
                    let message = format!("{given} is more than a batch can keep busy");
                    let note =
                        format!("{max} runners per model are used: batch size divided by engines");
                    self.warn("explorer.runner_per_model", message, &note);
                }
            }
        }
    }

    fn synchronization(&mut self) {
        match self.given.mode {
            Mode::Train | Mode::Explore | Mode::Bench | Mode::Serve => {
                self.no_nccl("nccl needs explorer and trainer in one job: mode `both`");
            }
            Mode::Both | Mode::Simulate => {}
        }
    }

    fn evaluation(&mut self) {
        let period = self.given.synchronizer.sync_interval.max(1);
        let interval = self.given.explorer.eval_interval;
        let rounded = (interval / period * period).max(period);
        let evaluates = matches!(self.given.mode, Mode::Both | Mode::Explore);
        if !evaluates || rounded == interval {
            return;
        }
        self.config.explorer.eval_interval = rounded;
        let chosen = self.is_chosen("explorer.eval_interval");
        if chosen || !self.given.buffer.explorer_input.eval_tasksets.is_empty() {
            self.warn(
                "explorer.eval_interval",
                format!("{interval} is not a multiple of `synchronizer.sync_interval`: {period}"),
                &format!("the model is evaluated every {rounded} steps"),
            );
        }
    }

    fn serving(&mut self) {
        let explorer = &self.given.explorer;
        let address = explorer.listen_address.as_str();
        let is_open = !rollway_base::net::is_loopback(address) && !explorer.authentication;
        if self.given.mode == Mode::Serve && is_open && !explorer.allow_unauthenticated_network {
            self.add_problem(
                "explorer.authentication",
                format!(
                    "false with `explorer.listen_address: {address}`: every client that reaches \
                     this machine could use the model and write experiences"
                ),
                "set it to true, listen on 127.0.0.1, or set \
                 `explorer.allow_unauthenticated_network: true`",
            );
        }
        if address.is_empty() || address.contains(['/', ' ']) {
            let message = format!("{address:?} is not an address to listen on");
            let hint = "write 127.0.0.1 for this machine only, 0.0.0.0 for all networks";
            self.add_problem("explorer.listen_address", message, hint);
        }
        if self.given.mode == Mode::Serve {
            self.served();
        }
    }

    /// Checks the model and the database of mode `serve`.
    fn served(&mut self) {
        let explorer = &self.given.explorer;
        let model = &explorer.rollout_model;
        let kind = "explorer.rollout_model.engine_type";
        if let Some(message) = no_tokens(model.engine_type) {
            let hint = format!("use {}", ServerKind::either(ServerKind::has_tokens));
            self.add_problem(kind, message, hint);
        } else if model.engine_type.is_server() && model.base_url.is_empty() {
            let message = "missing; mode `serve` has no model to serve";
            let hint = "give the address of the server, such as http://localhost:8000/v1";
            self.add_problem("explorer.rollout_model.base_url", message, hint);
        }
        if let Some(address) = &explorer.db_url
            && !address.starts_with("sqlite:///")
            && address.contains(':')
        {
            // The address of a server may contain a password, so it is not shown.
            let message = "mode `serve` records in a SQLite database on this machine";
            let hint = "write sqlite:///PATH, or remove the key";
            let problem = ConfigProblem::new("explorer.db_url", message)
                .at(self.span("explorer.db_url").as_ref())
                .without_line()
                .hint(hint);
            self.problems.push(problem);
        }
    }

    fn simulation(&mut self) {
        let faults = &self.given.simulation.faults;
        let sum = faults.raise + faults.hang + faults.crash + faults.model_unavailable;
        if sum > 100.0 {
            let message = format!("the shares add up to {sum} percent");
            self.add_problem("simulation.faults", message, "lower them to at most 100 together");
        }
    }

    fn add_problem(&mut self, key: &str, message: impl Into<String>, hint: impl Into<String>) {
        let span = self.span(key);
        let mut problem = ConfigProblem::new(key, message).at(span.as_ref()).hint(hint);
        let current = self.current(key).filter(|value| !value.is_object() && !value.is_array());
        problem.value = current.map(display_text);
        self.problems.push(problem);
    }

    fn warn(&mut self, key: &str, message: impl Into<String>, note: &str) {
        let span = self.span(key);
        let (key, message, note) = (key.to_owned(), message.into(), note.to_owned());
        self.warnings.push(ConfigWarning { key, span, message, note });
    }

    /// Tells whether a value was given or differs from the default. Defaults are corrected without
    /// a warning.
    fn is_chosen(&self, key: &str) -> bool {
        let default = Config::default().to_value();
        let default = default.pointer(&pointer(key));
        self.given.loaded.origins.contains_key(key) || self.current(key) != default
    }

    /// Returns the span of a key, or of the section in which it is missing. `None`: the value has
    /// been changed since it was read.
    fn span(&self, key: &str) -> Option<SourceSpan> {
        let mut key = key;
        loop {
            if let Some(origin) = self.given.loaded.origins.get(key) {
                let is_same = |read| self.current(key).is_some_and(|now| equal(read, now));
                let is_same = origin.value.as_ref().is_none_or(is_same);
                return if is_same { origin.span.clone() } else { None };
            }
            key = match key.strip_suffix(']') {
                Some(_) => &key[..key.rfind('[')?],
                None => &key[..key.rfind('.')?],
            };
        }
    }

    fn current(&self, key: &str) -> Option<&Value> {
        self.value.pointer(&pointer(key))
    }
}

/// Returns the JSON pointer to a key.
fn pointer(key: &str) -> String {
    format!("/{}", key.replace(['.', '['], "/").replace(']', ""))
}

/// Compares values; 1 equals 1.0.
fn equal(one: &Value, other: &Value) -> bool {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

/// Returns the problem of a server kind that cannot be trained on.
fn no_tokens(kind: EngineType) -> Option<String> {
    let kind = kind.server_kind().filter(|kind| !kind.has_tokens())?;
    Some(format!("`{kind}` servers return no token ids, which training needs"))
}

/// Returns the storage of an address of a buffer. `None`: it is no such address.
fn storage(address: &str) -> Option<BufferStorage> {
    BufferKind::split(address).ok().map(|(kind, _)| kind.storage())
}
