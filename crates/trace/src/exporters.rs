//! Destinations of spans: ended ones for the OTLP exporter, begins and ends for the trace file.

use super::perfetto::{PerfettoWriter, SlicePosition};
use super::span::{Nanos, Span, SpanKind};

#[derive(Debug, Default)]
pub(super) struct SpanExporters {
    /// `None`: no trace file is written.
    pub(super) file: Option<PerfettoWriter>,
    /// Ended spans for the collector. `None`: there is no collector.
    pub(super) ended: Option<Vec<Span>>,
}

impl SpanExporters {
    /// Shows a span in the trace file from now on.
    pub(super) fn begin(
        &mut self,
        at: Nanos,
        span: &Span,
        position: SlicePosition,
        title: impl FnOnce() -> String,
    ) {
        if let Some(file) = &mut self.file {
            file.begin(at, span, position, &title());
        }
    }

    /// Exports an ended span.
    pub(super) fn end(&mut self, at: Nanos, mut span: Span) {
        span.end = at.max(span.begin);
        if let Some(file) = &mut self.file {
            file.end(at, &span);
        }
        if let Some(ended) = &mut self.ended
            && span.kind != SpanKind::Slice
        {
            ended.push(span);
        }
    }

    /// Takes the spans that ended since the last call.
    pub(super) fn take_ended(&mut self) -> Vec<Span> {
        self.ended.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
