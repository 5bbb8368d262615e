//! Random conversations, compared with a naive implementation of the rules.

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Next call of an agent. Numbers name earlier turns, modulo their number.
#[derive(Clone, Debug)]
enum Move {
    Begin(Vec<i32>),
    /// All earlier tokens and new ones. Twice for the same turn it is a branch.
    Continue(usize, Vec<i32>),
    Repeat(usize),
    /// Earlier tokens with another token in the completion, and new ones.
    Drift(usize, usize, Vec<i32>),
}

#[derive(Clone, Debug)]
struct Step {
    to: Move,
    responses: Vec<Vec<i32>>,
    aborted: bool,
    version: u64,
}

/// Few different tokens, so that sequences share beginnings by chance, with lengths around a block.
fn tokens(least: usize) -> impl Strategy<Value = Vec<i32>> {
    let length = prop_oneof![4 => least..5usize, 1 => 60..70usize, 1 => 125..130usize];
    length.prop_flat_map(|length| prop::collection::vec(0..3, length))
}

fn step() -> impl Strategy<Value = Step> {
    let to = prop_oneof![
        1 => tokens(1).prop_map(Move::Begin),
        4 => (any::<usize>(), tokens(0)).prop_map(|(of, new)| Move::Continue(of, new)),
        1 => any::<usize>().prop_map(Move::Repeat),
        1 => (any::<usize>(), any::<usize>(), tokens(0))
            .prop_map(|(of, at, new)| Move::Drift(of, at, new)),
    ];
    let responses = prop_oneof![
        4 => prop::collection::vec(tokens(0), 1),
        1 => prop::collection::vec(tokens(0), 2..4),
    ];
    (to, responses, any::<bool>(), 0..4u64).prop_map(|(to, responses, aborted, version)| Step {
        to,
        responses,
        aborted,
        version,
    })
}

/// Log-probabilities are unique, so that they identify their token.
fn turns(steps: &[Step]) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::new();
    for (call, step) in steps.iter().enumerate() {
        let earlier = |of: usize| turns.get(of % turns.len().max(1));
        let (prompt, messages) = match &step.to {
            Move::Begin(prompt) => (prompt.clone(), json!([{"role": "user", "content": call}])),
            Move::Continue(of, new) => match earlier(*of) {
                Some(turn) => (completion_of(turn, new), continued_messages(turn, call)),
                None => (vec![1], json!([])),
            },
            Move::Repeat(of) => match earlier(*of) {
                Some(turn) => (turn.prompt.clone(), turn.messages.clone().unwrap()),
                None => (vec![1], json!([])),
            },
            Move::Drift(of, at, new) => match earlier(*of) {
                Some(turn) => {
                    let mut prompt = completion_of(turn, new);
                    if !turn.tokens.is_empty() {
                        prompt[turn.prompt.len() + at % turn.tokens.len()] = 7;
                    }
                    (prompt, continued_messages(turn, call))
                }
                None => (vec![1], json!([])),
            },
        };
        for (index, response) in step.responses.iter().enumerate() {
            let name = (turns.len() * 1000) as f32;
            turns.push(Turn {
                id: turn_id(&call.to_string(), index),
                model: "m".to_owned(),
                prompt: prompt.clone(),
                tokens: response.clone(),
                logprobs: (1u16..).take(response.len()).map(|at| name + f32::from(at)).collect(),
                versions: versions(step.version, response.len()),
                finish_reason: Some("stop".to_owned()),
                aborted: step.aborted,
                messages: Some(messages.clone()),
                tools: None,
                reply: json!({"role": "assistant", "content": turns.len()}),
                sampling: None,
                agent: None,
                parent: None,
            });
        }
    }
    turns
}

fn completion_of(turn: &Turn, new: &[i32]) -> Vec<i32> {
    [&turn.prompt, &turn.tokens, new].concat()
}

fn continued_messages(turn: &Turn, call: usize) -> Value {
    let mut messages = turn.messages.clone().unwrap();
    let more = [turn.reply.clone(), json!({"role": "user", "content": call})];
    messages.as_array_mut().unwrap().extend(more);
    messages
}

/// Naive implementation: every turn is compared with every earlier one.
#[derive(Debug, Default, PartialEq)]
struct NaiveMerge {
    threads: Vec<Vec<usize>>,
    counts: MergeCounts,
}

fn merge_naively(turns: &[Turn]) -> NaiveMerge {
    let mut naive = NaiveMerge::default();
    for (number, turn) in turns.iter().enumerate() {
        if turn.tokens.is_empty() {
            naive.counts.empty += 1;
            continue;
        }
        let earlier = || turns[..number].iter().filter(|turn| !turn.tokens.is_empty());
        let is_continued = |earlier: &Turn| turn.prompt.starts_with(&completion_of(earlier, &[]));
        let longest = earlier()
            .filter(|turn| is_continued(turn))
            .map(|turn| completion_of(turn, &[]))
            .max_by_key(Vec::len);
        let open = naive.threads.iter_mut().find(|thread| {
            thread.last().is_some_and(|&last| Some(completion_of(&turns[last], &[])) == longest)
        });
        if let Some(thread) = open {
            thread.push(number);
            naive.counts.continued += 1;
            continue;
        }
        let beyond = longest.as_ref().map_or(0, Vec::len);
        let entered = earlier().any(|earlier| {
            let entry = completion_of(earlier, &[])[..=earlier.prompt.len()].to_vec();
            entry.len() > beyond && turn.prompt.starts_with(&entry)
        });
        let list = |turn: &Turn| turn.messages.clone().unwrap().as_array().unwrap().clone();
        let body_number = list(turn);
        let answered = earlier().map(list).filter(|messages| {
            body_number.starts_with(messages)
                && body_number.get(messages.len()).is_some_and(|next| next["role"] == "assistant")
        });
        let drifts_in_words = answered.max_by_key(Vec::len).is_some_and(|most| {
            !earlier().any(|earlier| list(earlier) == most && is_continued(earlier))
        });
        if entered || drifts_in_words {
            naive.counts.drift += 1;
        } else if longest.is_some() {
            naive.counts.branches += 1;
        }
        naive.threads.push(vec![number]);
    }
    naive
}

