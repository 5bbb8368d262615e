//! `tls`: encryption of the connections to a job.

use rollway_base::tls::{CertificateSource, TlsMode, TlsOptions};

use super::Config;

section! {
    /// Encryption of the connections to a job: workers, gateway, dashboard, metrics, synchronizer.
    /// Clients of a job know the fingerprint of its certificate from the job's folder or from the
    /// job itself, and accept no other certificate.
    pub struct TlsConfig {
        pub mode: TlsModeConfig,
        /// PEM file with the certificate of the listeners and its chain. Absent: a self-signed
        /// certificate in the folder `tls` of the job. Give it with `tls.key`.
        pub certificate: Option<String>,
        /// PEM file with the private key of `tls.certificate`.
        pub key: Option<String>,
    }
}

choices! {
    /// Listeners that speak TLS.
    pub enum TlsModeConfig {
        /// Those that other machines can reach; on the loopback address clear text.
        #[default]
        Auto,
        /// None: a tunnel or a proxy encrypts.
        Off,
        /// All TCP listeners. Unix sockets stay clear text.
        Required,
    }
}

impl Config {
    /// Returns the settings of TLS for the listeners of the job.
    pub fn tls_options(&self) -> TlsOptions {
        let source = match (&self.tls.certificate, &self.tls.key) {
            (Some(certificate), Some(key)) => {
                CertificateSource::Files { certificate: certificate.into(), key: key.into() }
            }
            _ => CertificateSource::Folder(self.job_dir().join("tls")),
        };
        let mode = match self.tls.mode {
            TlsModeConfig::Auto => TlsMode::Auto,
            TlsModeConfig::Off => TlsMode::Off,
            TlsModeConfig::Required => TlsMode::Required,
        };
        TlsOptions { mode, source, hosts: Vec::new() }
    }
}
