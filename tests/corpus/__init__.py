"""Histories that were recorded once and replay for ever.

Each `NAME.json` is a history as `temporal workflow show -o json` gives it, and `NAME.held.json` what the workflow
answered to queries when it was recorded. Neither is ever edited. `python -m tests.corpus.record` adds what is missing.
"""
