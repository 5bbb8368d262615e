//! Certificate and key of a listener.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose};
use rollway_base::Fingerprint;
use rollway_base::atomic_file::write_atomic;
use rollway_base::folder::create_missing_folder;
use rollway_base::net::own_address;
use rollway_base::tls::{CertificateSource, TlsOptions};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest as _, Sha256};
use tokio_rustls::TlsAcceptor;

/// Names of the machine itself in a self-signed certificate.
const LOCAL_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// First line of the file of a self-signed certificate, before the names in it.
const NAMES: &str = "Names: ";

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("TLS certificate: {}: {message}", path.display())]
    File { path: PathBuf, message: String },
    #[error("the TLS certificate of the job cannot be made: {0}")]
    Make(#[from] rcgen::Error),
    #[error("the TLS certificate in {} cannot be used: {error}", path.display())]
    Unusable { path: PathBuf, error: rustls::Error },
}

impl TlsError {
    fn file(path: &Path, error: &dyn fmt::Display) -> Self {
        Self::File { path: path.to_owned(), message: error.to_string() }
    }
}

impl From<TlsError> for io::Error {
    fn from(error: TlsError) -> Self {
        Self::other(error)
    }
}

/// Certificate and key of a listener. Cheap to clone; clones share state.
#[derive(Clone)]
pub struct TlsIdentity {
    config: Arc<ServerConfig>,
    fingerprint: Fingerprint,
    chain: Arc<str>,
}

/// Without the key.
impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsIdentity").field("fingerprint", &self.fingerprint).finish()
    }
}

impl TlsIdentity {
    /// Returns the identity of a listener at an address. `None`: it speaks clear text.
    ///
    /// # Errors
    /// If the certificate cannot be read or made.
    pub fn of(options: &TlsOptions, address: SocketAddr) -> Result<Option<Self>, TlsError> {
        if !options.covers(address) {
            return Ok(None);
        }
        let mut names: BTreeSet<String> = options.hosts.iter().cloned().collect();
        let ip = address.ip();
        names.insert(if ip.is_unspecified() { own_address() } else { ip }.to_string());
        names.extend(LOCAL_NAMES.map(str::to_owned));
        let identity = match &options.source {
            CertificateSource::Files { certificate, key } => Self::read(certificate, key),
            CertificateSource::Folder(folder) => {
                let (certificate, key) = self_signed(folder, names)?;
                Self::read(&certificate, &key)
            }
            CertificateSource::Memory => {
                let (certificate, key) = make(&names)?;
                Self::from_pem(Path::new("memory"), certificate.as_bytes(), key.as_bytes())
            }
        };
        identity.map(Some)
    }

    /// Reads PEM files: the certificate with its chain, and the private key.
    ///
    /// # Errors
    /// If they cannot be read or do not belong together.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let read = |path: &Path| fs::read(path).map_err(|error| TlsError::file(path, &error));
        let key_text = read(key)?;
        if let Err(error) = PrivateKeyDer::from_pem_slice(&key_text) {
            return Err(TlsError::file(key, &error));
        }
        Self::from_pem(certificate, &read(certificate)?, &key_text)
    }

    fn from_pem(path: &Path, text: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(text)
            .collect::<Result<_, _>>()
            .map_err(|error| TlsError::file(path, &error))?;
        let Some(leaf) = chain.first() else {
            return Err(TlsError::file(path, &"there is no certificate in it (PEM)"));
        };
        let fingerprint = fingerprint(leaf);
        let key = PrivateKeyDer::from_pem_slice(key);
        let key = key.map_err(|error| TlsError::file(path, &error))?;
        let unusable = |error| TlsError::Unusable { path: path.to_owned(), error };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unusable)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(unusable)?;
        let chain = String::from_utf8_lossy(text).into();
        Ok(Self { config: Arc::new(config), fingerprint, chain })
    }

    pub const fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Returns the certificate with its chain, as PEM.
    pub fn certificate(&self) -> &str {
        &self.chain
    }

    /// Returns the server side of handshakes, which offers these protocols.
    pub(crate) fn acceptor(&self, protocols: Vec<Vec<u8>>) -> TlsAcceptor {
        let mut config = ServerConfig::clone(&self.config);
        config.alpn_protocols = protocols;
        TlsAcceptor::from(Arc::new(config))
    }
}

/// Returns the SHA-256 of a certificate.
pub(super) fn fingerprint(certificate: &CertificateDer<'_>) -> Fingerprint {
    Fingerprint(Sha256::digest(certificate).into())
}

/// Returns the files of a self-signed certificate for these names. A certificate that was made
/// before, with all of them, is used again, so that its fingerprint stays the same.
fn self_signed(folder: &Path, names: BTreeSet<String>) -> Result<(PathBuf, PathBuf), TlsError> {
    let (path, key_path) = (folder.join("certificate.pem"), folder.join("key.pem"));
    let failed = |error: io::Error| TlsError::file(&path, &error);
    create_missing_folder(folder).map_err(failed)?;
    // Processes of one job may need it at the same time.
    let lock = File::create(folder.join("lock")).map_err(failed)?;
    lock.lock().map_err(failed)?;
    let mut known = BTreeSet::new();
    if key_path.exists()
        && let Ok(text) = fs::read_to_string(&path)
    {
        let line = text.lines().find_map(|line| line.strip_prefix(NAMES)).unwrap_or_default();
        known.extend(line.split(' ').filter(|name| !name.is_empty()).map(str::to_owned));
    }
    if !names.is_subset(&known) {
        known.extend(names);
        let (certificate, key) = make(&known)?;
        write_atomic(&key_path, key.as_bytes(), 0o600).map_err(failed)?;
        write_atomic(&path, certificate.as_bytes(), 0o644).map_err(failed)?;
    }
    Ok((path, key_path))
}

/// Returns a self-signed certificate for these names and its key, as PEM.
fn make(names: &BTreeSet<String>) -> Result<(String, String), TlsError> {
    let names: Vec<String> = names.iter().cloned().collect();
    let line = names.join(" ");
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, "Rollway job");
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok((format!("{NAMES}{line}\n{}", certificate.pem()), key.serialize_pem()))
}
