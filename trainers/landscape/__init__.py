"""Experiments on the loss landscape of deep linear networks."""
