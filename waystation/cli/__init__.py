"""The `waystation` command-line program and the demo."""
