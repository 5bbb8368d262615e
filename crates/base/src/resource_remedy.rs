//! Remedies of errors of the operating system about an exhausted resource.

use rustix::io::Errno;

const DISK: &str = "free disk space, and start the job again: it continues where it stopped";
const FILES: &str = "raise the limit of open files (`ulimit -n`), and start the job again";

/// Returns the remedy of an error message about an exhausted resource. Messages have passed
/// threads, processes and databases, where only the text is left of the error.
pub fn resource_remedy(message: &str) -> Option<&'static str> {
    let is_about = |errno: Errno| message.contains(&format!("(os error {})", errno.raw_os_error()));
    if is_about(Errno::NOSPC) || is_about(Errno::DQUOT) || message.contains("disk is full") {
        return Some(DISK);
    }
    (is_about(Errno::MFILE) || is_about(Errno::NFILE)).then_some(FILES)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn remedies_follow_the_resource() {
        let of = |errno: Errno| {
            let error = io::Error::from_raw_os_error(errno.raw_os_error());
            resource_remedy(&format!("/job/ledger: {error}; it is kept"))
        };
        assert_eq!((of(Errno::NOSPC), of(Errno::DQUOT)), (Some(DISK), Some(DISK)));
        assert_eq!((of(Errno::MFILE), of(Errno::NFILE)), (Some(FILES), Some(FILES)));
        assert_eq!(resource_remedy("buffer.db: database or disk is full"), Some(DISK));
        assert_eq!((of(Errno::ACCESS), of(Errno::NOENT)), (None, None));
    }
}
