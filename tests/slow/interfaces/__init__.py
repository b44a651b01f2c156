"""Slow tests of interfaces for other protocols."""
