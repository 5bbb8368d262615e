//! Which call is which: what a client asks again is the call that it has asked before.
//!
//! A client may also ask the same several times at once, to get several samples. What it asks again
//! and what it asks anew can have the same words; [`CallLog::begin`] says how they are told apart.

use std::collections::{HashMap, VecDeque};
use std::mem;

use rollway_model_api::replay::SavedResponse;

use super::turn_table::TurnContent;
use super::{RecordError, RetryHeaders};

/// What identifies the words of a call.
pub(super) type Fingerprint = [u8; 32];

/// What a call takes in the books.
pub(super) const CALL_BYTES: usize = 256;

/// What calls of the same words take in the books.
const ALIKE_BYTES: usize = size_of::<(Fingerprint, DuplicateGroup)>();

/// The calls of a run.
#[derive(Debug, Default)]
pub(super) struct CallLog {
    next: u64,
    calls: HashMap<u64, LoggedCall>,
    keys: HashMap<String, u64>,
    alike: HashMap<Fingerprint, DuplicateGroup>,
    kept: HashMap<u64, SavedResponse>,
    /// The numbers of the answers that are kept, the oldest first.
    order: VecDeque<u64>,
    bytes: usize,
}

/// Calls with the same words and without an idempotency key.
#[derive(Debug, Default)]
struct DuplicateGroup {
    /// Those that are known, in order.
    numbers: Vec<u64>,
    /// Those that were not answered, and whose retries have not come.
    unanswered: u32,
    /// Retries of which it is not known yet which call they replace.
    claims: VecDeque<u64>,
}

