//! What a job looks like from outside: log lines, the progress view and `rollway top`. They stand
//! apart from the command so that examples and tests can look at them too.

pub mod background_writer;
pub mod log;
pub mod output;
pub mod progress;
pub mod styled_line;
pub mod top;
