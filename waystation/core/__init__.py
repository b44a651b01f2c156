"""The state of an invocation and the decision about its next step, as pure data and pure functions.

Nothing in this package reads a clock, draws a random number, opens a file or imports Temporal. Workflow code calls this
package, so the same log must produce the same result on every machine at any time.
"""

from waystation.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
