"""What the benchmarks share: measuring in turn, results as data, peers in processes of their own."""
