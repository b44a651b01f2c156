"""The state of an invocation and the decision about its next step: pure data and pure functions.

Nothing in this package reads a clock, draws a random number, opens a file or imports Temporal. Workflow code calls it,
so the same log must produce the same result on every machine and in every year.
"""

from waystation.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
