//! Rules about who trains, and how trainer and explorer of a job find each other.

use super::Check;
use crate::{EngineType, Mode, StorageType, SyncMethod, SyncStyle, TrainerType};

const TYPE: &str = "trainer.trainer_type";
const COMMAND: &str = "trainer.command";
const MODEL: &str = "explorer.rollout_model.engine_type";
const METHOD: &str = "synchronizer.sync_method";

impl Check<'_> {
    pub(super) fn training(&mut self) {
        let mode = self.given.mode;
        if matches!(mode, Mode::Both | Mode::Train) {
            self.trainer();
            self.trainers_name();
        } else if !self.given.trainer.command.is_empty() && mode != Mode::Simulate {
            let what = "no trainer is started in this mode";
            self.warn(COMMAND, what, "start it yourself, or set `mode: both`");
        }
        self.buffer_elsewhere();
        self.staleness();
        self.address();
    }

    /// Decides who trains.
    fn trainer(&mut self) {
        let trainer = &self.given.trainer;
        let engine = self.given.explorer.rollout_model.engine_type;
        let has_command = !trainer.command.is_empty();
        let type_is_chosen = self.is_chosen(TYPE);
        // Somebody who says nothing about the type has said it by naming a program, or a model
        // that the embedded trainer cannot train.
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
            self.warn(COMMAND, "does not count with `trainer_type: tiny`", note);
        }
        match self.config.trainer.trainer_type {
            TrainerType::Tiny if is_foreign => {
                let what = "the embedded trainer trains the embedded model only";
                let hint = "set `explorer.rollout_model.engine_type: tiny`, or `trainer_type: \
                            command` and the program in `trainer.command`";
                self.wrong(TYPE, what, hint);
            }
            TrainerType::Command if trainer.command.first().is_some_and(String::is_empty) => {
                let hint = "name the program first, then its arguments: `command: [python, \
                            train.py]`";
                self.wrong(COMMAND, "the program has no name", hint);
            }
            TrainerType::Command if !has_command => self.nobody_trains(),
            TrainerType::Tiny | TrainerType::Command => {}
        }
        if engine == EngineType::Tiny || engine == EngineType::Echo {
            self.no_nccl("nccl is for models on GPUs, and this one has none");
        }
    }

    /// There is no program to start.
    fn nobody_trains(&mut self) {
        let hint = "name a program, such as `command: [python, train.py]`";
        if self.given.mode == Mode::Train {
            self.wrong(COMMAND, "missing; mode `train` has nothing to do", hint);
        } else {
            let wait = self.given.synchronizer.sync_timeout;
            let note = format!(
                "the job waits {wait} s (`synchronizer.sync_timeout`) for one that you start; \
                 {hint}, to have it started"
            );
            self.warn(COMMAND, "no trainer is named", &note);
        }
    }

    /// Exchanges weights by checkpoint where nccl cannot be.
    pub(super) fn no_nccl(&mut self, why: &str) {
        if self.config.synchronizer.sync_method != SyncMethod::Nccl {
            return;
        }
        self.config.synchronizer.sync_method = SyncMethod::Checkpoint;
        if self.is_chosen(METHOD) {
            self.warn(METHOD, why, "weights are exchanged by checkpoint");
        }
    }

    /// Files of both are called by their names.
    fn trainers_name(&mut self) {
        let name = &self.given.trainer.name;
        if self.given.mode == Mode::Both && *name == self.given.explorer.name {
            let what = format!("`{name}` is the name of the explorer too");
            let hint = "their files are called by their names: choose another";
            self.wrong("trainer.name", what, hint);
        }
    }

    /// A buffer of another process can be read, and not written.
    fn buffer_elsewhere(&mut self) {
        let ours = &self.given.buffer.trainer_input.experience_buffer;
        let Some(path) = ours.path.as_deref().filter(|path| path.starts_with("rollway")) else {
            return;
        };
        if !path.starts_with("rollway://") && !path.starts_with("rollway+unix:") {
            return;
        }
        let key = "buffer.trainer_input.experience_buffer.path";
        if self.given.mode != Mode::Train {
            let what = format!("`{path}` is the buffer of another process, which writes it");
            self.wrong(key, what, "leave it out; only mode `train` reads where others write");
        } else if ours.storage_type != StorageType::Queue {
            let hint = "set `storage_type: queue`, or leave it out";
            self.wrong(key, format!("`{path}` does not go with the `storage_type`"), hint);
        }
    }

    fn staleness(&mut self) {
        let synchronizer = &self.given.synchronizer;
        if synchronizer.max_staleness.is_some() && synchronizer.sync_style != SyncStyle::FullyAsync
        {
            self.config.synchronizer.max_staleness = None;
            self.warn(
                "synchronizer.max_staleness",
                "only counts with `sync_style: fully_async`",
                "with this style `sync_interval` and `sync_offset` bound it",
            );
        }
    }

    fn address(&mut self) {
        let Some(address) = self.given.synchronizer.address.as_deref() else { return };
        let rest = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/');
        let port = rest.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        if port.is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
            let what = format!("`{address}` is not an address");
            let hint = "write HOST:PORT to listen there, http://HOST:PORT to join, or leave it out";
            self.wrong("synchronizer.address", what, hint);
        }
    }
}
