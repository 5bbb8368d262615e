//! Deduplicates client retries.
//!
//! A client may also send the same call several times to get several samples; [`CallLog::begin`]
//! tells the two apart.

use std::collections::{HashMap, VecDeque};
use std::mem;

use rollway_model_api::replay::SavedResponse;

use super::turn_table::TurnContent;
use super::{RecordError, RetryHeaders};

pub(super) type Fingerprint = [u8; 32];

/// Estimated memory of a call.
pub(super) const CALL_BYTES: usize = 256;

/// Estimated memory of a group.
const ALIKE_BYTES: usize = size_of::<(Fingerprint, DuplicateGroup)>();

#[derive(Debug, Default)]
pub(super) struct CallLog {
    next: u64,
    calls: HashMap<u64, LoggedCall>,
    keys: HashMap<String, u64>,
    group_of_body: HashMap<Fingerprint, DuplicateGroup>,
    kept: HashMap<u64, SavedResponse>,
    /// Numbers of the saved responses, oldest first.
    order: VecDeque<u64>,
    bytes: usize,
}

/// Calls with the same body and without an idempotency key.
#[derive(Debug, Default)]
struct DuplicateGroup {
    numbers: Vec<u64>,
    /// Number of failed calls whose retries have not come.
    unanswered: u32,
    /// Retries of which it is not known yet which call they replace.
    claims: VecDeque<u64>,
}

#[derive(Debug)]
struct LoggedCall {
    fingerprint: Fingerprint,
    key: Option<String>,
    content: TurnContent,
    state: CallState,
    /// Number of deliveries in progress.
    on_way: u32,
    /// Calls that no longer count once this one is recorded.
    replaces: Vec<u64>,
    replaced_by: Option<u64>,
    turns: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallState {
    UnderWay,
    Aborted,
    /// Answered; delivery in progress.
    OnItsWay,
    Delivered,
    /// Answered, but the client disconnected before the end.
    Undelivered,
}

impl CallState {
    fn is_complete(self) -> bool {
        matches!(self, Self::OnItsWay | Self::Delivered | Self::Undelivered)
    }

    fn is_settled(self) -> bool {
        !matches!(self, Self::UnderWay | Self::OnItsWay)
    }
}

#[derive(Debug)]
pub(super) enum CallMatch {
    New(u64),
    Again(u64, SavedResponse),
}

impl CallLog {
    /// Matches a call with earlier ones.
    ///
    /// With an idempotency key it is the call with that key, or new. If that one is in flight, it
    /// must end first, unless the client marks a retry: then the call replaces it. Without a key it
    /// is compared with the calls of the same body; the first applicable rule decides:
    ///
    /// 1. One was answered but not delivered: its response is returned again.
    /// 2. One was aborted: the call is new and replaces it.
    ///
    /// and, if the client marks a retry,
    ///
    /// 3. One failed, or was replaced by rule 1 or 2: the call is new.
    /// 4. One is in flight: its client has given it up. If it is the only call of the body, the new
    ///    call replaces it, and its response does not count. Among several, the call replaces the
    ///    first that turns out to have failed.
    /// 5. One was delivered: its response is returned again.
    ///
    /// Anything else is a new call: two samples. Of several calls the latest counts. If a response
    /// is no longer saved, the call is new and replaces it.
    pub(super) fn begin(
        &mut self,
        fingerprint: Fingerprint,
        retry: &RetryHeaders,
        content: TurnContent,
    ) -> Result<CallMatch, RecordError> {
        let mut claims = false;
        let earlier = match &retry.idempotency_key {
            Some(key) => match self.keys.get(key).copied() {
                Some(number) => match self.calls.get(&number) {
                    Some(known) if known.fingerprint != fingerprint => {
                        return Err(RecordError::KeyReused(key.clone()));
                    }
                    Some(known) if known.state == CallState::UnderWay && !retry.is_retry => {
                        return Err(RecordError::UnderWay);
                    }
                    Some(_) | None => Some(number),
                },
                None => None,
            },
            None => {
                let found = self.earlier(fingerprint, retry.is_retry);
                claims = found.claims;
                found.number
            }
        };
        if let Some(number) = earlier
            && let Some(known) = self.calls.get_mut(&number)
            && known.state.is_complete()
            && let Some(kept) = self.kept.get(&number)
        {
            known.state = CallState::OnItsWay;
            known.on_way += 1;
            return Ok(CallMatch::Again(number, kept.clone()));
        }
        let number = self.next;
        self.next += 1;
        let key = retry.idempotency_key.clone();
        match &key {
            Some(key) => {
                self.keys.insert(key.clone(), number);
            }
            None => {
                let group_of_body = self.group_of_body.entry(fingerprint).or_insert_with(|| {
                    self.bytes += ALIKE_BYTES;
                    DuplicateGroup::default()
                });
                group_of_body.numbers.push(number);
                group_of_body.claims.extend(claims.then_some(number));
            }
        }
        self.bytes += CALL_BYTES + 2 * key.as_ref().map_or(0, String::len);
        let known = LoggedCall {
            fingerprint,
            key,
            content,
            state: CallState::UnderWay,
            on_way: 0,
            replaces: earlier.into_iter().collect(),
            replaced_by: None,
            turns: Vec::new(),
        };
        self.calls.insert(number, known);
        if let Some(earlier) = earlier {
            self.give_place(earlier, Some(number));
        }
        Ok(CallMatch::New(number))
    }

