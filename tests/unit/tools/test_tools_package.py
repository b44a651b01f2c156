"""The package `waystation.tools` as a whole."""

import subprocess
import sys

import pytest

from waystation import tools


def test_the_public_names_exist() -> None:
    """Every exported name exists."""
    assert all(hasattr(tools, name) for name in tools.__all__)


def test_importing_tools_imports_neither_genai_nor_temporal() -> None:
    """Importing tools loads neither, because Google's library takes a second, and tools need no Temporal."""
    code = (
        "import sys\n"
        "from waystation.tools import FunctionTool, ToolContext\n"
        "from waystation.tools.outcome import create_outcome\n"
        "create_outcome([{'a': 1}], context=ToolContext())\n"
        "found = [name for name in ('google.genai', 'temporalio', 'waystation.activities', 'waystation.workflows')"
        " if name in sys.modules]\n"
        "raise SystemExit(' '.join(found) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "line",
    [
        "from waystation.tools import MCPToolset, McpToolset, OpenAPIToolset, RestApiTool",
        "from waystation.tools.mcp_tool import McpToolset, SseConnectionParams, StdioConnectionParams",
        "from waystation.tools.mcp_tool.mcp_toolset import MCPToolset, McpToolset",
        "from waystation.tools.mcp_tool.mcp_session_manager import StreamableHTTPConnectionParams",
        "from waystation.tools.openapi_tool import OpenAPIToolset, RestApiTool",
        "from waystation.tools.openapi_tool.openapi_spec_parser.openapi_toolset import OpenAPIToolset",
        "from waystation.tools.openapi_tool.openapi_spec_parser.rest_api_tool import RestApiTool",
    ],
)
def test_toolsets_have_the_module_names_of_adk(line: str) -> None:
    """Toolsets are outside the flat list, because they need extras."""
    names: dict[str, object] = {}
    exec(line, names)
    for name in names.keys() - {"__builtins__"}:
        assert names[name] is getattr(tools, name, names[name])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "line", "message"),
    [
        (
            "mcp",
            "from waystation.tools import McpToolset",
            "McpToolset needs the package `mcp`; install `waystation[mcp]`.",
        ),
        (
            "openapi_pydantic",
            "from waystation.tools import OpenAPIToolset; OpenAPIToolset(spec_dict={'openapi': '3.1.0'})",
            "OpenAPIToolset needs the package `openapi_pydantic`; install `waystation[openapi]`.",
        ),
    ],
)
def test_a_missing_extra_is_named(missing: str, line: str, message: str) -> None:
    """The error names the extra, and all other names work without it."""
    code = (
        f"import sys\nsys.modules[{missing!r}] = None\nfrom waystation import *\nfrom waystation.tools import *\n"
        f"try:\n    {line}\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == message
