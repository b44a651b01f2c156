"""What an invocation is and what it does next: pure data and pure functions.

Nothing here reads a clock, draws a random number, opens a file or knows Temporal. Workflow code stands on it, so
whatever is here has to give the same answer on every machine and in every year.
"""

from waystation.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
