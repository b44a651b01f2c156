"""The command `waystation`, and the demo."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""
