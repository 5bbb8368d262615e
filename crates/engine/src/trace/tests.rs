//! Tests of traces.
