//! Small files in a job's folder, whole or not there at all: what must survive, and what tells
//! others where a server is and what to show it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rollway_wire::Secret;

use crate::config::{Config, Problem};
use crate::gateway::api_key;

/// Why a small file cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", path.display())]
pub struct FileError {
    /// Which file.
    pub path: PathBuf,
    /// Why.
    pub message: String,
}

/// Why there is no key for agents.
#[derive(Debug)]
pub(crate) enum KeyError {
    File(FileError),
    Config(Problem),
}

/// Returns the key that agents show, and the file that it is in; none if it comes from the
/// environment. A key that was made once stays the job's.
pub(crate) fn key(config: &Config, job: &Path) -> Result<(Secret, Option<PathBuf>), KeyError> {
    let explorer = &config.explorer;
    let given = api_key("explorer.proxy_key_env", explorer.proxy_key_env.as_deref());
    if let Some(key) = given.map_err(KeyError::Config)? {
        return Ok((key, None));
    }
    let path = job.join(format!("{}_server_key.txt", explorer.name));
    Ok((secret(&path).map_err(KeyError::File)?, Some(path)))
}

/// Returns the secret in a file, or makes one and keeps it there.
pub(crate) fn secret(path: &Path) -> Result<Secret, FileError> {
    let fail = |error: &dyn std::fmt::Display| failed(path, error);
    match fs::read_to_string(path) {
        Ok(text) if !text.trim().is_empty() => {
            Secret::new(text.trim()).map_err(|error| fail(&error))
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(fail(&error)),
        _ => {
            let secret = Secret::random().map_err(|error| fail(&error))?;
            write(path, secret.reveal(), true)?;
            Ok(secret)
        }
    }
}

/// Writes a line to a file, so that who reads it finds all of it or nothing.
pub(crate) fn write(path: &Path, line: &str, is_secret: bool) -> Result<(), FileError> {
    let mode = if is_secret { 0o600 } else { 0o644 };
    replace(path, format!("{line}\n").as_bytes(), mode).map_err(|error| failed(path, &error))
}

/// Replaces a file. Whoever reads it sees the earlier content, or the whole new one; when this
/// returns, the new one survives anything.
pub(crate) fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    fs::create_dir_all(folder)?;
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let new = PathBuf::from(name);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(mode);
    let mut file = options.open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(folder)?.sync_all()
}

/// Returns an address that others can use, where the server listens on all of them.
pub(crate) fn reachable(url: &str) -> String {
    let address = url.strip_prefix("http://").and_then(|rest| rest.parse::<SocketAddr>().ok());
    match address {
        Some(address) if address.ip().is_unspecified() => {
            let address = SocketAddr::new(own(address.ip()), address.port());
            format!("http://{address}")
        }
        _ => url.to_owned(),
    }
}

/// Returns the address that this machine has towards others.
pub(crate) fn own_address() -> IpAddr {
    own(Ipv4Addr::UNSPECIFIED.into())
}

/// Returns the address of this machine that packets to others would come from. None is sent.
fn own(listening: IpAddr) -> IpAddr {
    let (any, elsewhere, loopback): (SocketAddr, SocketAddr, IpAddr) = match listening {
        IpAddr::V4(_) => (
            (Ipv4Addr::UNSPECIFIED, 0).into(),
            (Ipv4Addr::new(192, 0, 2, 1), 9).into(),
            Ipv4Addr::LOCALHOST.into(),
        ),
        IpAddr::V6(_) => (
            (Ipv6Addr::UNSPECIFIED, 0).into(),
            (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 9).into(),
            Ipv6Addr::LOCALHOST.into(),
        ),
    };
    let ask = || {
        let socket = UdpSocket::bind(any)?;
        socket.connect(elsewhere)?;
        socket.local_addr()
    };
    ask().map_or(loopback, |address| address.ip())
}

fn failed(path: &Path, error: &dyn std::fmt::Display) -> FileError {
    FileError { path: path.into(), message: error.to_string() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_stays_and_is_for_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job/key.txt");
        let first = secret(&path).unwrap();
        assert_eq!(secret(&path).unwrap(), first);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn an_address_that_means_all_is_made_one_of_them() {
        assert_eq!(reachable("http://127.0.0.1:80"), "http://127.0.0.1:80");
        let url = reachable("http://0.0.0.0:8010");
        assert!(url.ends_with(":8010") && !url.contains("0.0.0.0"), "{url}");
    }
}
