//! Many requests at once.

use futures_util::future::join_all;
use rollway_base::ServerKind;
use rollway_mock_server::{CompletionLengths, MockServerOptions};
use serde_json::json;

use crate::client::{Client, Events, chat, ids, with};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn no_more_requests_run_than_there_are_slots() {
    let client = Client::start(MockServerOptions {
        max_running: 3,
        ..MockServerOptions::new(ServerKind::Vllm)
    });
    let control = client.server.control();
    control.hold(1);
    let texts: Vec<String> = (0..10).map(|number| number.to_string()).collect();
    let responses = join_all(texts.iter().map(|text| client.good(CHAT, chat(text))));
    let (responses, ()) = tokio::join!(responses, async {
        let counts = control.wait_for(|counts| counts.frozen == 3 && counts.waiting == 7).await;
        assert_eq!(counts.running, 3);
        control.release();
    });
    assert_eq!(responses.len(), 10);
    assert_eq!(control.counts().completed, 10);
}

#[tokio::test]
async fn hundreds_of_held_streams_all_end_with_the_new_weights() {
    const STREAMS: usize = 256;
    let lengths = CompletionLengths::Geometric { mean: 40.0, max: 200 };
    let client =
        Client::start(MockServerOptions { lengths, ..MockServerOptions::new(ServerKind::Vllm) });
    let control = client.server.control();
    control.hold(1);
    let streams = join_all((0..STREAMS).map(|number| {
        let fields = json!({ "return_token_ids": true, "request_id": number.to_string(),
            "min_tokens": 2 });
        Events::open(&client, CHAT, with(chat(&format!("stream {number}")), fields))
    }));
    let streams = streams.await;
    control.wait_for(|counts| counts.frozen == STREAMS as u64).await;
    control.set_version(5, "5");
    control.release();
    let tokens_of_streams = join_all(streams.into_iter().map(|mut stream| async move {
        let mut tokens = Vec::new();
        while let Some(event) = stream.next().await {
            if let Some(choice) = event["choices"].get(0)
                && choice["token_ids"].is_array()
            {
                tokens.extend(ids(&choice["token_ids"]));
            }
        }
        assert!(stream.is_done);
        tokens
    }));
    for (number, tokens) in tokens_of_streams.await.into_iter().enumerate() {
        let record = control.record(&format!("chatcmpl-{number}")).unwrap();
        let made = &record.choices[0].tokens;
        assert_eq!(tokens, made.iter().map(|token| token.id).collect::<Vec<_>>());
        assert_eq!(made[0].version, 0);
        assert!(made.len() > 1 && made[1..].iter().all(|token| token.version == 5));
    }
}

#[tokio::test]
async fn failures_have_the_configured_rate_and_are_reproducible() {
    let mut failed = Vec::new();
    for _ in 0..2 {
        let options = MockServerOptions {
            fail_rate: 0.3,
            seed: 7,
            ..MockServerOptions::new(ServerKind::Vllm)
        };
        let client = Client::start(options);
        let mut statuses = Vec::new();
        for number in 0..60 {
            statuses.push(client.post(CHAT, chat(&number.to_string())).await.0);
        }
        let bad = statuses.iter().filter(|status| **status == 500).count();
        assert!((8..30).contains(&bad), "{bad} of 60");
        failed.push(statuses);
    }
    assert_eq!(failed[0], failed[1]);
}
