"""Model cards: folders with weights and documentation of finished runs, ready to be published."""
