//! What a job looks like from outside: log lines, the progress view and `rollway top`. They stand
//! apart from the command so that examples and tests can look at them too.

pub mod drain;
pub mod line;
pub mod log;
pub mod output;
pub mod top;
pub mod view;
