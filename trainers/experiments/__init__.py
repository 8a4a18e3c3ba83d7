"""What the programs that run experiments share: what an experiment is, and how its results are written."""
