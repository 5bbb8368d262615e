//! Connections to a PostgreSQL server that speaks TLS, and to one that does not.

use std::fs;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rollway_data::buffer::sql::SqlOptions;
use rollway_data::buffer::{Buffer as _, BufferError, PostgresBuffer};
use rollway_testkit::postgres::Server;

use crate::support::{execute_postgres, lot};

/// PEM of a root, and of a certificate that it issued with its key.
struct Certificates {
    root: String,
    certificate: String,
    key: String,
}

fn certificates(host: &str) -> Certificates {
    let mut root = CertificateParams::new(Vec::new()).unwrap();
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root_key = KeyPair::generate().unwrap();
    let root_pem = root.self_signed(&root_key).unwrap().pem();
    let issuer = Issuer::new(root, root_key);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap().pem();
    Certificates { root: root_pem, certificate, key: key.serialize_pem() }
}

fn open(address: &str) -> Result<PostgresBuffer, String> {
    let opened = PostgresBuffer::open(address, SqlOptions::default());
    opened.map_err(|error: BufferError| error.to_string())
}

#[test]
fn modes_of_a_server_with_a_certificate() {
    let ours = certificates("127.0.0.1");
    let server = Server::start_tls(&ours.certificate, &ours.key);
    let folder = tempfile::tempdir().unwrap();
    let (root, other) = (folder.path().join("root.pem"), folder.path().join("other.pem"));
    fs::write(&root, &ours.root).unwrap();
    fs::write(&other, certificates("127.0.0.1").root).unwrap();
    let (root, other) = (root.display(), other.display());
    let admin = server.address("postgres");
    let with = |parameters: &str| open(&format!("{admin}?{parameters}"));

    // A database for each case, whose connections are counted.
    let mut count = 0;
    let mut check = |parameters: &str, is_encrypted: bool| {
        count += 1;
        let name = format!("case{count}");
        execute_postgres(&admin, &format!("CREATE DATABASE {name}"));
        let buffer = open(&format!("{}?{parameters}", server.address(&name))).unwrap();
        let mut writer = buffer.writer("explorer").unwrap();
        writer.write(&lot(0..1)).unwrap();
        execute_postgres(
            &admin,
            &format!(
                "DO $$ BEGIN ASSERT (SELECT bool_and(ssl = {is_encrypted}) FROM pg_stat_ssl \
                 JOIN pg_stat_activity USING (pid) WHERE datname = '{name}'), '{parameters}'; \
                 END $$"
            ),
        );
    };
    check("sslmode=disable", false);
    check("sslmode=prefer", true);
    check("sslmode=require", true);
    check(&format!("sslmode=verify-full&sslrootcert={root}"), true);
    check(&format!("sslmode=verify-ca&sslrootcert={root}"), true);

    for parameters in ["sslmode=verify-full", "sslmode=verify-ca", "sslmode=require"] {
        let error = with(&format!("{parameters}&sslrootcert={other}")).unwrap_err();
        assert!(error.contains("certificate"), "{parameters}: {error}");
        assert!(!error.contains("secret"), "{error}");
    }
    let error = with("sslmode=verify-full&sslrootcert=/no/such/file").unwrap_err();
    assert!(error.contains("sslrootcert") && error.contains("/no/such/file"), "{error}");
}

#[test]
fn a_certificate_of_another_host_is_refused_in_full_verification() {
    let theirs = certificates("elsewhere.example");
    let server = Server::start_tls(&theirs.certificate, &theirs.key);
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root.pem");
    fs::write(&root, &theirs.root).unwrap();
    let address = server.address("postgres");
    let with = |mode: &str| {
        open(&format!("{address}?sslmode={mode}&sslrootcert={}", root.display())).map(drop)
    };
    assert_eq!(with("verify-ca"), Ok(()));
    let error = with("verify-full").unwrap_err();
    assert!(error.contains("not valid for name"), "{error}");
}

#[test]
fn a_server_without_tls_is_refused_with_a_remedy() {
    let server = Server::start(&[]);
    let address = server.address("postgres");
    let error = open(&format!("{address}?sslmode=require")).unwrap_err();
    assert!(error.contains("does not support TLS") && error.contains("sslmode=disable"), "{error}");
    open(&format!("{address}?sslmode=prefer")).unwrap();
}