    /// Sets the call that replaces another one; claims move along.
    fn give_place(&mut self, number: u64, newer: Option<u64>) {
        let Some(known) = self.calls.get_mut(&number) else { return };
        let before = mem::replace(&mut known.replaced_by, newer);
        let (from, to) = match (before, newer) {
            (_, Some(newer)) => (number, newer),
            (Some(newer), None) => (newer, number),
            (None, None) => return,
        };
        if let Some(group_of_body) = self.group_of_body.get_mut(&known.fingerprint) {
            group_of_body
                .claims
                .iter_mut()
                .filter(|claim| **claim == from)
                .for_each(|claim| *claim = to);
        }
    }

    /// Finds the earlier call of a retry, among those of the same body.
    fn earlier(&mut self, fingerprint: Fingerprint, is_retry: bool) -> Earlier {
        let Some(group_of_body) = self.group_of_body.get_mut(&fingerprint) else {
            return Earlier::default();
        };
        let states: Vec<(u64, CallState)> = group_of_body
            .numbers
            .iter()
            .filter_map(|number| Some((*number, self.calls.get(number)?)))
            .filter(|(_, known)| known.replaced_by.is_none())
            .map(|(number, known)| (number, known.state))
            .collect();
        let latest = |wanted: CallState| {
            let mut latest = states.iter().rev();
            latest.find(|(_, state)| *state == wanted).map(|(number, _)| *number)
        };
        let lost = latest(CallState::Undelivered).or_else(|| latest(CallState::Aborted));
        if lost.is_some() || !is_retry {
            // If it came from another client, the retry of that one is still to come.
            group_of_body.unanswered += u32::from(lost.is_some() && !is_retry);
            return Earlier { number: lost, claims: false };
        }
        if group_of_body.unanswered > 0 {
            group_of_body.unanswered -= 1;
            return Earlier::default();
        }
        match states[..] {
            [] => Earlier::default(),
            [(only, _)] => Earlier { number: Some(only), claims: false },
            _ if states.iter().all(|(_, state)| *state == CallState::Delivered) => {
                Earlier { number: latest(CallState::Delivered), claims: false }
            }
            _ => Earlier { number: None, claims: true },
        }
    }

    /// Returns the content of a call in flight.
    pub(super) fn turn_content(&self, number: u64) -> Option<TurnContent> {
        let known = self.calls.get(&number)?;
        (known.state == CallState::UnderWay).then_some(known.content)
    }

    pub(super) fn is_replaced(&self, number: u64) -> bool {
        self.calls.get(&number).is_some_and(|known| known.replaced_by.is_some())
    }

    /// Marks a call as recorded. Returns the turns of each call that no longer counts.
    pub(super) fn recorded(
        &mut self,
        number: u64,
        turns: Vec<usize>,
        is_aborted: bool,
    ) -> Vec<Vec<usize>> {
        let Some(known) = self.calls.get_mut(&number) else { return Vec::new() };
        self.bytes += size_of_val(&*turns);
        known.turns = turns;
        known.state = if is_aborted { CallState::Aborted } else { CallState::OnItsWay };
        known.on_way = u32::from(!is_aborted);
        let mut dropped = self.clear(number);
        if is_aborted {
            dropped.append(&mut self.settle(number));
        }
        dropped
    }

    /// Removes the calls that a recorded call replaces, except those in flight. Returns the turns
    /// of each.
    fn clear(&mut self, number: u64) -> Vec<Vec<usize>> {
        let Some(known) = self.calls.get_mut(&number) else { return Vec::new() };
        if known.state == CallState::UnderWay {
            return Vec::new();
        }
        let mut dropped = Vec::new();
        let mut replaced = mem::take(&mut known.replaces);
        while let Some(older) = replaced.pop() {
            let Some(known) = self.calls.get_mut(&older) else { continue };
            replaced.append(&mut known.replaces);
            if known.state != CallState::UnderWay {
                dropped.extend(self.forget(older).map(|known| known.turns));
            }
        }
        dropped
    }

    pub(super) fn keep(&mut self, number: u64, kept: SavedResponse) {
        if !self.calls.contains_key(&number) {
            return;
        }
        self.bytes += kept_bytes(&kept);
        self.order.push_back(number);
        if let Some(before) = self.kept.insert(number, kept) {
            self.bytes -= kept_bytes(&before);
        }
    }

