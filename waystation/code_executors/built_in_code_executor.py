"""The model's own code execution."""


class BuiltInCodeExecutor:
    """Lets a Gemini model run code on Google's side; nothing of it runs in a worker."""
