//! Rules of `tls`: certificate and key belong together.

use super::Check;

impl Check<'_> {
    pub(super) fn tls(&mut self) {
        let tls = self.given.tls.clone();
        let (given, missing) = match (tls.certificate.is_some(), tls.key.is_some()) {
            (true, false) => ("tls.certificate", "tls.key"),
            (false, true) => ("tls.key", "tls.certificate"),
            (true, true) | (false, false) => return,
        };
        let hint = "give both files, or none for a self-signed certificate of the job";
        self.add_problem(given, format!("`{missing}` is missing"), hint);
    }
}
