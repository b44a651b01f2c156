"""What the engine costs, measured beside a hand-written Temporal workflow: `python -m benchmarks`."""
