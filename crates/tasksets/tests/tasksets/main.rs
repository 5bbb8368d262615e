//! Tasksets through their public face: files as people have them, orders, budgets, resuming.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod files;
mod folders;
mod formats;
mod help;
mod mistakes;
mod orders;
mod resume;
