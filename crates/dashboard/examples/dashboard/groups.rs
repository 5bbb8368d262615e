//! Tasks of the simulated job, and the runs of one task side by side.

use rollway_telemetry::view::{
    ComparedRun, MessageText, RunKey, RunState, TaskDetail, TaskPage, TaskQuery, TaskSort,
    TaskSummary,
};

use crate::demo::World;
use crate::detail;
use crate::runs::DemoBatch;

pub(crate) fn tasks(world: &World, query: &TaskQuery, now: f64) -> Option<TaskPage> {
    let batch = world.batches.iter().find(|batch| batch.name == query.batch)?;
    let mut rows: Vec<TaskSummary> =
        (0..batch.tasks).map(|task| row(world, batch, task, now)).collect();
    let key = |row: &TaskSummary| match query.sort {
        TaskSort::Order => f64::from(row.task),
        TaskSort::Reward => row.reward.unwrap_or(-1.0),
        TaskSort::Spread => row.max.unwrap_or(0.0) - row.min.unwrap_or(1.0),
        TaskSort::Tokens => row.tokens.unwrap_or(0.0),
        TaskSort::Failed => row.runs.failed as f64,
    };
    rows.sort_by(|a, b| key(a).total_cmp(&key(b)));
    if query.desc {
        rows.reverse();
    }
    let total = rows.len() as u64;
    rows.truncate(500);
    Some(TaskPage { total, tasks: rows })
}

fn row(world: &World, batch: &DemoBatch, task: u32, now: f64) -> TaskSummary {
    let mut row = TaskSummary {
        batch: batch.name.clone(),
        task,
        kind: batch.kind.to_owned(),
        ..TaskSummary::default()
    };
    let (mut rewards, mut tokens) = (Vec::new(), 0.0);
    for run in 0..batch.repeat {
        let run = world.describe(batch.first + (task * batch.repeat + run) as usize, now);
        let count = match run.state {
            RunState::Pending => &mut row.runs.pending,
            RunState::Running => &mut row.runs.running,
            RunState::Succeeded => &mut row.runs.succeeded,
            RunState::Failed => &mut row.runs.failed,
            RunState::Cancelled => &mut row.runs.cancelled,
        };
        *count += 1;
        rewards.extend(run.reward);
        tokens += run.tokens.unwrap_or(0) as f64;
        row.workflow = run.workflow;
    }
    if !rewards.is_empty() {
        let count = rewards.len() as f64;
        row.reward = Some(rewards.iter().sum::<f64>() / count);
        row.min = rewards.iter().copied().reduce(f64::min);
        row.max = rewards.iter().copied().reduce(f64::max);
        row.tokens = Some(tokens / count);
    }
    row
}

pub(crate) fn task(world: &World, batch: &str, task: u32, now: f64) -> Option<TaskDetail> {
    let found = world.batches.iter().find(|known| known.name == batch && task < known.tasks)?;
    let member = |run: u32| {
        let index = world.find(&RunKey { batch: batch.to_owned(), task, run })?;
        let row = world.describe(index, now);
        let messages = match row.reward {
            Some(reward) => messages(index, reward),
            None => Vec::new(),
        };
        Some(ComparedRun { row, messages, truncated: false })
    };
    let members = (0..found.repeat).filter_map(member).collect();
    Some(TaskDetail { row: row(world, found, task, now), members, more: 0 })
}

fn messages(index: usize, reward: f64) -> Vec<MessageText> {
    let all = [
        ("user", detail::QUESTION.to_owned()),
        ("assistant", format!("{}\ncalculator({{…}})", detail::THOUGHT)),
        ("tool", detail::RESULT.to_owned()),
        ("assistant", detail::answer(index, reward)),
    ];
    all.into_iter().map(|(role, text)| MessageText { role: role.to_owned(), text }).collect()
}
