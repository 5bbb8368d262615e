//! Clients that accept one certificate.

use std::io;
use std::sync::Arc;

use rollway_base::net::host_of;
use rollway_base::{Fingerprint, FingerprintError};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, OtherError, PeerIncompatible, SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::identity::fingerprint;

/// The server has another certificate than expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "its certificate has the fingerprint {found}, expected {expected}: take the address from the \
     files of the running job again; if they name the expected fingerprint, another program has \
     taken the address of the job, or the connection is intercepted"
)]
pub struct FingerprintMismatch {
    pub found: Fingerprint,
    pub expected: Fingerprint,
}

#[derive(Debug, thiserror::Error)]
pub enum TlsConnectError {
    #[error(transparent)]
    Certificate(FingerprintMismatch),
    #[error(
        "it does not speak TLS, which the address demands: take the address from the files of the \
         running job again; clear text is not tried"
    )]
    ClearText,
    #[error("TLS handshake: {0}")]
    Handshake(io::Error),
}

/// Returns the TLS settings of a client that accepts one certificate.
///
/// # Errors
/// Never with the built-in cryptography.
pub fn client_config(expected: Fingerprint) -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(PinnedCertificate { expected, provider: Arc::clone(&provider) });
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?;
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// Splits `https://HOST:PORT#FINGERPRINT` into the URL and the fingerprint. Without a fingerprint
/// the certificate is checked like that of any web server.
///
/// # Errors
/// If the part after `#` is not a fingerprint, or the URL is not one of TLS.
pub fn split_url(url: &str) -> Result<(&str, Option<Fingerprint>), TlsUrlError> {
    let Some((plain, fingerprint)) = url.split_once('#') else { return Ok((url, None)) };
    if !plain.starts_with("https://") {
        return Err(TlsUrlError::ClearText);
    }
    Ok((plain, Some(fingerprint.parse()?)))
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsUrlError {
    #[error(transparent)]
    Fingerprint(#[from] FingerprintError),
    #[error("an address with the fingerprint of a certificate begins with `https://`")]
    ClearText,
}

/// Begins TLS on a connection to a gRPC server at `HOST:PORT`.
///
/// # Errors
/// If the server has another certificate, or does not speak TLS.
pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    host_port: &str,
    expected: Fingerprint,
) -> Result<TlsStream<S>, TlsConnectError> {
    begin(stream, host_port, expected, b"h2").await
}

/// Same as [`connect`], for HTTP/1.1.
///
/// # Errors
/// If the server has another certificate, or does not speak TLS.
pub async fn connect_http1<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    host_port: &str,
    expected: Fingerprint,
) -> Result<TlsStream<S>, TlsConnectError> {
    begin(stream, host_port, expected, b"http/1.1").await
}

async fn begin<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    host_port: &str,
    expected: Fingerprint,
    protocol: &[u8],
) -> Result<TlsStream<S>, TlsConnectError> {
    let failed = |error: Error| TlsConnectError::Handshake(io::Error::other(error));
    let mut config = client_config(expected).map_err(failed)?;
    config.alpn_protocols = vec![protocol.to_vec()];
    let name = ServerName::try_from(host_of(host_port).to_owned());
    let name = name.map_err(|error| TlsConnectError::Handshake(io::Error::other(error)))?;
    let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
    connecting.await.map_err(connect_error)
}

fn connect_error(error: io::Error) -> TlsConnectError {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>());
    match cause {
        Some(Error::Other(OtherError(other))) => {
            match other.downcast_ref::<FingerprintMismatch>() {
                Some(mismatch) => TlsConnectError::Certificate(*mismatch),
                None => TlsConnectError::Handshake(error),
            }
        }
        Some(Error::InvalidMessage(_)) => TlsConnectError::ClearText,
        _ => TlsConnectError::Handshake(error),
    }
}

/// Verifier that compares the fingerprint. Names, dates and issuers do not matter.
#[derive(Debug)]
struct PinnedCertificate {
    expected: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedCertificate {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let (found, expected) = (fingerprint(certificate), self.expected);
        if found == expected {
            return Ok(ServerCertVerified::assertion());
        }
        Err(OtherError(Arc::new(FingerprintMismatch { found, expected })).into())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_a_fingerprint_demand_tls() {
        let digits = "0a".repeat(32);
        let fingerprint = digits.parse().unwrap();
        let url = format!("https://host:1#{digits}");
        assert_eq!(split_url(&url), Ok(("https://host:1", Some(fingerprint))));
        assert_eq!(split_url("http://host:1"), Ok(("http://host:1", None)));
        let clear = format!("http://host:1#{digits}");
        assert_eq!(split_url(&clear), Err(TlsUrlError::ClearText));
        assert!(split_url("https://host:1#0a").is_err());
    }
}
