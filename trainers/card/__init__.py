"""Model cards: a finished run as a folder that can be published."""
