//! TLS between worker and engine: the certificate that an address names, and nothing else.

use rollway_base::Address;
use rollway_base::tls::{CertificateSource, TlsMode, TlsOptions};
use rollway_net::counter_rows;
use rollway_protocol::worker_client::{self, WorkerClientOptions, WorkerConnectError};
use rollway_protocol::worker_server::{WorkerServer, WorkerServerLimits, WorkerServerOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::common::{hello, loopback, secret, soon};
use crate::handshake::every_message_arrives;

/// A listener with a self-signed certificate, kept in the folder.
async fn listen(folder: &tempfile::TempDir) -> WorkerServer {
    let source = CertificateSource::Folder(folder.path().join("tls"));
    let tls = TlsOptions { mode: TlsMode::Required, source, hosts: Vec::new() };
    let options = WorkerServerOptions::new(Address::loopback(), secret());
    WorkerServer::bind(WorkerServerOptions { tls, ..options }).await.unwrap()
}

fn tls_address(server: &WorkerServer) -> (String, Address) {
    let address = server.address().clone();
    assert!(matches!(address, Address::Tls { .. }), "{address}");
    (address.host_port().unwrap().to_owned(), address)
}

async fn refused(address: &Address) -> String {
    let options = WorkerClientOptions::default();
    let secret = secret();
    let connecting = worker_client::connect(address, &secret, hello(1), options);
    let error = Box::pin(soon("a refusal", connecting)).await.unwrap_err();
    let is_final = matches!(error, WorkerConnectError::Untrusted { .. });
    assert_eq!(error.is_final(), is_final, "{error}");
    error.to_string()
}

fn closed(reason: &str) -> u64 {
    let rows = counter_rows();
    let row = rows.iter().find(|row| row.listener == "workers").unwrap();
    row.closed.iter().find(|(name, _)| *name == reason).unwrap().1
}

/// Waits until a connection was closed for a reason more often than before.
async fn until_counted(reason: &str, before: u64) {
    soon(reason, async {
        while closed(reason) <= before {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn every_message_arrives_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    every_message_arrives(listen(&folder).await).await;
    // The certificate is kept.
    let kept = (listen(&folder).await, listen(&folder).await);
    assert_eq!(kept.0.address().fingerprint(), kept.1.address().fingerprint());
}

#[tokio::test]
async fn a_worker_without_tls_is_told_so_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let server = listen(&folder).await;
    let (host_port, _) = tls_address(&server);
    let before = closed("clear_text");
    let error = Box::pin(refused(&Address::Tcp(host_port.clone()))).await;
    assert!(error.contains("this port speaks TLS"), "{error}");
    until_counted("clear_text", before).await;

    // The same for HTTP/1.1.
    let before = closed("clear_text");
    let mut stream = TcpStream::connect(host_port).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    soon("an answer", stream.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("speaks TLS"), "{answer}");
    until_counted("clear_text", before).await;
}

#[tokio::test]
async fn another_certificate_is_refused_with_both_fingerprints() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (server, expected) = (listen(&folder).await, listen(&other).await);
    let (host_port, _) = tls_address(&server);
    let (found, expected) = (server.address().fingerprint(), expected.address().fingerprint());
    let (found, fingerprint) = (found.unwrap(), expected.unwrap());
    let before = closed("tls_handshake");
    let error = Box::pin(refused(&Address::Tls { host_port, fingerprint })).await;
    for part in [&found.to_string(), &fingerprint.to_string(), "running job"] {
        assert!(error.contains(part), "{error}");
    }
    until_counted("tls_handshake", before).await;
}

#[tokio::test]
async fn clear_text_is_never_tried_instead() {
    let folder = tempfile::tempdir().unwrap();
    let fingerprint = listen(&folder).await.address().fingerprint().unwrap();
    let mut server = loopback(WorkerServerLimits::default()).await;
    let host_port = server.address().host_port().unwrap().to_owned();
    let error = Box::pin(refused(&Address::Tls { host_port, fingerprint })).await;
    assert!(error.contains("does not speak TLS"), "{error}");
    assert_eq!(server.try_recv_many(&mut Vec::new(), 1), 0);
}