    /// Drops the oldest saved response. Returns whether there was one.
    pub(super) fn drop_oldest(&mut self) -> bool {
        while let Some(number) = self.order.pop_front() {
            if let Some(kept) = self.kept.remove(&number) {
                self.bytes -= kept_bytes(&kept);
                return true;
            }
        }
        false
    }

    pub(super) fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Ends a delivery. Returns the turns of each call that no longer counts.
    pub(super) fn went(&mut self, number: u64, is_delivered: bool) -> Vec<Vec<usize>> {
        let Some(known) = self.calls.get_mut(&number) else { return Vec::new() };
        if !known.state.is_complete() {
            return Vec::new();
        }
        // Of several deliveries one is enough.
        known.on_way = known.on_way.saturating_sub(1);
        if is_delivered {
            known.state = CallState::Delivered;
        } else if known.state != CallState::Delivered && known.on_way == 0 {
            known.state = CallState::Undelivered;
        }
        self.settle(number)
    }

    /// Removes a call without a valid response. Returns the turns of each call that no longer
    /// counts.
    pub(super) fn unanswered(&mut self, number: u64) -> Vec<Vec<usize>> {
        let Some(known) = self.forget(number) else { return Vec::new() };
        let dropped = match known.replaced_by {
            Some(newer) => self.hand_over(known.replaces, newer),
            None => self.resume(number, &known),
        };
        self.settle_claims(known.fingerprint);
        dropped
    }

    /// Moves the calls that one was to replace to another one.
    fn hand_over(&mut self, replaces: Vec<u64>, to: u64) -> Vec<Vec<usize>> {
        for &older in &replaces {
            self.give_place(older, Some(to));
        }
        if let Some(newer) = self.calls.get_mut(&to) {
            newer.replaces.extend(replaces);
        }
        self.clear(to)
    }

    /// Restores the best of the calls that a removed call was to replace; without any, expects a
    /// retry of the removed call.
    fn resume(&mut self, number: u64, known: &LoggedCall) -> Vec<Vec<usize>> {
        let worth = |number: &u64| Some((self.calls.get(number)?.state.is_complete(), *number));
        if let Some((_, best)) = known.replaces.iter().filter_map(worth).max() {
            self.give_place(best, None);
            if let Some(key) = &known.key {
                self.keys.insert(key.clone(), best);
            }
            let others = known.replaces.iter().copied().filter(|&other| other != best);
            return self.hand_over(others.collect(), best);
        }
        if known.key.is_none()
            && let Some(group_of_body) = self.group_of_body.get_mut(&known.fingerprint)
            && !group_of_body.claims.contains(&number)
        {
            group_of_body.unanswered = group_of_body.unanswered.saturating_add(1);
        }
        Vec::new()
    }

    /// Ends a call. If it failed and a retry claims it, it no longer counts.
    fn settle(&mut self, number: u64) -> Vec<Vec<usize>> {
        let Some(known) = self.calls.get(&number) else { return Vec::new() };
        let fingerprint = known.fingerprint;
        let mut dropped = Vec::new();
        if known.key.is_none()
            && known.replaced_by.is_none()
            && matches!(known.state, CallState::Aborted | CallState::Undelivered)
            && let Some(group_of_body) = self.group_of_body.get_mut(&fingerprint)
            && let Some(position) = group_of_body.claims.iter().position(|&claim| claim > number)
            && let Some(newer) = group_of_body.claims.remove(position)
        {
            dropped = self.hand_over(vec![number], newer);
        }
        self.settle_claims(fingerprint);
        dropped
    }

    /// Drops claims for which no call is left.
    fn settle_claims(&mut self, fingerprint: Fingerprint) {
        let Some(group_of_body) = self.group_of_body.get_mut(&fingerprint) else { return };
        let calls = &self.calls;
        let first = group_of_body
            .numbers
            .iter()
            .find(|number| calls.get(number).is_some_and(|known| !known.state.is_settled()));
        let first = first.copied();
        group_of_body.claims.retain(|&claim| {
            calls.contains_key(&claim) && first.is_some_and(|first| first < claim)
        });
    }

    fn forget(&mut self, number: u64) -> Option<LoggedCall> {
        let known = self.calls.remove(&number)?;
        self.bytes -= CALL_BYTES + size_of_val(&*known.turns);
        if let Some(kept) = self.kept.remove(&number) {
            self.bytes -= kept_bytes(&kept);
            self.order.retain(|&kept| kept != number);
        }
        if let Some(key) = &known.key {
            self.bytes -= 2 * key.len();
            if self.keys.get(key) == Some(&number) {
                self.keys.remove(key);
            }
        } else if let Some(group_of_body) = self.group_of_body.get_mut(&known.fingerprint) {
            group_of_body.numbers.retain(|&group_of_body| group_of_body != number);
        }
        Some(known)
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[derive(Debug, Default)]
struct Earlier {
    number: Option<u64>,
    claims: bool,
}

fn kept_bytes(kept: &SavedResponse) -> usize {
    kept.parts.iter().map(|part| part.len() + size_of_val(part)).sum()
}
