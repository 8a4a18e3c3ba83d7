"""Evaluation of models: repeatable batches, losses of batches that add up to that of all data, and monitors."""
