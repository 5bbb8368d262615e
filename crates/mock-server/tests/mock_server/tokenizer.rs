//! Properties of the tokenizer and of generated tokens.

use proptest::prelude::*;
use rollway_mock_server::{CompletionLengths, END, Script, Tokenizer};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_text_is_tokenized_and_decoded_back(text in ".*", words in 1_u32..600_000) {
        let tokenizer = Tokenizer::new(words);
        let tokens = tokenizer.encode(&text);
        prop_assert!(tokens.iter().all(|id| tokenizer.is_valid_token(*id)));
        prop_assert_eq!(&tokenizer.decode(&tokens), &text);
        prop_assert_eq!(tokenizer.decode(&tokenizer.encode_bytes(&text)), text);
    }

    #[test]
    fn completions_are_valid_text_in_their_only_tokenization(
        seed: u64,
        prompt in prop::collection::vec(0_i32..4000, 1..20),
        choice in 0_u32..4,
        limit in 1_u32..80,
        changes in prop::collection::vec(0_u64..5, 1..8),
        words in 1_u32..10_000,
    ) {
        let tokenizer = Tokenizer::new(words);
        let lengths = CompletionLengths::Geometric { mean: 30.0, max: 100 };
        let script = Script::new(tokenizer, lengths, seed, &prompt, None, choice).limited(limit);
        prop_assert!((1..=limit).contains(&script.content()));
        let version = |at: u32| changes[at as usize % changes.len()];
        let sampled: Vec<(i32, f32)> =
            (0..script.content()).map(|at| script.token(version(at), at)).collect();
        let tokens: Vec<i32> = sampled.iter().map(|(id, _)| *id).collect();
        let bytes = tokens.iter().flat_map(|id| tokenizer.bytes(*id).into_owned());
        let bytes: Vec<u8> = bytes.collect();
        let text = String::from_utf8(bytes).unwrap();
        prop_assert_eq!(tokenizer.encode(&text), tokens);
        prop_assert!(sampled.iter().all(|(_, logprob)| *logprob < 0.0));
        prop_assert_eq!(script.token(0, script.content()).0, END);
    }

    #[test]
    fn lengths_are_within_their_bounds(seed: u64, low in 1_u32..50, more in 0_u32..50) {
        let length = |lengths| {
            Script::new(Tokenizer::new(10), lengths, seed, &[1], None, 0).content()
        };
        prop_assert_eq!(length(CompletionLengths::Fixed(low)), low);
        let uniform = CompletionLengths::Uniform(low, low + more);
        prop_assert!((low..=low + more).contains(&length(uniform)));
        let max = low + more;
        let geometric = CompletionLengths::Geometric { mean: low.into(), max };
        prop_assert!((1..=max).contains(&length(geometric)));
    }
}

#[test]
fn geometric_lengths_have_their_mean() {
    let lengths = CompletionLengths::Geometric { mean: 50.0, max: 100_000 };
    let length = |seed| Script::new(Tokenizer::new(10), lengths, seed, &[1], None, 0).content();
    let mean = (0..4000).map(|seed| f64::from(length(seed))).sum::<f64>() / 4000.0;
    assert!((45.0..55.0).contains(&mean), "{mean}");
}

#[test]
fn every_input_changes_the_tokens() {
    let tokenizer = Tokenizer::new(4096);
    let lengths = CompletionLengths::Fixed(40);
    let generate = |seed, version, prompt: &[i32], request_seed, choice| -> Vec<(i32, f32)> {
        let script = Script::new(tokenizer, lengths, seed, prompt, request_seed, choice);
        (0..40).map(|at| script.token(version, at)).collect()
    };
    let base = generate(0, 0, &[1, 2], None, 0);
    assert_eq!(base, generate(0, 0, &[1, 2], None, 0));
    for other in [
        generate(1, 0, &[1, 2], None, 0),
        generate(0, 1, &[1, 2], None, 0),
        generate(0, 0, &[1, 3], None, 0),
        generate(0, 0, &[1, 2, 2], None, 0),
        generate(0, 0, &[1, 2], Some(0), 0),
        generate(0, 0, &[1, 2], None, 1),
    ] {
        let same = base.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(same < 4, "{same} of 40 tokens are the same");
    }
}
