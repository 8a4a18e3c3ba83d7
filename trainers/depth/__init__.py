"""Depth profiles of built-in block types."""
