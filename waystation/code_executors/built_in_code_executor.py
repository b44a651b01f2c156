"""Code execution on the servers of the model's provider."""


class BuiltInCodeExecutor:
    """Lets a Gemini model run code on Google's servers. The code never runs in a worker."""
