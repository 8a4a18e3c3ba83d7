"""The report on runs as one HTML file."""
