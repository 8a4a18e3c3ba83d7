"""Command lines, messages and exit codes shared by all programs."""
