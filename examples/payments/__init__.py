"""Payments that need approval by one person or two, depending on the amount."""

from . import agent as agent
