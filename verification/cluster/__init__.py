"""Run tests on a Temporal cluster of two server processes on PostgreSQL: `python -m verification.cluster`."""
