"""Evaluation of models: repeatable batches, the terms of a loss as Keras sums them, and monitors."""
