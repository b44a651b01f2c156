"""The client: start invocations, talk to sessions and answer pending calls. Modules are imported on first use."""

from waystation.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
