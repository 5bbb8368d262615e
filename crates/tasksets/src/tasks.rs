//! The tasks of a job.

use rollway_core::metrics::PassRates;

use super::Result;
use super::error::TasksetErrorKind as Kind;
use super::row_format::{SelectedTask, TaskDefaults, TaskRef};
use super::schedule::TasksetTurns;
use super::selector::FeedbackResult;
use super::set::OpenTaskset;
use super::state::{TasksetState, VERSION};

/// Upper bound of a plausible `taken`.
const MAX_TAKEN: u64 = 1 << 62;

/// End of the tasks.
#[derive(Clone, Copy, Debug)]
pub(super) enum TaskBudget {
    Steps(u64),
    Epochs(u64),
    /// One epoch, with an incomplete last batch.
    Once,
}

/// Tasks of one or several tasksets in the order of their selectors.
///
/// Deterministic in files, configuration and feedback: the same calls return the same tasks, also
/// after [`restore`](Self::restore).
#[derive(Debug)]
pub struct TaskStream {
    sets: Vec<OpenTaskset>,
    schedule: TasksetTurns,
    budget: TaskBudget,
    steps: u64,
    taken: u64,
    learned: FeedbackResult,
}

impl TaskStream {
    pub(super) fn new(sets: Vec<OpenTaskset>, budget: TaskBudget, seed: u64) -> Self {
        let sizes = sets.iter().map(|set| set.rows.len()).collect();
        let (schedule, learned) = (TasksetTurns::new(sizes, seed), FeedbackResult::default());
        Self { sets, schedule, budget, steps: 0, taken: 0, learned }
    }

    /// Returns the number of rows of all tasksets, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a taskset without rows is refused")]
    pub fn len(&self) -> u64 {
        self.schedule.total()
    }

    /// Returns the defaults of each taskset.
    pub fn sources(&self) -> impl Iterator<Item = &TaskDefaults> {
        self.sets.iter().map(|set| &*set.source)
    }

    /// Returns the total number of batches of a size.
    pub fn total_batches(&self, batch_size: u32) -> u64 {
        let size = u64::from(batch_size.max(1));
        match self.budget {
            TaskBudget::Steps(steps) => steps,
            TaskBudget::Epochs(epochs) => self.len().saturating_mul(epochs) / size,
            TaskBudget::Once => self.len().div_ceil(size),
        }
    }

    /// Returns the number of tasks left in the budget, dropped at the end if they fill no batch.
    pub fn left_over(&self) -> u64 {
        match self.budget {
            TaskBudget::Steps(_) => 0,
            TaskBudget::Epochs(epochs) => {
                self.len().saturating_mul(epochs).saturating_sub(self.taken)
            }
            TaskBudget::Once => self.len().saturating_sub(self.taken),
        }
    }

    /// Returns the next batch; `None` at the end. Training batches are full, an incomplete last one
    /// is dropped. After an error nothing has changed.
    pub fn next_batch(&mut self, batch_size: u32) -> Result<Option<Vec<SelectedTask>>> {
        let Some(count) = self.next_size(batch_size)? else { return Ok(None) };
        let turns = self.schedule.turns(self.taken, count);
        let mut shares = vec![0; self.sets.len()];
        turns.iter().for_each(|set| shares[usize::from(*set)] += 1);
        let sets = self.sets.iter_mut().zip(&shares);
        let mut rows: Vec<_> = sets.map(|(set, n)| set.selector.take(*n).into_iter()).collect();
        let next = |set: &u16| Some((usize::from(*set), rows[usize::from(*set)].next()?));
        let picks: Vec<(usize, u32)> = turns.iter().filter_map(next).collect();
        match self.draw(&picks) {
            Ok(batch) => {
                self.taken += u64::from(count);
                self.steps += 1;
                Ok(Some(batch))
            }
            Err(error) => {
                let sets = self.sets.iter_mut().zip(shares);
                sets.for_each(|(set, share)| set.selector.put_back(share));
                Err(error)
            }
        }
    }

    /// Returns the size of the next batch.
    fn next_size(&self, batch_size: u32) -> Result<Option<u32>> {
        let refuse =
            |what: String, hint: &str| Err(Kind::Option.at("buffer.batch_size", what, hint));
        if batch_size == 0 {
            return refuse("0".to_owned(), "give at least 1");
        }
        let left = match self.budget {
            TaskBudget::Steps(steps) => return Ok((self.steps < steps).then_some(batch_size)),
            TaskBudget::Epochs(_) | TaskBudget::Once => self.left_over(),
        };
        let is_full = left >= u64::from(batch_size);
        match self.budget {
            TaskBudget::Once if left > 0 && !is_full => Ok(Some(left as u32)),
            TaskBudget::Epochs(epochs) if !is_full && self.steps == 0 => {
                let rows = self.len();
                let what = format!("{batch_size}, but {rows} rows × {epochs} epochs never fill it");
                refuse(what, "lower it, or set `total_steps` or more `total_epochs`")
            }
            _ => Ok(is_full.then_some(batch_size)),
        }
    }

