"""Training loop, tasks, recipes and checkpoints of the training programs."""
