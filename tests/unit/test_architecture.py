"""Rules of the file tree."""

import ast
import functools
import inspect
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

from tests.paths import ROOT, syntax_tree
from waystation.core import errors
from waystation.core.log import CallRef

# Loaded only when a tool needs a credential.
LOGINS = "waystation.auth.auth_credential"
TOOLS, ACTIVITIES, WORKFLOWS = "waystation.tools", "waystation.activities", "waystation.workflows"
FOLDERS = ("waystation", "workflows", "activities", "tools", "examples", "benchmarks", "tests", "verification")
FILES = [ROOT / "worker.py", *sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))]


def loaded_by(module: str) -> set[str]:
    """Return the top-level packages that importing `module` loads, in another process."""
    code = f"import sys, {module}; print(*sorted({{name for name in sys.modules}}))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return set(out.split())


@pytest.mark.parametrize(
    ("module", "never"),
    [
        ("waystation", {"temporalio", "google.genai", TOOLS, "structlog", "typer", "joserfc"}),
        ("waystation.version", {"temporalio", "google.genai", "pydantic", TOOLS}),
        (
            "waystation.core.projection.projection",
            {"temporalio", "google.genai", TOOLS, "structlog", "waystation.agents"},
        ),
        ("waystation.workflows.invocation", {"google.genai", TOOLS, ACTIVITIES, "structlog", "waystation.agents"}),
        ("waystation.apps.registry", {"temporalio", "google.genai", ACTIVITIES, WORKFLOWS, "waystation.adk"}),
        (
            "waystation.client.agent_client",
            {"google.genai", TOOLS, ACTIVITIES, WORKFLOWS, "joserfc", "waystation.approvers"},
        ),
        ("waystation.cli.program", {"temporalio", "google.genai", TOOLS, ACTIVITIES, WORKFLOWS, "joserfc"}),
        ("waystation.approvers", {"temporalio", "google.genai", TOOLS, ACTIVITIES, "starlette", "joserfc", "typer"}),
        ("waystation.identity", {"authlib", "httpx2", "temporalio", "google.genai", TOOLS}),
        (
            "waystation.worker.__main__",
            {"google.genai", "typer", "joserfc", "apprise", "httpx2", "rich", LOGINS},
        ),
    ],
)
def test_modules_load_only_their_foundations(module: str, never: set[str]) -> None:
    """The loaded packages are those that each module may need. Import-linter sees only the imports in files."""
    assert loaded_by(module) & never == set()


@functools.cache
def lazy_names(package: Path) -> dict[str, str]:
    """Return the names that a package loads on first use, each with the module that its stub names."""
    stub = package / "__init__.pyi"
    nodes = ast.walk(ast.parse(stub.read_text())) if stub.exists() else ()
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: node.module or "" for node in imports for alias in node.names}


def hidden_imports(tree: ast.Module, root: Path, modules: set[str]) -> set[str]:
    """Return the modules that a module imports by a lazy name of a package, or by a string other than a logger's."""
    found, loggers = set[object](), set[object]()
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom():
                for alias in node.names:
                    module = node.module or ""
                    while source := lazy_names(root / module.replace(".", "/")).get(alias.name):
                        module = source
                    found.add(module)
            case ast.Call(func=ast.Attribute(attr="get_logger" | "getLogger"), args=[ast.Constant(name)]):
                loggers.add(name)
            case ast.Constant(text):
                found.add(text)
            case ast.JoinedStr(values=[ast.Constant(start), *_]):
                found |= {name for name in modules if f"{name.rpartition('.')[0]}." == start}
    return {module for module in modules if module in found - loggers}


def read_imports(root: Path, package: str) -> dict[str, set[str]]:
    """Return what each module imports anywhere: deferred, for type checkers only, by a lazy name or by a string."""
    graph = grimp.build_graph(package, cache_dir=None)
    modules = {name for name in graph.modules if not graph.find_children(name) and not name.endswith(".__main__")}
    imports = {}
    for module in graph.modules:
        place = root / module.replace(".", "/")
        package_file = place / "__init__.py"  # a folder without it may be left from an older checkout
        tree = syntax_tree((package_file if package_file.exists() else place.with_suffix(".py")).resolve())
        found = graph.find_modules_directly_imported_by(module) | hidden_imports(tree, root, modules)
        imports[module] = found - {module}
    return imports


def test_modules_have_no_import_cycles() -> None:
    """The error names the cycle."""
    TopologicalSorter(read_imports(ROOT, "waystation")).prepare()


