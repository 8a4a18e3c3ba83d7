"""Shared code of the benchmarks: interleaved measurements, recorded results, peers in separate processes."""
