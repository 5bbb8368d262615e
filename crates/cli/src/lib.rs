//! Presentation of a job: log lines, the progress view and `rollway top`. A library, so that tests
//! can use it without the command.

pub mod background_writer;
pub mod log;
pub mod log_line;
pub mod output;
pub mod progress;
pub mod styled_line;
pub mod top;
