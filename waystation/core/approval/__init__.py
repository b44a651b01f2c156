"""Answers to pending calls: who may answer, which answers count, and who is notified."""
