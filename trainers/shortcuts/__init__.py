"""Experiments of Demystifying ResNet."""