/// A call that is known.
#[derive(Debug)]
struct LoggedCall {
    fingerprint: Fingerprint,
    key: Option<String>,
    said: TurnContent,
    state: CallState,
    /// How often its answer is on its way to a client.
    on_way: u32,
    /// Calls that do not count once this one is recorded.
    replaces: Vec<u64>,
    /// The call that takes the place of this one.
    replaced_by: Option<u64>,
    /// The numbers of its turns.
    turns: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallState {
    UnderWay,
    Aborted,
    /// Answered; nobody knows yet whether the client got it.
    OnItsWay,
    Delivered,
    /// Answered, but the client left before it had everything.
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

/// What a call turned out to be.
#[derive(Debug)]
pub(super) enum CallMatch {
    New(u64),
    Again(u64, SavedResponse),
}

impl CallLog {
    /// Finds out what a call is.
    ///
    /// With an idempotency key it is the call with that key, or new. If that one is under way it
    /// is to be waited for, unless the client says that it is a retry: then it has given up the
    /// first, and the call replaces it. Without a key it is compared with the calls of the same
    /// words. The first of these that there is decides:
    ///
    /// 1. One that was answered but not delivered: the answer is given again.
    /// 2. One that was aborted: the call is new and replaces it.
    ///
    /// and, if the client says that it is a retry,
    ///
    /// 3. One that was not answered, or whose place another call has taken by rule 1 or 2: the call
    ///    is new.
    /// 4. One that has not ended. The client has given it up, which is merely not known here yet.
    ///    If there is no other call of the same words, the call is new and replaces it, and what it
    ///    still answers does not count. If there are others, it could be any of them: the call is
    ///    new and replaces the first that turns out to have ended badly.
    /// 5. One that was delivered: the answer is given again, since the client says that it did not
    ///    get it.
    ///
    /// Anything else is a new call: asking the same twice gives two samples. Of several calls the
    /// latest counts. An answer that is no longer kept cannot be given again: then the call is new,
    /// and replaces it.
    pub(super) fn begin(
        &mut self,
        fingerprint: Fingerprint,
        attempted: &RetryHeaders,
        said: TurnContent,
    ) -> Result<CallMatch, RecordError> {
        let mut claims = false;
        let earlier = match &attempted.idempotency_key {
            Some(key) => match self.keys.get(key).copied() {
                Some(number) => match self.calls.get(&number) {
                    Some(known) if known.fingerprint != fingerprint => {
                        return Err(RecordError::KeyReused(key.clone()));
                    }
                    Some(known) if known.state == CallState::UnderWay && !attempted.is_retry => {
                        return Err(RecordError::UnderWay);
                    }
                    Some(_) | None => Some(number),
                },
                None => None,
            },
            None => {
                let found = self.earlier(fingerprint, attempted.is_retry);
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
        let key = attempted.idempotency_key.clone();
        match &key {
            Some(key) => {
                self.keys.insert(key.clone(), number);
            }
            None => {
                let alike = self.alike.entry(fingerprint).or_insert_with(|| {
                    self.bytes += ALIKE_BYTES;
                    DuplicateGroup::default()
                });
                alike.numbers.push(number);
                alike.claims.extend(claims.then_some(number));
            }
        }
        self.bytes += CALL_BYTES + 2 * key.as_ref().map_or(0, String::len);
        let known = LoggedCall {
            fingerprint,
            key,
            said,
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

    /// Says which call takes the place of one; it also waits for what that one has waited for.
    fn give_place(&mut self, number: u64, newer: Option<u64>) {
        let Some(known) = self.calls.get_mut(&number) else { return };
        let before = mem::replace(&mut known.replaced_by, newer);
        let (from, to) = match (before, newer) {
            (_, Some(newer)) => (number, newer),
            (Some(newer), None) => (newer, number),
            (None, None) => return,
        };
        if let Some(alike) = self.alike.get_mut(&known.fingerprint) {
            alike.claims.iter_mut().filter(|claim| **claim == from).for_each(|claim| *claim = to);
        }
    }

    /// Finds the call that is asked again, among those of the same words.
    fn earlier(&mut self, fingerprint: Fingerprint, is_retry: bool) -> Earlier {
        let Some(alike) = self.alike.get_mut(&fingerprint) else { return Earlier::default() };
        let states: Vec<(u64, CallState)> = alike
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
            // If it was not the same client after all, the retry of that one is still to come.
            alike.unanswered += u32::from(lost.is_some() && !is_retry);
            return Earlier { number: lost, claims: false };
        }
        if alike.unanswered > 0 {
            alike.unanswered -= 1;
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

    /// Returns what a call that is under way has said; none if there is no such call.
    pub(super) fn turn_content(&self, number: u64) -> Option<TurnContent> {
        let known = self.calls.get(&number)?;
        (known.state == CallState::UnderWay).then_some(known.said)
    }

    /// Whether a newer call has taken the place of one.
    pub(super) fn is_replaced(&self, number: u64) -> bool {
        self.calls.get(&number).is_some_and(|known| known.replaced_by.is_some())
    }

    /// A call is recorded. Returns the turns of each call that no longer counts.
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
        let mut gone = self.clear(number);
        if is_aborted {
            gone.append(&mut self.settle(number));
        }
        gone
    }

    /// Forgets what a recorded call replaces, except what is under way. Returns the turns of each.
    fn clear(&mut self, number: u64) -> Vec<Vec<usize>> {
        let Some(known) = self.calls.get_mut(&number) else { return Vec::new() };
        if known.state == CallState::UnderWay {
            return Vec::new();
        }
        let mut gone = Vec::new();
        let mut replaced = mem::take(&mut known.replaces);
        while let Some(older) = replaced.pop() {
            let Some(known) = self.calls.get_mut(&older) else { continue };
            replaced.append(&mut known.replaces);
            if known.state != CallState::UnderWay {
                gone.extend(self.forget(older).map(|known| known.turns));
            }
        }
        gone
    }

    /// Returns the numbers of a call's turns.
    pub(super) fn turns(&self, number: u64) -> &[usize] {
        self.calls.get(&number).map_or(&[], |known| &known.turns)
    }

    /// Keeps an answer for a client that asks again.
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

    /// Drops the oldest answer that is kept. Returns whether there was one.
    pub(super) fn drop_oldest(&mut self) -> bool {
        while let Some(number) = self.order.pop_front() {
            if let Some(kept) = self.kept.remove(&number) {
                self.bytes -= kept_bytes(&kept);
                return true;
            }
        }
        false
    }

    /// How many answers are kept.
    pub(super) fn kept(&self) -> usize {
        self.kept.len()
    }

    /// The client has got the answer, or has left before. Returns the turns of each call that no
    /// longer counts because of that.
    pub(super) fn went(&mut self, number: u64, is_delivered: bool) -> Vec<Vec<usize>> {
        let Some(known) = self.calls.get_mut(&number) else { return Vec::new() };
        if !known.state.is_complete() {
            return Vec::new();
        }
        // It may be on its way several times: once is enough.
        known.on_way = known.on_way.saturating_sub(1);
        if is_delivered {
            known.state = CallState::Delivered;
        } else if known.state != CallState::Delivered && known.on_way == 0 {
            known.state = CallState::Undelivered;
        }
        self.settle(number)
    }

    /// There is no answer to a call, or none that counts. Returns the turns of each call that no
    /// longer counts because of that.
    pub(super) fn unanswered(&mut self, number: u64) -> Vec<Vec<usize>> {
        let Some(known) = self.forget(number) else { return Vec::new() };
        let gone = match known.replaced_by {
            Some(newer) => self.hand_over(known.replaces, newer),
            None => self.resume(number, &known),
        };
        self.settle_claims(known.fingerprint);
        gone
    }

    /// What a call was to replace falls to another one.
    fn hand_over(&mut self, replaces: Vec<u64>, to: u64) -> Vec<Vec<usize>> {
        for &older in &replaces {
            self.give_place(older, Some(to));
        }
        if let Some(newer) = self.calls.get_mut(&to) {
            newer.replaces.extend(replaces);
        }
        self.clear(to)
    }

    /// A call is gone that nothing replaces. A retry that comes is one of what it was a retry of:
    /// of several the best, which stands for all; or of itself.
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
            && let Some(alike) = self.alike.get_mut(&known.fingerprint)
            && !alike.claims.contains(&number)
        {
            alike.unanswered = alike.unanswered.saturating_add(1);
        }
        Vec::new()
    }

    /// A call has ended. If it ended badly and a retry waits for that, it no longer counts.
    fn settle(&mut self, number: u64) -> Vec<Vec<usize>> {
        let Some(known) = self.calls.get(&number) else { return Vec::new() };
        let fingerprint = known.fingerprint;
        let mut gone = Vec::new();
        if known.key.is_none()
            && known.replaced_by.is_none()
            && matches!(known.state, CallState::Aborted | CallState::Undelivered)
            && let Some(alike) = self.alike.get_mut(&fingerprint)
            && let Some(position) = alike.claims.iter().position(|&claim| claim > number)
            && let Some(newer) = alike.claims.remove(position)
        {
            gone = self.hand_over(vec![number], newer);
        }
        self.settle_claims(fingerprint);
        gone
    }

    /// Drops claims for which no call is left.
    fn settle_claims(&mut self, fingerprint: Fingerprint) {
        let Some(alike) = self.alike.get_mut(&fingerprint) else { return };
        let calls = &self.calls;
        let first = alike
            .numbers
            .iter()
            .find(|number| calls.get(number).is_some_and(|known| !known.state.is_settled()));
        let first = first.copied();
        alike.claims.retain(|&claim| {
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
        } else if let Some(alike) = self.alike.get_mut(&known.fingerprint) {
            alike.numbers.retain(|&alike| alike != number);
        }
        Some(known)
    }

    /// How many bytes are taken.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// What was found among the calls of the same words.
#[derive(Debug, Default)]
struct Earlier {
    number: Option<u64>,
    claims: bool,
}

fn kept_bytes(kept: &SavedResponse) -> usize {
    kept.parts.iter().map(|part| part.len() + size_of_val(part)).sum()
}
