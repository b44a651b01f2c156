"""The `waystation` program, and the demo."""
