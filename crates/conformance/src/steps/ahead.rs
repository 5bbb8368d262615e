//! What is tried with a worker that takes attempts ahead.

use rollway_core::{AttemptId, BatchKind, Cancel};

use super::{Tried, Trouble, give_up, renew, succeed, succeeded, wait};
use crate::session::Session;
use crate::{SUCCEED, WAIT};

/// No worker has to take them.
fn applies(session: &Session) -> Tried {
    match session.takes_ahead {
        true => Ok(()),
        false => Err(Trouble::Skipped("it takes no attempts ahead".to_owned())),
    }
}

fn give(session: &mut Session, workflow: &str) -> Result<AttemptId, String> {
    session.start(0, workflow, BatchKind::Train)
}

/// Waits for the end of attempts whose runs have to succeed.
async fn both(session: &mut Session, attempts: [AttemptId; 2]) -> Result<(), String> {
    let ended = "both attempts ended";
    session.until(ended, |watch| attempts.iter().all(|attempt| watch.ended(*attempt))).await?;
    attempts.iter().try_for_each(|attempt| succeeded(session, *attempt))
}

/// Checks that the runner is at an attempt, and that the heartbeats say so.
async fn is_at(session: &mut Session, attempt: AttemptId) -> Result<(), String> {
    session.watch.beats.clear();
    // What the first one says may be older than what came before it.
    session.until("two heartbeats came", |watch| watch.beats.len() >= 2).await?;
    let (runner, life) = session.runners[0];
    let mut states = session.watch.beats[1].states.iter();
    let state = states.find(|state| (state.runner, state.life) == (runner, life));
    let said = state.and_then(|state| state.attempt);
    if session.watch.ended(attempt) {
        return Err(format!("attempt {attempt}, which goes on for ever, ended"));
    }
    if said != Some(attempt) {
        return Err(format!("{runner} is said to execute {said:?}, not attempt {attempt}"));
    }
    Ok(())
}

pub(super) async fn order(session: &mut Session) -> Tried {
    applies(session)?;
    let first = wait(session, 0).await?;
    let second = give(session, SUCCEED)?;
    is_at(session, first).await?;
    give_up(session, 0, first).await?;
    session.until("what waited ended", |watch| watch.ended(second)).await?;
    succeeded(session, second)?;
    // And when the second may come before or after the end of the first.
    let attempts = [give(session, SUCCEED)?, give(session, SUCCEED)?];
    Ok(both(session, attempts).await?)
}

pub(super) async fn recall(session: &mut Session) -> Tried {
    applies(session)?;
    let first = wait(session, 0).await?;
    let second = give(session, SUCCEED)?;
    take_back(session, second).await?;
    is_at(session, first).await?;
    // There is room for another one.
    let third = give(session, SUCCEED)?;
    give_up(session, 0, first).await?;
    session.until("what waited ended", |watch| watch.ended(third)).await?;
    succeeded(session, third)?;
    // What may have begun is cancelled like any other.
    let first = give(session, SUCCEED)?;
    let second = give(session, WAIT)?;
    take_back(session, second).await?;
    let third = give(session, SUCCEED)?;
    Ok(both(session, [first, third]).await?)
}

async fn take_back(session: &mut Session, attempt: AttemptId) -> Result<(), String> {
    session.cancel_because(0, attempt, Cancel::Recalled)?;
    session.in_grace("what waits was given back", |watch| watch.ended(attempt)).await
}

pub(super) async fn stop(session: &mut Session) -> Tried {
    applies(session)?;
    wait(session, 0).await?;
    let second = give(session, SUCCEED)?;
    renew(session, 0).await?;
    if session.watch.began(second) {
        return Err("what waited began when its runner was stopped".to_owned().into());
    }
    // Whatever of it had stayed behind would come between these.
    succeed(session, 0).await?;
    Ok(succeed(session, 0).await?)
}
