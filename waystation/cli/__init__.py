"""The command `waystation`, and the demo."""
