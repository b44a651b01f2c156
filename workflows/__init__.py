"""Deterministic side: workflows that interpret recorded data. No author code, model SDK, clock or I/O in here."""
