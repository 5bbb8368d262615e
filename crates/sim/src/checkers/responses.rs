//! Every request gets exactly one response of its own type, in time, none after its withdrawal, and
//! at once when its batch is aborted.

use std::collections::BTreeMap;

use rollway_core::{Action, BatchId, Input, Refusal, Request, RequestId, Response, Time};

use super::wait_outcomes::too_few_good;
use super::{CheckContext, CheckVerdict, Checker, require};
use crate::ledger::SimLedger;
use crate::reference_model::{AttemptState, ModelRequest, ModelRun, Phase, RequestState, RunState};

#[derive(Debug, Default)]
pub(super) struct ResponsesChecker {
    /// Scope of the abort or stop in this step.
    given_up: Option<AbandonedRequest>,
    /// Time since which the minimum of a waiting request is reached.
    enough_since: BTreeMap<RequestId, Time>,
}

#[derive(Debug)]
enum AbandonedRequest {
    Batch(BatchId),
    Everything,
}

impl Checker for ResponsesChecker {
    fn input(&mut self, ctx: &CheckContext<'_>) -> CheckVerdict {
        self.given_up = match ctx.input {
            Input::Requested { request, what } if ctx.accepted && !refused(ctx, *request) => {
                match what {
                    Request::Abort { batch, .. } => Some(AbandonedRequest::Batch(batch.clone())),
                    Request::Stop { .. } => Some(AbandonedRequest::Everything),
                    _ => None,
                }
            }
            _ => None,
        };
        if let Input::Requested { request, what: Request::CancelRun { batch, task, run } } =
            ctx.input
        {
            let key = ctx.model.active.get(batch);
            let record = key.and_then(|key| ctx.model.run(*key, *task, run.0));
            return cancelled_or_not(ctx, *request, record);
        }
        Ok(())
    }

    fn crashed(&mut self, _: &SimLedger) {
        *self = Self::default();
    }

    fn action(&mut self, ctx: &CheckContext<'_>, action: &Action) -> CheckVerdict {
        let Action::Respond { request, answer } = action else { return Ok(()) };
        let Some(asked) = ctx.model.requests.get(request) else {
            return Err(format!("{request} is answered and was never asked"));
        };
        require!(
            asked.state == RequestState::Open,
            "{request} is answered although it was {:?}",
            asked.state
        );
        require!(
            fits(&asked.what, answer),
            "{request} asked for {:?} and is answered {answer:?}",
            asked.what
        );
        Ok(())
    }

    fn settled(&mut self, ctx: &CheckContext<'_>) -> CheckVerdict {
        let stops =
            |(_, asked): (RequestId, &ModelRequest)| matches!(asked.what, Request::Stop { .. });
        let stopping = ctx.model.waiting().any(stops);
        require!(!stopping || under_way(ctx), "a stop waits although nothing is under way");
        let next = ctx.core.next_deadline().map_or(Time::MAX, |deadline| deadline.at);
        for (request, asked) in ctx.model.waiting() {
            self.check_waiter(ctx, request, asked)?;
            // Requests from before the delivery wait for the sink's answer.
            let patient = delivering(ctx, asked).is_some_and(|since| asked.at <= since);
            if let Some(deadline) = asked.deadline().filter(|_| !patient) {
                require!(
                    next <= deadline,
                    "{request} must be answered by {deadline}, and the next deadline is \
                     {next}: {:?}",
                    asked.what
                );
            }
            let late = match &self.given_up {
                Some(AbandonedRequest::Batch(batch)) => {
                    asked.batch() == Some(batch) && delivering(ctx, asked).is_none()
                }
                Some(AbandonedRequest::Everything) => {
                    let stops = matches!(asked.what, Request::Stop { .. });
                    !stops && delivering(ctx, asked).is_none()
                }
                None => false,
            };
            require!(!late, "{request} still waits: {:?} after {:?}", asked.what, self.given_up);
        }
        Ok(())
    }

    fn ended(&mut self, ctx: &CheckContext<'_>) -> CheckVerdict {
        let open = ctx.model.waiting().next();
        require!(open.is_none(), "never answered: {open:?}");
        let counters = ctx.core.counters();
        let over = counters.answers + counters.abandoned;
        require!(counters.requests == over, "{} requests, {over} over", counters.requests);
        Ok(())
    }
}

impl ResponsesChecker {
    /// No request waits for a complete batch, or longer than the grace period after its minimum.
    fn check_waiter(
        &mut self,
        ctx: &CheckContext<'_>,
        request: RequestId,
        asked: &ModelRequest,
    ) -> CheckVerdict {
        let key = asked.batch().and_then(|batch| ctx.model.active.get(batch));
        let Some(key) = key.filter(|_| delivering(ctx, asked).is_none()) else { return Ok(()) };
        let Some(view) = ctx.core.batch_by_key(*key) else { return Ok(()) };
        let (min, have, expected) = match &asked.what {
            Request::Collect { min_num, .. } => {
                (*min_num, view.results, view.open_tasks + view.results)
            }
            Request::Finalize { .. } => {
                let finished = view.tasks.total() - view.tasks.cancelled;
                let batch = ctx.model.batches.get(key);
                let min = batch.and_then(|batch| batch.min_wait_num);
                (min, finished, view.tasks.total() + view.open_tasks)
            }
            _ => return Ok(()),
        };
        require!(view.open_tasks > 0, "{request} still waits, and {key} is complete");
        if min.is_none_or(|min| have < u64::from(min).min(expected)) {
            self.enough_since.remove(&request);
            return Ok(());
        }
        let since = *self.enough_since.entry(request).or_insert(ctx.now);
        let until = since.after(ctx.model.config.over_rollout.wait_after_min);
        if matches!(asked.what, Request::Finalize { .. }) && too_few_good(ctx, *key) {
            // Open tasks may add successful ones.
            return Ok(());
        }
        let next = ctx.core.next_deadline().map_or(Time::MAX, |deadline| deadline.at);
        require!(next <= until, "{request} has had enough since {since}, and waits until {next}");
        Ok(())
    }
}

