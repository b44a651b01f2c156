"""Code execution at the model's provider."""


class BuiltInCodeExecutor:
    """Lets a Gemini model run code at Google. The code never runs in a worker."""
