"""Folders of runs: settings, records, figures and locks."""
