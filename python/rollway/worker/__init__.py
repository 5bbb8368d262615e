"""Worker processes: execution of workflows for an engine."""