/// A cancel of a run is confirmed if the run was in execution, and denied if it had ended.
fn cancelled_or_not(
    ctx: &CheckContext<'_>,
    request: RequestId,
    run: Option<&ModelRun>,
) -> CheckVerdict {
    let confirmed = ctx.actions.iter().find_map(|action| match action {
        Action::Respond { request: to, answer: Response::RunCancelled(confirmed) }
            if *to == request =>
        {
            Some(*confirmed)
        }
        _ => None,
    });
    let attempt = run.and_then(|run| ctx.model.attempts.get(&run.last?));
    let current = attempt.is_some_and(|attempt| attempt.state == AttemptState::Current);
    let right = match run.map(|run| run.state) {
        None | Some(RunState::Succeeded { .. } | RunState::Failed(_) | RunState::Cancelled) => {
            confirmed != Some(true)
        }
        Some(RunState::Given) if current => confirmed != Some(false),
        Some(RunState::Given | RunState::Fresh | RunState::Back) => true,
    };
    require!(right, "{request} cancels a run, which is {run:?}: {confirmed:?}");
    Ok(())
}

/// Returns whether an attempt or a delivery to the sink is open.
fn under_way(ctx: &CheckContext<'_>) -> bool {
    let mut slots = ctx.model.slots.values();
    let mut leases = ctx.model.leases.values();
    slots.any(|slot| matches!(slot.phase, Phase::Given(_)))
        || leases.any(|lease| lease.open && lease.to_sink)
}

fn refused(ctx: &CheckContext<'_>, request: RequestId) -> bool {
    ctx.actions.iter().any(|action| match action {
        Action::Respond { request: to, answer: Response::Refused(_) } => *to == request,
        _ => false,
    })
}

/// Returns the start of an open delivery of the request's batch to the sink.
fn delivering(ctx: &CheckContext<'_>, asked: &ModelRequest) -> Option<Time> {
    let key = ctx.model.latest.get(asked.batch()?)?;
    let mut leases = ctx.model.leases.values();
    let lease = leases.find(|lease| lease.open && lease.to_sink && lease.batch == *key)?;
    Some(lease.since)
}

fn fits(what: &Request, answer: &Response) -> bool {
    if let Response::Refused(refusal) = answer {
        return may_be_refused(what, refusal);
    }
    match what {
        Request::Schedule { .. } => matches!(answer, Response::Scheduled { .. }),
        Request::Collect { .. } | Request::Drain { .. } => matches!(answer, Response::Collected(_)),
        Request::Discard { .. } => matches!(answer, Response::Discarded),
        Request::Submit { .. } => matches!(answer, Response::Submitted { .. }),
        Request::Finalize { .. } => matches!(answer, Response::Finalized(_)),
        Request::Abort { .. } => matches!(answer, Response::Aborted(_)),
        Request::CancelRun { .. } => matches!(answer, Response::RunCancelled(_)),
        Request::WaitAll { .. } => matches!(answer, Response::AllEnded),
        Request::Start => matches!(answer, Response::Started { .. }),
        Request::Stop { .. } => matches!(answer, Response::Stopped(_)),
    }
}

fn may_be_refused(what: &Request, refusal: &Refusal) -> bool {
    let finalizes = matches!(what, Request::Finalize { .. });
    let adds = matches!(what, Request::Submit { .. } | Request::Schedule { .. });
    match refusal {
        Refusal::Limit { .. } | Refusal::Stopped => true,
        Refusal::AlreadyActive { .. } | Refusal::NoRuns { .. } => adds,
        Refusal::WrongBatchType { .. } => finalizes || adds,
        Refusal::NotRegistered { .. }
        | Refusal::TimedOut { .. }
        | Refusal::TasksCancelled { .. }
        | Refusal::Aborted { .. }
        | Refusal::TooFewSucceeded { .. } => finalizes,
        Refusal::BatchFailed { .. } => finalizes || adds,
        Refusal::SinkFailed { .. } => finalizes || matches!(what, Request::Abort { .. }),
        Refusal::NotCollectable { .. } => matches!(
            what,
            Request::Collect { .. } | Request::Drain { .. } | Request::Discard { .. }
        ),
        Refusal::NotStarted => matches!(what, Request::Submit { .. }),
        Refusal::WaitAllTimedOut { .. } => matches!(what, Request::WaitAll { .. }),
    }
}
