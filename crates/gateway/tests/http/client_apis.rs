//! Client APIs beside chats and single completions.

use rollway_base::ServerKind;
use rollway_mock_server::MockServerOptions;
use serde_json::{Value, json};

use super::help::{MODEL, Run, World, events, options, read, says};

async fn post(run: &Run, path: &str, body: &Value) -> Value {
    let (status, answer) = read(run.post(path, body).send().await.unwrap()).await;
    assert_eq!(status, 200, "{path}: {answer}");
    answer
}

#[tokio::test]
async fn several_prompts_are_several_calls() {
    let world = World::new().await;
    let (together, apart) = (world.open(1), world.open(2));
    let prompts = json!(["one", "two", "three"]);
    let body = json!({ "model": MODEL, "prompt": prompts, "n": 2, "max_tokens": 6 });
    let answer = post(&together, "/v1/completions", &body).await;
    let choices = answer["choices"].as_array().unwrap();
    let indices: Vec<_> = choices.iter().map(|choice| choice["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, [0, 1, 2, 3, 4, 5]);
    let mut tokens = 0;
    for (number, prompt) in prompts.as_array().unwrap().iter().enumerate() {
        let mut body = body.clone();
        body["prompt"] = prompt.clone();
        let single = post(&apart, "/v1/completions", &body).await;
        assert_eq!(single["choices"][1]["text"], choices[2 * number + 1]["text"]);
        tokens += single["usage"]["total_tokens"].as_u64().unwrap();
    }
    assert_eq!(answer["usage"]["total_tokens"], tokens);
    let experiences = world.experiences(&together);
    assert_eq!(experiences.len(), 6, "one for each prompt and choice");

    let mut stream = body;
    stream["stream"] = json!(true);
    let request = together.post("/v1/completions", &stream).send().await.unwrap();
    let events = events(&request.text().await.unwrap());
    assert_eq!(events.last().unwrap(), "[DONE]");
    let ends = events.iter().filter(|event| event.contains("\"finish_reason\":\"")).count();
    assert_eq!(ends, 6);
    assert_eq!(world.experiences(&together).len(), 12);
}

#[tokio::test]
async fn a_retry_of_several_prompts_is_no_second_sample() {
    let world = World::new().await;
    let run = world.open(1);
    let body = json!({ "model": MODEL, "prompt": ["one", "two"], "max_tokens": 6 });
    for _ in 0..2 {
        let request = run.post("/v1/completions", &body).header("idempotency-key", "a");
        assert_eq!(request.send().await.unwrap().status(), 200);
    }
    assert_eq!(world.control().counts().requests, 2);
    assert_eq!(world.experiences(&run).len(), 2);
}

#[tokio::test]
async fn tokens_are_generated_from_tokens() {
    for kind in [ServerKind::Vllm, ServerKind::Sglang] {
        let world = World::of(kind).await;
        let run = world.open(1);
        let sampling = json!({ "max_tokens": 5, "logprobs": 0, "temperature": 0.5 });
        let body = json!({ "token_ids": [5, 6, 7], "sampling_params": sampling });
        let answer = post(&run, "/inference/v1/generate", &body).await;
        let tokens = answer["choices"][0]["token_ids"].as_array().unwrap();
        let logprobs = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
        assert_eq!((tokens.len(), logprobs.len()), (5, 5), "{kind:?}");
        assert_eq!(logprobs[0]["token_id"], tokens[0]);
        assert_eq!(answer["prompt_token_ids"], json!([5, 6, 7]));

        let sampling = json!({ "max_new_tokens": 5, "temperature": 0.5 });
        let body =
            json!({ "input_ids": [5, 6, 7], "sampling_params": sampling, "return_logprob": true });
        let native = post(&run, "/generate", &body).await;
        assert_eq!(native["output_ids"], answer["choices"][0]["token_ids"], "{kind:?}");
        let meta = &native["meta_info"];
        assert_eq!(meta["finish_reason"]["type"], "length");
        assert_eq!(meta["output_token_logprobs"][0][1], tokens[0]);
        assert_eq!(meta["output_token_logprobs"][0][0], logprobs[0]["logprob"]);

        let experiences = world.experiences(&run);
        assert_eq!(experiences.len(), 2, "{kind:?}");
        assert_eq!(experiences[0].tokens, experiences[1].tokens);
        assert_eq!(experiences[0].info.value()["sampling"]["temperature"], 0.5);
    }
}

#[tokio::test]
async fn unknown_sampling_parameters_are_refused() {
    let world = World::new().await;
    let run = world.open(1);
    for (path, body, at) in [
        (
            "/inference/v1/generate",
            json!({ "token_ids": [5], "sampling_params": { "mirostat": 2 } }),
            "sampling_params.mirostat",
        ),
        ("/inference/v1/generate", json!({ "token_ids": [5], "stream": true }), "stream"),
        ("/generate", json!({ "input_ids": [[5], [6]] }), "input_ids"),
    ] {
        let (status, answer) = read(run.post(path, &body).send().await.unwrap()).await;
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(at)), "{answer}");
    }
}

