"""A tool that needs a login."""

from . import agent as agent
