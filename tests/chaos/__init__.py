"""Kill and stop workers and servers while people answer, then check histories and effects: `python -m tests.chaos`."""
