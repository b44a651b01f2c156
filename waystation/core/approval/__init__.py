"""Answers to pending calls: who may answer, what counts, who is notified."""
