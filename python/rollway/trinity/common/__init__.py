"""Configuration, experiences, models, workflows and rewards."""
