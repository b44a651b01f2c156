from waystation.runners.runner import InMemoryRunner, Runner

__all__ = ["InMemoryRunner", "Runner"]
