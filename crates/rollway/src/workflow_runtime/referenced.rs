//! Workflows and reward functions that a configuration names.

use rollway_config::{Args, Config, Taskset};

/// Workflow and reward function of a taskset, unless a row names others.
#[derive(Clone, Debug)]
pub(super) struct ReferencedWorkflow<'a> {
    /// Key of the taskset in the configuration.
    pub(super) key_path: String,
    pub(super) workflow: Option<&'a str>,
    pub(super) workflow_args: &'a Args,
    pub(super) reward_fn: Option<&'a str>,
    pub(super) reward_fn_args: &'a Args,
    /// Prompts contain images or videos.
    pub(super) has_media: bool,
    pub(super) rows_name_workflows: bool,
    pub(super) rows_name_rewards: bool,
}

pub(super) fn sets(config: &Config) -> Vec<ReferencedWorkflow<'_>> {
    let input = &config.buffer.explorer_input;
    let named = |key_path: String, set, is_eval| named(config, key_path, set, is_eval);
    let single = input.taskset.iter().map(|set| named("taskset".to_owned(), set, false));
    let train = input.tasksets.iter().enumerate();
    let train = train.map(|(at, set)| named(format!("tasksets[{at}]"), set, false));
    let evals = input.eval_tasksets.iter().enumerate();
    let evals = evals.map(|(at, set)| named(format!("eval_tasksets[{at}]"), set, true));
    single.chain(train).chain(evals).collect()
}

fn named<'a>(
    config: &'a Config,
    key_path: String,
    set: &'a Taskset,
    is_eval: bool,
) -> ReferencedWorkflow<'a> {
    let input = &config.buffer.explorer_input;
    ReferencedWorkflow {
        key_path: format!("buffer.explorer_input.{key_path}"),
        workflow: input.workflow_of(set, is_eval),
        workflow_args: &set.workflow_args,
        reward_fn: input.reward_fn_of(set),
        reward_fn_args: &set.reward_fn_args,
        has_media: set.format.image_key.is_some() || set.format.video_key.is_some(),
        rows_name_workflows: set.format.workflow_key.is_some(),
        rows_name_rewards: set.format.reward_fn_key.is_some(),
    }
}