fn check(experience: &Experience, turns: &[&Turn], step: usize) {
    let (first, last) = (turns[0], turns[turns.len() - 1]);
    experience.check().unwrap();
    experience.check_lengths().unwrap();
    assert_eq!(experience.tokens.to_vec(), completion_of(last, &[]));
    assert_eq!(experience.prompt_length, first.prompt.len());
    assert_eq!(experience.eid.step, step as u64);
    let response = experience.response_length();
    let (mut mask, mut logprobs) = (vec![false; response], vec![0.0; response]);
    let mut versions = vec![None; response];
    for turn in turns {
        let begin = turn.prompt.len() - first.prompt.len();
        for (index, version) in turn.versions.iter().enumerate() {
            mask[begin + index] = true;
            logprobs[begin + index] = turn.logprobs[index];
            versions[begin + index] = version;
        }
    }
    assert_eq!(experience.action_mask.as_ref().unwrap().to_vec(), mask);
    assert_eq!(experience.logprobs.as_ref().unwrap().to_vec(), logprobs);
    let found: Vec<_> = experience.model_versions.as_ref().unwrap().iter().collect();
    assert_eq!(found, versions);
    let info = experience.info.value();
    assert_eq!(info["model_version"], json!(versions.iter().flatten().min()));
    assert_eq!(info["turns"], json!(turns.len()));
    assert_eq!(info.get("aborted").is_some(), last.aborted);
    let truncated = last.aborted.then_some(TruncateStatus::ResponseTruncated);
    assert_eq!(experience.truncate_status, truncated);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_token_of_the_model_is_in_one_experience(
        steps in prop::collection::vec(step(), 1..24),
    ) {
        let turns = turns(&steps);
        let merged = merge(&turns).unwrap();
        let naive = merge_naively(&turns);
        prop_assert_eq!(merged.experiences.len(), naive.threads.len());
        let pairs = merged.experiences.iter().zip(&naive.threads);
        for (step, (experience, thread)) in pairs.enumerate() {
            let turns: Vec<&Turn> = thread.iter().map(|&turn| &turns[turn]).collect();
            check(experience, &turns, step);
        }
        let merged_turns = turns.len() - merged.counts.empty as usize;
        prop_assert_eq!(naive.threads.concat().len(), merged_turns);
        prop_assert_eq!(merged.counts, naive.counts);
        let mut suffixes: Vec<&str> =
            merged.experiences.iter().map(|experience| experience.eid.suffix.as_str()).collect();
        suffixes.sort_unstable();
        suffixes.dedup();
        prop_assert_eq!(suffixes.len(), merged.experiences.len());
    }

    #[test]
    fn a_run_makes_what_its_turns_make(
        steps in prop::collection::vec(step(), 1..16),
        since in any::<prop::sample::Index>(),
    ) {
        let turns = turns(&steps);
        let mut recorder = Recorder::new(RecorderLimits::default());
        for (at, turn) in turns.iter().enumerate() {
            let call = chat(turn.messages.clone().unwrap());
            let body_number = u8::try_from(at).unwrap();
            let number = begin(&mut recorder, body_number, &call, &RetryHeaders::default());
            let choice_of_turn = ResponseChoice {
                tokens: Some(turn.tokens.clone()),
                logprobs: Some(turn.logprobs.clone()),
                versions: turn.versions.clone(),
                finish_reason: turn.finish_reason.clone(),
                reply: turn.reply.clone(),
            };
            let mut response = response(&turn.id, &turn.prompt, vec![choice_of_turn]);
            if turn.aborted && !turn.tokens.is_empty() {
                response.end = ResponseEnd::Aborted;
            }
            recorder.answered(number, response, saved("")).unwrap();
        }
        let tools = Some(json!([{"type": "function"}]));
        let with_tools = |turn: &Turn| Turn { tools: tools.clone(), ..turn.clone() };
        let recorded: Vec<Turn> = turns.iter().map(with_tools).collect();
        let merged = merge(&recorded).unwrap();
        prop_assert_eq!(recorder.experiences(0).unwrap(), merged.experiences);
        prop_assert_eq!(recorder.counts().merged, merged.counts);
        let since = since.index(recorded.len() + 1);
        let merged = merge(&recorded[since..]).unwrap();
        prop_assert_eq!(recorder.experiences(since as u64).unwrap(), merged.experiences);
    }
}
