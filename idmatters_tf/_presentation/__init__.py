"""Presentation of results: progress, tables and figures."""