    /// Returns previously returned tasks again; changes nothing.
    pub fn draw_again(&mut self, picks: &[TaskRef]) -> Result<Vec<SelectedTask>> {
        let mut tasks = Vec::with_capacity(picks.len());
        for pick in picks {
            let set = self.sets.get_mut(pick.taskset_id);
            let Some(set) = set.filter(|set| pick.index < set.rows.len()) else {
                let what = format!("there is no row {} in taskset {}", pick.index, pick.taskset_id);
                let hint = "begin a new job with `continue_from_checkpoint: false`";
                let location = "the saved state of the tasks";
                return Err(Kind::State.at(location, what, hint));
            };
            tasks.push(set.draw(pick.index, pick.epoch)?);
        }
        Ok(tasks)
    }

    /// Reads rows in file order and returns them in batch order.
    fn draw(&mut self, picks: &[(usize, u32)]) -> Result<Vec<SelectedTask>> {
        let mut order: Vec<usize> = (0..picks.len()).collect();
        order.sort_by_key(|at| picks[*at]);
        for rows in order.chunk_by(|one, other| picks[*one].0 == picks[*other].0) {
            let indices: Vec<u64> = rows.iter().map(|at| picks[*at].1.into()).collect();
            self.sets[picks[rows[0]].0].rows.plan(&indices);
        }
        let mut drawn = Vec::with_capacity(picks.len());
        for at in order {
            let (set, row) = picks[at];
            let epoch = (self.taken + at as u64) / self.len();
            drawn.push((at, self.sets[set].draw(row.into(), epoch)?));
        }
        drawn.sort_by_key(|(at, _)| *at);
        Ok(drawn.into_iter().map(|(_, drawn)| drawn).collect())
    }

    /// Returns all tasks in file order, read lazily, regardless of progress.
    pub fn all(&mut self) -> impl Iterator<Item = Result<SelectedTask>> {
        let all = |set: &mut OpenTaskset| 0..set.rows.len();
        let sets = self.sets.iter_mut();
        sets.flat_map(move |set| all(set).map(move |index| set.draw(index, 0)))
    }

    /// Passes pass rates to the selectors. Rates of unknown tasks are counted and ignored.
    pub fn feedback(&mut self, metric: &PassRates) -> FeedbackResult {
        let mut learned = FeedbackResult::default();
        for (id, (indices, values)) in metric.by_taskset() {
            let set = usize::try_from(id).ok().and_then(|id| self.sets.get_mut(id));
            let pairs = indices.iter().copied().zip(values);
            match set {
                Some(set) => learned += set.selector.feedback(pairs),
                None => learned.unknown += pairs.len(),
            }
        }
        self.learned += learned;
        learned
    }

    /// Returns the totals of all feedback since opening.
    pub fn learned(&self) -> FeedbackResult {
        self.learned
    }

    pub fn state(&self) -> TasksetState {
        let sets = self.sets.iter().map(OpenTaskset::state).collect();
        TasksetState { version: VERSION, steps: self.steps, taken: self.taken, sets }
    }

    /// Resumes from a state. A state of other files, another selector or another version is refused
    /// and changes nothing.
    pub fn restore(&mut self, state: &TasksetState) -> Result<()> {
        let refuse = |what: String| {
            let hint = "begin a new job with `continue_from_checkpoint: false`";
            Err(Kind::State.at("the saved state of the tasks", what, hint))
        };
        if state.version != VERSION {
            return refuse(format!(
                "it has version {}, but this release reads {VERSION}: it was written by another \
                 release, which selects tasks in another order",
                state.version
            ));
        }
        if state.sets.len() != self.sets.len() {
            let (was, is) = (state.sets.len(), self.sets.len());
            return refuse(format!("the job had {was} tasksets and has {is}"));
        }
        for (set, state) in self.sets.iter().zip(&state.sets) {
            set.accept(state)?;
        }
        let taken = state.sets.iter().map(|set| set.selector.taken);
        let is_possible = (state.taken == 0) == (state.steps == 0)
            && state.steps <= state.taken
            && state.taken <= MAX_TAKEN;
        if !is_possible || !taken.eq(self.schedule.shares(state.taken)) {
            return refuse("its counts do not add up".to_owned());
        }
        for (set, state) in self.sets.iter_mut().zip(&state.sets) {
            set.selector.restore(&state.selector);
        }
        (self.steps, self.taken) = (state.steps, state.taken);
        Ok(())
    }
}
