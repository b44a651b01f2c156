"""Measure the cost of the engine against a hand-written Temporal workflow: `python -m benchmarks`."""
