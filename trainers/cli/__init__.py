"""Command lines, messages and exit codes that all programs share."""
