//! Rules of the trainer, its buffer and its synchronizer.

use rollway_base::ServerKind;
use rollway_base::net::{host_of, is_loopback};
use rollway_base::suggest::nearest;

use super::{Check, no_tokens};
use crate::algorithm::ALGORITHMS;
use crate::{EngineType, Mode, StorageType, SyncMethod, SyncStyle, TrainerType};

const TYPE: &str = "trainer.trainer_type";
const COMMAND: &str = "trainer.command";
const MODEL: &str = "explorer.rollout_model.engine_type";
const METHOD: &str = "synchronizer.sync_method";
const ALGORITHM: &str = "algorithm.algorithm_type";

impl Check<'_> {
    pub(super) fn training(&mut self) {
        let mode = self.given.mode;
        if matches!(mode, Mode::Both | Mode::Train) {
            self.trainer();
            self.trainers_name();
        } else if !self.given.trainer.command.is_empty() && mode != Mode::Simulate {
            let message = "no trainer is started in this mode";
            self.warn(COMMAND, message, "start the trainer yourself, or set `mode: both`");
        }
        self.token_ids();
        self.algorithm();
        self.remote_buffer();
        self.remote_servers();
        self.staleness();
        self.address();
    }

    /// Determines the kind of trainer.
    fn trainer(&mut self) {
        let trainer = &self.given.trainer;
        let engine = self.given.explorer.rollout_model.engine_type;
        let has_command = !trainer.command.is_empty();
        let type_is_chosen = self.is_chosen(TYPE);
        // Without a type, a program or a model that the embedded trainer cannot train implies
        // `command`.
        let is_foreign = match self.given.mode {
            Mode::Train => engine != EngineType::Tiny && self.is_chosen(MODEL),
            _ => engine != EngineType::Tiny,
        };
        if trainer.trainer_type == TrainerType::Tiny && !type_is_chosen {
            if has_command || (is_foreign && self.given.mode == Mode::Both) {
                self.config.trainer.trainer_type = TrainerType::Command;
            }
        } else if trainer.trainer_type == TrainerType::Tiny && has_command {
            let note = "the embedded trainer is used; `trainer_type: command` starts the program";
            self.warn(COMMAND, "has no effect with `trainer_type: tiny`", note);
        }
        match self.config.trainer.trainer_type {
            TrainerType::Tiny if is_foreign => {
                let message = "the embedded trainer can train the embedded model only";
                let hint = "set `explorer.rollout_model.engine_type: tiny`, or `trainer_type: \
                            command` and the program in `trainer.command`";
                self.add_problem(TYPE, message, hint);
            }
            TrainerType::Command if trainer.command.first().is_some_and(String::is_empty) => {
                let hint = "name the program first, then its arguments: `command: [python, \
                            train.py]`";
                self.add_problem(COMMAND, "the program has no name", hint);
            }
            TrainerType::Command if !has_command => self.missing_command(),
            TrainerType::Tiny | TrainerType::Command => {}
        }
        let is_program = self.config.trainer.trainer_type == TrainerType::Command;
        if is_program && trainer.learning_rate.is_some() {
            let note = "it is that of the embedded trainer; give a program its own as an argument \
                        in `trainer.command`";
            self.warn("trainer.learning_rate", "has no effect on a trainer program", note);
        }
        if engine == EngineType::Tiny || engine == EngineType::Echo {
            self.no_nccl("nccl needs a model on GPUs, and this one has none");
        }
    }

    fn missing_command(&mut self) {
        let hint = "name a program, such as `command: [python, train.py]`";
        if self.given.mode == Mode::Train {
            self.add_problem(COMMAND, "missing; mode `train` has nothing to do", hint);
        } else {
            let wait = self.given.synchronizer.sync_timeout;
            let note = format!(
                "the job waits {wait} s (`synchronizer.sync_timeout`) for a trainer \
                 that you start; \
                 {hint}, to start one with the job"
            );
            self.warn(COMMAND, "no trainer is configured", &note);
        }
    }

    /// Training needs token ids and log-probabilities of the completions.
    fn token_ids(&mut self) {
        let Some(message) = no_tokens(self.given.explorer.rollout_model.engine_type) else {
            return;
        };
        match self.given.mode {
            Mode::Both => {
                let kinds = ServerKind::either(ServerKind::has_tokens);
                let hint = format!(
                    "use {kinds}, if the server is one of these; `mode: bench` evaluates any server"
                );
                self.add_problem(MODEL, message, hint);
            }
            Mode::Explore => {
                let note = "runs fail unless the workflow returns experiences with token ids of \
                            its own";
                self.warn(MODEL, message, note);
            }
            Mode::Train | Mode::Bench | Mode::Serve | Mode::Simulate => {}
        }
    }

    /// A misspelled algorithm would deliver experiences without advantages.
    fn algorithm(&mut self) {
        let algorithm = &self.given.algorithm;
        let name = algorithm.algorithm_type.as_str();
        let has_advantages = algorithm.advantage_fn.as_ref().is_some_and(|it| !it.is_empty());
        let is_used = matches!(self.given.mode, Mode::Both | Mode::Explore);
        if !is_used || has_advantages || ALGORITHMS.contains(&name) {
            return;
        }
        let message = format!("unknown algorithm `{name}`");
        if let Some(near) = nearest(name, ALGORITHMS.into_iter()) {
            self.add_problem(ALGORITHM, message, format!("did you mean `{near}`?"));
        } else {
            let note = "experiences have no advantages; name an operator that computes them in \
                        `algorithm.advantage_fn`, or compute them in the trainer";
            self.warn(ALGORITHM, message, note);
        }
    }

    /// Replaces `nccl` by `checkpoint`.
    pub(super) fn no_nccl(&mut self, reason: &str) {
        if !self.config.synchronizer.sync_method.uses_group() {
            return;
        }
        self.config.synchronizer.sync_method = SyncMethod::Checkpoint;
        if self.is_chosen(METHOD) {
            self.warn(METHOD, reason, "weights are synchronized by checkpoint");
        }
    }

    fn trainers_name(&mut self) {
        let name = &self.given.trainer.name;
        if self.given.mode == Mode::Both && *name == self.given.explorer.name {
            let message = format!("`{name}` is also the name of the explorer");
            let hint = "their files are named after them: choose another name";
            self.add_problem("trainer.name", message, hint);
        }
    }

    /// A buffer of another process can be read but not written.
    fn remote_buffer(&mut self) {
        let buffer = &self.given.buffer.trainer_input.experience_buffer;
        let is_remote =
            |path: &&str| path.starts_with("rollway://") || path.starts_with("rollway+unix:");
        let Some(path) = buffer.path.as_deref().filter(is_remote) else { return };
        let key = "buffer.trainer_input.experience_buffer.path";
        if self.given.mode != Mode::Train {
            let message = format!("`{path}` is the buffer of another process, which writes it");
            self.add_problem(
                key,
                message,
                "remove the key; only mode `train` can read the buffer of another process",
            );
        } else if buffer.storage_type != StorageType::Queue {
            let hint = "set `storage_type: queue`, or remove it";
            self.add_problem(key, format!("`{path}` needs `storage_type: queue`"), hint);
        }
    }

    /// Weights in the memory of this machine cannot be read on another one.
    fn remote_servers(&mut self) {
        let is_loaded = matches!(self.given.mode, Mode::Both | Mode::Explore);
        if !is_loaded || self.config.synchronizer.sync_method != SyncMethod::Memory {
            return;
        }
        let address = |url: &str| url.split_once("://").map_or(url, |(_, rest)| rest).to_owned();
        let host = |url: &str| address(url).split('/').next().unwrap_or_default().to_owned();
        let is_elsewhere = |url: &&String| !is_loopback(host_of(&host(url)));
        let urls = &self.given.explorer.rollout_model.base_url;
        if let Some(url) = urls.iter().find(is_elsewhere) {
            let message =
                format!("`memory` needs servers on this machine, and {url} may be another");
            let note = "another machine cannot read the memory of this one: use `checkpoint` with \
                        a `checkpoint_root_dir` that all machines share, or `nccl`";
            self.warn(METHOD, message, note);
        }
    }

    fn staleness(&mut self) {
        let synchronizer = &self.given.synchronizer;
        if synchronizer.max_staleness.is_some() && synchronizer.sync_style != SyncStyle::FullyAsync
        {
            self.config.synchronizer.max_staleness = None;
            self.warn(
                "synchronizer.max_staleness",
                "has an effect only with `sync_style: fully_async`",
                "with this style `sync_interval` and `sync_offset` bound the staleness",
            );
        }
    }

    fn address(&mut self) {
        let Some(address) = self.given.synchronizer.address.as_deref() else { return };
        let rest = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/');
        let port = rest.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        if port.is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
            let message = format!("`{address}` is not an address");
            let hint = "write HOST:PORT to listen, http://HOST:PORT to join, or remove the key";
            self.add_problem("synchronizer.address", message, hint);
        }
    }
}
