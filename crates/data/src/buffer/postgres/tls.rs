//! Encryption of connections: the parameters `sslmode` and `sslrootcert` of an address.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use percent_encoding::percent_decode_str;
use rollway_base::net::is_loopback;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client;

/// Value of `sslrootcert` for the roots of the system.
const SYSTEM: &str = "system";

/// `sslmode` of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PostgresSslMode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

/// Parameters of an address that `tokio_postgres` does not read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SslParameters {
    mode: Option<PostgresSslMode>,
    roots: Option<String>,
}

impl SslParameters {
    /// Splits the parameters off an address.
    pub(super) fn split(address: &str) -> Result<(String, Self), String> {
        let mut found = Self { mode: None, roots: None };
        let Some((place, parameters)) = address.split_once('?') else {
            return Ok((address.to_owned(), found));
        };
        let mut others = Vec::new();
        for parameter in parameters.split('&') {
            match parameter.split_once('=') {
                Some(("sslmode", mode)) => found.mode = Some(PostgresSslMode::parse(mode)?),
                Some(("sslrootcert", path)) => {
                    let path = percent_decode_str(path).decode_utf8();
                    let path = path.map_err(|error| format!("`sslrootcert`: {error}"))?;
                    found.roots = Some(path.into_owned());
                }
                _ => others.push(parameter),
            }
        }
        let rest = others.join("&");
        let separator = if rest.is_empty() { "" } else { "?" };
        Ok((format!("{place}{separator}{rest}"), found))
    }

    /// Sets the mode of the connections, and returns their TLS. Without `sslmode` connections to
    /// this machine are clear text, and those to others are encrypted.
    pub(super) fn apply(&self, config: &mut Config) -> Result<PostgresTls, String> {
        let is_remote = |host: &Host| match host {
            Host::Tcp(name) => !is_loopback(name),
            Host::Unix(_) => false,
        };
        let is_unix = |host: &Host| matches!(host, Host::Unix(_));
        let is_other_machine = config.get_hosts().iter().any(is_remote);
        let mode = match (self.mode, &self.roots) {
            _ if !config.get_hosts().is_empty() && config.get_hosts().iter().all(is_unix) => {
                PostgresSslMode::Disable
            }
            (Some(mode), _) => mode,
            (None, Some(_)) => PostgresSslMode::VerifyFull,
            (None, None) if is_other_machine => PostgresSslMode::Require,
            (None, None) => PostgresSslMode::Disable,
        };
        config.ssl_mode(match mode {
            PostgresSslMode::Disable => SslMode::Disable,
            PostgresSslMode::Prefer => SslMode::Prefer,
            PostgresSslMode::Require | PostgresSslMode::VerifyCa | PostgresSslMode::VerifyFull => {
                SslMode::Require
            }
        });
        let check = match (mode, &self.roots) {
            (PostgresSslMode::VerifyFull, _) => CertificateCheck::Full,
            (PostgresSslMode::VerifyCa, _) | (PostgresSslMode::Require, Some(_)) => {
                CertificateCheck::Chain
            }
            _ => CertificateCheck::None,
        };
        PostgresTls::new(check, self.roots.as_deref())
    }
}

impl PostgresSslMode {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(match text {
            "disable" => Self::Disable,
            "prefer" => Self::Prefer,
            "require" => Self::Require,
            "verify-ca" => Self::VerifyCa,
            "verify-full" => Self::VerifyFull,
            _ => {
                return Err(format!(
                    "`sslmode={text}` is none of disable, prefer, require, verify-ca and \
                     verify-full"
                ));
            }
        })
    }
}

/// Parts of a certificate that are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CertificateCheck {
    None,
    /// That a root has issued it.
    Chain,
    /// Also that it is one of the host.
    Full,
}

/// TLS of the connections to one server. Cheap to clone; clones share state.
#[derive(Clone)]
pub(in crate::buffer) struct PostgresTls(TlsConnector);

impl fmt::Debug for PostgresTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PostgresTls")
    }
}

impl PostgresTls {
    fn new(check: CertificateCheck, roots: Option<&str>) -> Result<Self, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let chain = match check {
            CertificateCheck::None => None,
            CertificateCheck::Chain | CertificateCheck::Full => {
                let store = Arc::new(root_store(roots)?);
                let builder =
                    WebPkiServerVerifier::builder_with_provider(store, Arc::clone(&provider));
                Some(builder.build().map_err(|error| format!("`sslrootcert`: {error}"))?)
            }
        };
        let verifier = Arc::new(PostgresVerifier { check, chain, provider: Arc::clone(&provider) });
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }
}