#[tokio::test]
async fn a_response_continues_a_stored_one() {
    let server = MockServerOptions { drift: true, ..MockServerOptions::default() };
    let world = World::with(options(), vec![server]).await;
    let run = world.open(1);
    let first = json!({ "model": MODEL, "instructions": "Be brief", "input": "hello" });
    let first = post(&run, "/v1/responses", &first).await;
    let id = &first["id"];
    let body = json!({
        "model": MODEL, "instructions": "Be brief", "input": "go on", "previous_response_id": id,
    });
    let second = post(&run, "/v1/responses", &body).await;
    assert_eq!(second["previous_response_id"], *id);
    let experiences = world.experiences(&run);
    assert_eq!(experiences.len(), 1, "one conversation");
    let messages = experiences[0].messages.as_ref().unwrap().value();
    let roles: Vec<_> =
        messages.as_array().unwrap().iter().map(|it| it["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);

    let other = world.open(2);
    let (status, answer) = read(other.post("/v1/responses", &body).send().await.unwrap()).await;
    assert_eq!(status, 404, "a response of another run: {answer}");
}

#[tokio::test]
async fn tokens_are_counted_and_embeddings_passed_on_without_a_record() {
    for kind in [ServerKind::Vllm, ServerKind::Sglang] {
        let world = World::of(kind).await;
        let run = world.open(1);
        let ask = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hello" }] });
        let counted = post(&run, "/v1/messages/count_tokens", &ask).await;
        assert_eq!(world.experiences(&run).len(), 0);
        let mut message = ask;
        message["max_tokens"] = json!(4);
        let message = post(&run, "/v1/messages", &message).await;
        assert_eq!(counted["input_tokens"], message["usage"]["input_tokens"], "{kind:?}");

        let body = json!({ "model": MODEL, "input": ["ab", "abc"] });
        let vectors = post(&run, "/v1/embeddings", &body).await;
        assert_eq!(vectors["data"][1]["embedding"], json!([3.0, 97.0, 99.0]));
        assert_eq!(world.experiences(&run).len(), 1);
    }
}

#[tokio::test]
async fn embeddings_count_against_the_limits_of_calls() {
    let mut options = options();
    options.limits.calls_per_run = 1;
    let world = World::with(options, vec![MockServerOptions::default()]).await;
    let run = world.open(1);
    world.control().hold(0);
    let call = tokio::spawn(run.chat(&says("hello")).send());
    world.control().wait_for(|counts| counts.running == 1).await;
    let body = json!({ "model": MODEL, "input": "ab" });
    let (status, answer) = read(run.post("/v1/embeddings", &body).send().await.unwrap()).await;
    assert_eq!(status, 429, "{answer}");
    world.control().release();
    assert_eq!(call.await.unwrap().unwrap().status(), 200);
}

#[tokio::test]
async fn aliases_are_the_trained_model() {
    let mut options = options();
    options.model_aliases = vec!["gpt-5".to_owned(), "claude-*".to_owned()];
    let world = World::with(options, vec![MockServerOptions::default()]).await;
    let run = world.open(1);
    for (name, expected) in
        [("gpt-5", 200), ("claude-haiku-9", 200), (MODEL, 200), ("gpt-5-mini", 404)]
    {
        let mut body = says("hello");
        body["model"] = json!(name);
        assert_eq!(run.call(&body).await.0, expected, "{name}");
    }
    assert_eq!(world.experiences(&run).len(), 3);
}

#[tokio::test]
async fn texts_of_tokens_come_from_the_server() {
    for kind in [ServerKind::Vllm, ServerKind::Sglang] {
        let world = World::of(kind).await;
        let run = world.open(1);
        let body = json!({ "model": MODEL, "prompt": "one", "max_tokens": 6 });
        let answer = post(&run, "/v1/completions", &body).await;
        let experience = world.experiences(&run).remove(0);
        let tokens: Vec<i32> = experience.tokens.iter().collect();
        let texts = world.handle.token_texts(tokens.iter().copied().collect()).await.unwrap();
        let text: String = tokens.iter().map(|token| &*texts[token]).collect();
        let expected = format!("one{}", answer["choices"][0]["text"].as_str().unwrap());
        assert!(text.contains(&expected), "{kind}: {text:?} is not {expected:?}");
    }
    // A plain OpenAI server does not tell them.
    let world = World::of(ServerKind::Openai).await;
    assert!(world.handle.token_texts([1, 2].into()).await.unwrap().is_empty());
}
