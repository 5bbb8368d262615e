//! Tasksets through the public API.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod files;
mod folders;
mod formats;
mod help;
mod mistakes;
mod orders;
mod resume;
