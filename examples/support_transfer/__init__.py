"""A tool that transfers to another agent."""

from . import agent as agent
