"""A long-running tool that reports its progress."""

from . import agent as agent
