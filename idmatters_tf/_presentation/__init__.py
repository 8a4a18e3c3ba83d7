"""Presentation of results: progress, tables and figures, and callbacks that measure a model during training."""