/// Returns the roots of a PEM file, or those of the system.
fn root_store(path: Option<&str>) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    match path.filter(|path| *path != SYSTEM) {
        Some(path) => {
            let failed = |error: &dyn fmt::Display| format!("`sslrootcert`: {path}: {error}");
            let certificates = CertificateDer::pem_file_iter(path);
            for certificate in certificates.map_err(|error| failed(&error))? {
                let certificate = certificate.map_err(|error| failed(&error))?;
                store.add(certificate).map_err(|error| failed(&error))?;
            }
            if store.is_empty() {
                return Err(failed(&"there is no certificate in it (PEM)"));
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            store.add_parsable_certificates(found.certs);
            if store.is_empty() {
                return Err(
                    "this system has no root certificates: give them with `sslrootcert`".to_owned()
                );
            }
        }
    }
    Ok(store)
}

#[derive(Debug)]
struct PostgresVerifier {
    check: CertificateCheck,
    /// `None`: every certificate is accepted.
    chain: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PostgresVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        let verified = chain.verify_server_cert(certificate, intermediates, name, ocsp, now);
        match verified {
            // The name is checked after the chain.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.check == CertificateCheck::Chain => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Error of a TLS handshake. A repetition would have the same one.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(in crate::buffer) struct PostgresTlsError(String);

/// TLS of one connection to a host.
#[derive(Debug)]
pub(in crate::buffer) struct PostgresTlsConnect {
    tls: PostgresTls,
    host: String,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for PostgresTls {
    type Stream = PostgresTlsStream<S>;
    type TlsConnect = PostgresTlsConnect;
    type Error = PostgresTlsError;

    fn make_tls_connect(&mut self, host: &str) -> Result<PostgresTlsConnect, PostgresTlsError> {
        Ok(PostgresTlsConnect { tls: self.clone(), host: host.to_owned() })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for PostgresTlsConnect {
    type Stream = PostgresTlsStream<S>;
    type Error = PostgresTlsError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Stream, PostgresTlsError>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let Self { tls: PostgresTls(connector), host } = self;
            let name = ServerName::try_from(host);
            let name = name.map_err(|error| PostgresTlsError(error.to_string()))?;
            let connected = connector.connect(name, stream).await;
            let stream = connected.map_err(|error| PostgresTlsError(error.to_string()))?;
            Ok(PostgresTlsStream(Box::new(stream)))
        })
    }
}

/// An encrypted connection.
#[derive(Debug)]
pub(in crate::buffer) struct PostgresTlsStream<S>(Box<client::TlsStream<S>>);

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for PostgresTlsStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for PostgresTlsStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for PostgresTlsStream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the mode of the connections to an address.
    fn mode(address: &str) -> SslMode {
        let (address, parameters) = SslParameters::split(address).unwrap();
        let mut config: Config = address.parse().unwrap();
        parameters.apply(&mut config).unwrap();
        config.get_ssl_mode()
    }

    #[test]
    fn connections_to_other_machines_are_encrypted_unless_the_address_says_otherwise() {
        assert_eq!(mode("postgresql://me@db.example/runs"), SslMode::Require);
        assert_eq!(mode("postgresql://me@10.0.0.1/runs?connect_timeout=3"), SslMode::Require);
        assert_eq!(mode("postgresql://me@127.0.0.1,db.example/runs"), SslMode::Require);
        assert_eq!(mode("postgresql://me@db.example/runs?sslmode=disable"), SslMode::Disable);
        assert_eq!(mode("postgresql://me@db.example/runs?sslmode=prefer"), SslMode::Prefer);
        assert_eq!(mode("postgresql://me@localhost/runs"), SslMode::Disable);
        assert_eq!(mode("postgresql://me@localhost/runs?sslmode=require"), SslMode::Require);
        assert_eq!(
            mode("postgresql:///runs?host=/run/postgresql&sslmode=require"),
            SslMode::Disable
        );
    }

    #[test]
    fn parameters_are_split_off() {
        let (address, found) =
            SslParameters::split("postgresql://h/d?a=b&sslmode=verify-full&sslrootcert=%2Fa%20b")
                .unwrap();
        assert_eq!(address, "postgresql://h/d?a=b");
        assert_eq!(found.mode, Some(PostgresSslMode::VerifyFull));
        assert_eq!(found.roots.as_deref(), Some("/a b"));
        let error = SslParameters::split("postgresql://h/d?sslmode=allow").unwrap_err();
        assert!(error.contains("sslmode=allow") && error.contains("verify-full"), "{error}");
    }
}
