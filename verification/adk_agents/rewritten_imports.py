"""Import the scenarios with google-adk's classes in the process that has both packages.

In the source of the scenarios, `waystation` becomes `google.adk`, as if an author had changed the import lines.
"""

import re
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

_REWRITTEN = re.compile(r"tests\.slow\.(differential\.(tables|scenario))\b")
_IMPORT = re.compile(rb"^(\s*)from waystation\b", re.MULTILINE)


class _Loader(SourceFileLoader):
    def get_data(self, path: str) -> bytes:
        """Return the source with changed imports."""
        return _IMPORT.sub(rb"\1from google.adk", super().get_data(path))

    def get_code(self, fullname: str) -> Any:
        """Compile the source, because the compiled file may be that of the unchanged source."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the modules whose imports are changed."""
        spec = PathFinder.find_spec(name, path) if _REWRITTEN.match(name) else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(name, spec.origin)
        return spec


def rewrite_imports() -> None:
    """Make later imports of the scenarios use google-adk's classes."""
    sys.meta_path.insert(0, _Finder())
