"""Logs, registries and metrics."""
