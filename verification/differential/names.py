"""`waystation` as another name of `google.adk`: it changes the import lines of a whole process, as an author would.

The scenarios are written for Waystation. In the process that runs google-adk, their imports find ADK instead.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

OURS, THEIRS = "waystation", "google.adk"


class _Alias(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a module that forwards every name to ADK's module of that name."""
        theirs = importlib.import_module(THEIRS + spec.name.removeprefix(OURS))
        # A new module, because the import system would write the new name into ADK's module.
        module = ModuleType(spec.name)
        vars(module)["__getattr__"] = lambda name: getattr(theirs, name)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module is complete."""


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find `waystation` and its submodules, whether or not they are on the path."""
        if name.split(".")[0] != OURS:
            return None
        return ModuleSpec(name, _Alias(), is_package=True)


def stand_in() -> None:
    """From now on, imports from `waystation` return the objects of `google.adk` with that name."""
    sys.meta_path.insert(0, _Finder())
