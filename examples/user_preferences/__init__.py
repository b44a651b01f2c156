"""State that belongs to a user."""

from . import agent as agent
