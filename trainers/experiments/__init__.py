"""Parts shared by the programs that run experiments."""
