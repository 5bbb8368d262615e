//! Opens the tasksets of a configuration.

use std::sync::Arc;

use super::Result;
use super::error::TasksetErrorKind as Kind;
use super::row_format::{RowFormat, TaskDefaults, format_args};
use super::rows::Rows;
use super::selector::Selector;
use super::set::OpenTaskset;
use super::tasks::{TaskBudget, TaskStream};
use rollway_config::{BufferConfig, SelectorType, Taskset};

/// Maximum number of tasksets of a job.
const MAX_SETS: usize = 4096;

/// Opens the tasksets of a configuration. Every file is scanned at opening, so that its errors are
/// reported before anything else starts.
#[derive(Clone, Debug)]
pub struct TasksetOpener<'a> {
    buffer: &'a BufferConfig,
    is_prompt_needed: bool,
}

impl<'a> TasksetOpener<'a> {
    /// Returns an opener for a resolved configuration, in which `repeat_times` is effective.
    pub fn new(buffer: &'a BufferConfig) -> Self {
        Self { buffer, is_prompt_needed: true }
    }

    /// Accepts rows without a prompt, for workflows that read the row themselves. A `prompt_key`
    /// other than the default is still required.
    #[must_use]
    pub fn without_prompts(self) -> Self {
        Self { is_prompt_needed: false, ..self }
    }

    /// Opens the training tasks.
    pub fn train(&self) -> Result<TaskStream> {
        let configs: Vec<&Taskset> = self.buffer.explorer_input.train_tasksets().collect();
        if configs.is_empty() || configs.len() > MAX_SETS {
            let what = format!("{} tasksets; there must be 1 to {MAX_SETS}", configs.len());
            let hint = "give their path: `taskset: {path: tasks.jsonl}`";
            let location = "buffer.explorer_input";
            return Err(Kind::Option.at(location, what, hint));
        }
        let open = |(id, config): (usize, &&Taskset)| self.set(id, config, false);
        let sets = configs.iter().enumerate().map(open).collect::<Result<Vec<_>>>()?;
        let budget = match self.buffer.total_steps {
            Some(steps) => TaskBudget::Steps(steps.into()),
            None => TaskBudget::Epochs(self.buffer.total_epochs.into()),
        };
        Ok(TaskStream::new(sets, budget, configs[0].data_selector.seed))
    }

    /// Opens the evaluation tasks: one [`TaskStream`] per taskset, in order.
    pub fn evals(&self) -> Result<Vec<TaskStream>> {
        let configs = self.buffer.explorer_input.eval_tasksets.iter().enumerate();
        let open = |(id, config)| {
            let set = self.set(id, config, true)?;
            Ok(TaskStream::new(vec![set], TaskBudget::Once, config.data_selector.seed))
        };
        configs.map(open).collect()
    }

    fn set(&self, taskset_id: usize, config: &Taskset, is_eval: bool) -> Result<OpenTaskset> {
        let input = &self.buffer.explorer_input;
        let prefix = if is_eval { "eval_taskset" } else { "taskset" };
        let name = config.name.clone().filter(|name| !name.is_empty());
        let name = name.unwrap_or_else(|| format!("{prefix}_{taskset_id}"));
        let path = config.path.as_deref().unwrap_or_default();
        let location = format!("taskset `{name}` ({path})");
        if path.is_empty() {
            let hint = "give their path: `path: tasks.jsonl`";
            return Err(Kind::Option.at(location, "it has no `path`", hint));
        }
        let shape = RowFormat::new(
            &config.format,
            self.is_prompt_needed,
            input.workflow_of(config, is_eval),
            input.reward_fn_of(config),
        );
        let mut rows = Rows::open(config)?;
        // An evaluation covers the whole taskset in file order.
        let mut selector = config.data_selector.clone();
        if is_eval {
            selector.selector_type = SelectorType::Sequential;
            selector.kwargs.clear();
        }
        let selector = Selector::new(&selector, &name, &mut rows)?;
        let source = TaskDefaults {
            taskset_id,
            name: name.as_str().into(),
            is_eval,
            repeat_times: config.repeat_times,
            format_args: format_args(config),
            rollout_args: config.rollout_args.clone(),
            workflow_args: config.workflow_args.clone(),
            reward_fn_args: config.reward_fn_args.clone(),
        };
        let mut set = OpenTaskset { source: Arc::new(source), rows, shape, selector };
        set.check(&location)?;
        Ok(set)
    }
}
