"""A tool that hands the conversation over to another agent."""

from . import agent as agent
