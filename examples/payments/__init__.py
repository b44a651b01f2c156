"""Payments that people have to agree to: one of them, or two, by the amount."""

from . import agent as agent
