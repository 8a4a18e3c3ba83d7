"""Experiments on networks that memorize a data set."""
