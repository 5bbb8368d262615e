//! What a job looks like from outside: log lines and the progress view. They stand apart from the
//! command so that examples and tests can look at them too.

pub mod line;
pub mod log;
pub mod output;
pub mod view;
