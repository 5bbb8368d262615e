"""Operators of the experience pipeline."""
