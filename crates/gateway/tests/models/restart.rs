//! Restart of unusable servers by a command.

use std::path::Path;
use std::time::Duration;

use rollway_base::ServerKind;
use rollway_gateway::models::{RestartHook, RoutingOptions, ServerState};
use rollway_mock_server::{MockServer, MockServerOptions};
use tempfile::TempDir;

use crate::fleet::{DRAIN, Fleet};
use crate::stand_in::options;

fn hooked(script: &str) -> RoutingOptions {
    let command = ["sh", "-c", script].map(str::to_owned).to_vec();
    let (after, timeout) = (Duration::from_millis(100), Duration::from_secs(60));
    let restart = Some(RestartHook { command, after, timeout });
    RoutingOptions { restart, max_wait: Duration::from_secs(60), ..options() }
}

/// A command that writes the URL, and then waits for the test to restart the server.
fn script(folder: &Path) -> String {
    let (asked, done) = (folder.join("asked"), folder.join("done"));
    format!(
        "echo $ROLLWAY_SERVER_URL > {asked}.new && mv {asked}.new {asked}
         while [ ! -e {done} ]; do sleep 0.02; done",
        asked = asked.display(),
        done = done.display()
    )
}

/// Waits for the command, restarts the server, and lets the command end.
async fn restart(fleet: &mut Fleet, folder: &Path) {
    while !folder.join("asked").exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let asked = std::fs::read_to_string(folder.join("asked")).unwrap();
    let address = asked.trim().strip_prefix("http://").unwrap().parse().unwrap();
    for server in fleet.servers.drain(..) {
        server.stop().await;
    }
    let again = MockServerOptions { address, ..fleet.mock() };
    fleet.servers.push(MockServer::start(again).unwrap());
    std::fs::write(folder.join("done"), "").unwrap();
}

#[tokio::test]
async fn a_dead_server_is_restarted_and_gets_the_latest_weights() {
    let folder = TempDir::new().unwrap();
    let mut fleet = Fleet::start(ServerKind::Vllm, 1, hooked(&script(folder.path()))).await;
    assert!(fleet.update(4, DRAIN).await.is_complete());
    fleet.servers.remove(0).stop().await;
    restart(&mut fleet, folder.path()).await;
    assert_eq!(fleet.pick().await.version(), Some(4));
    fleet.wait_for(|servers| servers[0].counts.restarts == 1).await;
}

#[tokio::test]
async fn a_server_with_broken_weights_is_restarted() {
    let folder = TempDir::new().unwrap();
    let mut fleet = Fleet::start(ServerKind::Vllm, 1, hooked(&script(folder.path()))).await;
    // The path of its first weights is unknown.
    fleet.control(0).fail_updates(1);
    assert!(!fleet.update(1, DRAIN).await.is_complete());
    assert!(matches!(fleet.view()[0].state, ServerState::Broken(_)));
    restart(&mut fleet, folder.path()).await;
    assert_eq!(fleet.pick().await.version(), Some(0));
}

#[tokio::test]
async fn a_failing_command_is_counted_and_repeated() {
    let mut fleet = Fleet::start(ServerKind::Vllm, 1, hooked("exit 3")).await;
    fleet.servers.remove(0).stop().await;
    fleet.wait_for(|servers| servers[0].counts.failed_restarts == 2).await;
    assert_eq!(fleet.view()[0].counts.restarts, 0);
}

#[tokio::test]
async fn a_usable_server_is_not_restarted() {
    let folder = TempDir::new().unwrap();
    let fleet = Fleet::start(ServerKind::Vllm, 1, hooked(&script(folder.path()))).await;
    assert!(fleet.update(1, DRAIN).await.is_complete());
    let checks = || fleet.control(0).calls().iter().filter(|call| *call == "GET /health").count();
    let enough = checks() + 20;
    while checks() < enough {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!folder.path().join("asked").exists());
}
