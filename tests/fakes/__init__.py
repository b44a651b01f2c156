"""Servers that stand in for other people's, for the tests of several folders."""
