"""`waystation` as another name of `google.adk`: an author's change of import lines, made for a whole process.

The scenarios are written for Waystation. In the process that runs google-adk their imports find ADK instead.
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
        """Return a module that hands on what ADK's module of that name has."""
        theirs = importlib.import_module(THEIRS + spec.name.removeprefix(OURS))
        # A module of its own: the import system writes the new name into whatever it is given.
        module = ModuleType(spec.name)
        vars(module)["__getattr__"] = lambda name: getattr(theirs, name)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module is complete."""


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find `waystation` and what is below it, whether or not it is on the path."""
        if name.split(".")[0] != OURS:
            return None
        return ModuleSpec(name, _Alias(), is_package=True)


def stand_in() -> None:
    """From now on, importing from `waystation` gives what `google.adk` has under that name."""
    sys.meta_path.insert(0, _Finder())
