"""Recorded histories that every later version must replay.

Each `NAME.json` is a history in the format of `temporal workflow show -o json`, and `NAME.held.json` has the workflow's
answers to queries at the time of recording. Neither file is ever edited. `python -m tests.corpus.record` adds missing
ones.
"""