@pytest.mark.parametrize(
    "hidden",
    [
        "def f():\n    from planted import low",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from planted.low import Low",
        "from planted import Low",
        "import importlib\nimportlib.import_module('planted.low')",
        "import importlib\nimportlib.import_module(f'planted.{1}')",
        "COMMANDS = {'low': ('planted.low', 'Low')}",
    ],
)
def test_a_hidden_import_closes_a_cycle(hidden: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The import can be deferred, for type checkers only, by a lazy name, or by a string."""
    package = tmp_path / "planted"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__init__.pyi").write_text("from planted.low import Low\n")
    (package / "low.py").write_text("from planted import high\n")
    (package / "high.py").write_text(hidden)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CycleError, match=r"planted\.low"):
        TopologicalSorter(read_imports(tmp_path, "planted")).prepare()


def test_references_to_log_entries_cannot_be_changed() -> None:
    """References are immutable, because they are keys of dictionaries in workflows."""
    ref = CallRef("fc-1")
    with pytest.raises(FrozenInstanceError):
        ref.function_call_id = "fc-2"  # type: ignore[misc]


def test_every_module_has_a_docstring() -> None:
    """Every file begins with its purpose."""
    begins = re.compile(r'(#.*\n)*"""\S|\s*$')
    assert [path for path in FILES if not begins.match(path.read_text())] == []


def test_no_import_uses_a_bare_name() -> None:
    """Imports name the whole package, because `tools.x` would be a second copy of `waystation.tools.x`."""
    bare_import = re.compile(r"^ *(from|import) (tools|activities|workflows|worker)\b", re.MULTILINE)
    of_users = ROOT / "tests" / "slow" / "test_packaging.py"  # code of users, in strings
    assert [path for path in FILES if bare_import.search(path.read_text())] == [of_users]


def test_every_error_is_in_the_drawn_tree() -> None:
    """The tree at the top of the module lists every error, because it is the documentation."""
    drawing = inspect.getdoc(errors) or ""
    classes = [
        name for name, kind in vars(errors).items() if isinstance(kind, type) and kind.__module__ == errors.__name__
    ]
    assert [name for name in classes if f" {name}" not in f" {drawing}"] == []


def test_workflow_code_reads_no_clock_and_no_random_numbers() -> None:
    """The check covers imports and names; replays in the sandbox find indirect uses."""
    forbidden = {"time", "random", "uuid", "secrets", "datetime", "os", "socket", "subprocess", "threading"}
    allowed = {"payload.py": {"datetime", "uuid"}}
    timeouts = ("scheduler.py", "settings.py", "policy.py", "quota.py", "wire.py")
    allowed |= {name: {"datetime"} for name in timeouts}
    violations = {}
    for path in [*(ROOT / "workflows").glob("*.py"), *(ROOT / "waystation" / "core").rglob("*.py")]:
        imported = {
            alias.name.split(".")[0]
            for node in ast.walk(syntax_tree(path))
            if isinstance(node, ast.Import)
            for alias in node.names
        } | {
            (node.module or "").split(".")[0]
            for node in ast.walk(syntax_tree(path))
            if isinstance(node, ast.ImportFrom)
        }
        if bad := imported & forbidden - allowed.get(path.name, set()):
            violations[path.name] = bad
    assert violations == {}


def test_every_test_is_in_a_tier() -> None:
    """Every test is in a folder of a tier, because `make test` would not find it elsewhere."""
    tiers = [ROOT / "tests" / tier for tier in ("unit", "corpus", "server", "slow")]
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    assert [path for path in files if not any(path.is_relative_to(tier) for tier in tiers)] == []


def test_unit_tests_import_nothing_that_needs_a_server() -> None:
    """Fixtures and helpers with a server are in the other tiers, and the recording script is in the corpus."""
    refused = re.compile(r"^ *from tests\.(server|slow|corpus\.record|corpus\.conversations)\b", re.MULTILINE)
    assert [path for path in (ROOT / "tests" / "unit").rglob("*.py") if refused.search(path.read_text())] == []


PRIVATE_PARTS = {
    "google-adk": {f"waystation/adk/{name}_adapter.py" for name in ("agent", "body", "context", "flow", "tool")},
    "temporalio": {
        "waystation/replay/replayer.py",
        *(f"waystation/worker/{name}.py" for name in ("plugin", "process")),
    },
    "google-genai": {"waystation/models/google_llm.py"},
    "mcp": {"tools/mcp_tool/mcp_session_manager.py"},
}
"""The packages whose private parts are used, and the files that use them."""
OWN_OR_STANDARD = {"_exit", "_asdict", "_replace", "_getframe", "_current_frames", "_get_declaration", "_run"}
OWN_OR_STANDARD |= {"_register_atexit"}
"""Methods that other frameworks require: `_run` of LangChain's tools, and `_get_declaration` of ADK's tools."""


def is_name(node: ast.expr, *names: str) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def private_uses(tree: ast.Module) -> set[str]:
    """Return the private names of other modules that a module uses: attributes it does not define, and imports."""
    nodes = list(ast.walk(tree))
    own = {n.attr for n in nodes if isinstance(n, ast.Attribute) and is_name(n.value, "self", "cls")}
    own |= {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    attributes = [n.attr for n in nodes if isinstance(n, ast.Attribute)]
    attributes += [
        str(n.args[1].value)
        for n in nodes
        if isinstance(n, ast.Call) and is_name(n.func, "getattr") and isinstance(n.args[1], ast.Constant)
    ]
    modules = [part for n in nodes if isinstance(n, ast.ImportFrom) for part in (n.module or "").split(".")]
    names = {name for name in (*attributes, *modules) if name.startswith("_") and not name.startswith("__")}
    return names - own - OWN_OR_STANDARD


def test_packages_with_used_private_parts_have_an_upper_bound() -> None:
    """Each file that uses a private part is listed, because a new major version may move the part."""
    shipped = [path for path in FILES if path.relative_to(ROOT).parts[0] in ("waystation", "tools", "activities")]
    private = re.compile(r"(?<!self)(?<!cls)\._[a-z]|from _[a-z]|getattr\(")  # avoids parsing most modules
    shipped = [path for path in shipped if private.search(path.read_text())]
    users = {str(path.relative_to(ROOT)) for path in shipped if private_uses(syntax_tree(path))}
    assert users == set().union(*PRIVATE_PARTS.values())
    project = (ROOT / "pyproject.toml").read_text()
    assert [name for name in PRIVATE_PARTS if not re.search(rf'"{name}>=[\d.]+,<[\d.]+"', project)] == []
