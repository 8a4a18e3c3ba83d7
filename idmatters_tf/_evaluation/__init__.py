"""Losses of models on data sets: repeatable batches, and losses of batches that add up to that of all data."""
