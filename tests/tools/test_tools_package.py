"""The package `tools` as a whole."""

import subprocess
import sys

import tools


def test_the_public_names_exist() -> None:
    """What is exported exists."""
    assert all(hasattr(tools, name) for name in tools.__all__)


def test_importing_tools_imports_neither_genai_nor_temporal() -> None:
    """Google's library takes a second, and tools do not know what schedules them."""
    code = (
        "import sys, tools\n"
        "from tools import FunctionTool, ToolContext, outcome_of\n"
        "outcome_of([{'a': 1}], context=ToolContext())\n"
        "found = [name for name in ('google.genai', 'temporalio', 'activities', 'workflows') if name in sys.modules]\n"
        "raise SystemExit(' '.join(found) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
