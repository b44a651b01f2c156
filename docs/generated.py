"""The parts of reference pages that are generated from the code when the website is built."""

import ast
import contextlib
import inspect
import io
import re
import textwrap
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import docstring_parser
import typer
from pydantic import BaseModel

from waystation.cli.command_table import COMMANDS
from waystation.cli.program import app
from waystation.worker.main import parse_options

PACKAGES = (
    *("waystation", "waystation.client", "waystation.worker", "waystation.testing", "waystation.replay"),
    *("waystation.models.openai_llm", "waystation.models.anthropic_llm", "waystation.models.lite_llm"),
    *("waystation.models.fallback_model", "waystation.tools", "waystation.tools.authenticated_function_tool"),
    *("waystation.tools.mcp_tool", "waystation.tools.openapi_tool", "waystation.planners", "waystation.runners"),
    "waystation.extensions",
    *("waystation.sessions", "waystation.artifacts", "waystation.memory", "waystation.auth", "waystation.identity"),
)
"""The packages and modules from which programs import, each name listed below the first that exports it."""
SINGLE_NAMES = {
    "waystation.models.openai_llm": {"OpenAICompatible"},
    "waystation.models.anthropic_llm": {"AnthropicLlm"},
    "waystation.models.lite_llm": {"LiteLlm"},
    "waystation.models.fallback_model": {"FallbackModel"},
    "waystation.tools.authenticated_function_tool": {"AuthenticatedFunctionTool"},
    "waystation.extensions": {
        *("ChannelKind", "ExtensionFailed", "FileStore", "FrameworkAdapter", "NotDelivered", "Notification"),
        "StoreScheme",
    },
}
"""The public names of modules that are not packages."""
INTERNAL = {
    "waystation.client": {
        *("AgentDirectory", "PartialTextReader", "SearchAttributeMonitor", "StartedInvocations", "connection_problem"),
        *("connection_settings", "count_events", "find_store_differences", "fold_called", "is_address_configured"),
        *("is_quotable", "new_events", "parse_session_id", "read_entry", "read_session_entry", "stream_logs"),
        "stream_session",
    },
}
"""Names that a package exports for other packages of Waystation only."""
_MODULE = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])")
"""Matches the module in front of a class name, such as `waystation.core.` in an annotation."""
_QUOTED = re.compile(r"(: |-> )'([^']*)'")
"""Matches an annotation that the source has as a string."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def list_options() -> str:
    """Return the help of every command, as Markdown."""
    parts = ["## Options of every command\n"]
    for panel in COMMANDS.values():
        for name in panel:
            text = _worker_help() if name == "worker" else "\n".join(_help(name, typer.main.get_command(app), name))
            parts.append(f"### waystation {name}\n\n```text\n{text.strip()}\n```\n")
    return "\n".join(parts)


def _help(path: str, group: Any, name: str) -> Iterator[str]:
    command = group.get_command(None, name)
    yield command.get_help(typer.Context(command, info_name=f"waystation {path}", max_content_width=88))
    for part in getattr(command, "commands", {}):
        yield "\n" + "\n".join(_help(f"{path} {part}", command, part))


def _worker_help() -> str:
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        parse_options(["--help"], "waystation worker")
    return text.getvalue()


def list_names() -> str:
    """Return the signature and the docstring of every name that the main packages export, as Markdown."""
    seen = set[int]()
    parts = ["## Every name\n\nThese are the signatures and docstrings of the names that the packages export.\n"]
    for package in PACKAGES:
        module = import_module(package)
        names = SINGLE_NAMES.get(package) or set(module.__all__) - INTERNAL.get(package, set())
        documented = {name: getattr(module, name) for name in sorted(names)}
        documented = {name: value for name, value in documented.items() if not _is_alias(name, value, documented)}
        new = {name: value for name, value in documented.items() if inspect.getdoc(value) and id(value) not in seen}
        seen |= {id(value) for value in new.values()}
        parts.append(f"### `{package}`\n")
        parts += [_describe(name, value) for name, value in new.items() if _is_ours(value)]
    return "\n".join(parts)


def _is_alias(name: str, value: object, documented: dict[str, object]) -> bool:
    """Return whether the name is another spelling of one that is exported, too, as ADK's `MCPToolset` is."""
    own = getattr(value, "__name__", name)
    return own != name and own.lower() == name.lower() and documented.get(own) is value


def _is_ours(value: object) -> bool:
    return (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__.startswith("waystation")


def _describe(name: str, value: Any) -> str:
    lines = [f"#### {name}\n"]
    is_model = inspect.isclass(value) and issubclass(value, BaseModel)
    is_error = inspect.isclass(value) and issubclass(value, BaseException)
    if not is_model and not is_error:
        lines.append(f"```python\n{_signature(name, value)}\n```\n")
    lines.append(_format_docstring(value))
    if inspect.isclass(value) and not is_error:
        lines += [f"- `{field}`: {text}" for field, text in _list_fields(value)]
        for key, member in vars(value).items():
            function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if not key.startswith("_") and inspect.isfunction(function) and function.__doc__:
                lines.append(f"\n##### {name}.{key}\n\n```python\n{_signature(key, function)}\n```\n")
                lines.append(_format_docstring(function))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def _signature(name: str, value: Any) -> str:
    signature = inspect.signature(value)
    parameters = [parameter for key, parameter in signature.parameters.items() if key not in {"self", "cls"}]
    returns = signature.return_annotation if not inspect.isclass(value) else signature.empty
    signature = signature.replace(parameters=parameters, return_annotation=returns)
    text = f"{name}{signature}"
    if len(text) > 88:
        lines = list[str]()
        for parameter in parameters:
            if parameter.kind is parameter.KEYWORD_ONLY and not any(line.startswith("*") for line in lines):
                lines.append("*")
            lines.append(str(parameter))
        text = "\n".join([f"{name}(", *(f"    {line}," for line in lines), f"){text.rsplit(')', 1)[1]}"])
    return _ADDRESS.sub("", _MODULE.sub("", _QUOTED.sub(r"\1\2", text)))


def _format_docstring(value: Any) -> str:
    """Return a docstring in Google's style as Markdown."""
    doc = docstring_parser.parse(inspect.getdoc(value) or "", docstring_parser.DocstringStyle.GOOGLE)
    lines = [doc.short_description or "", "", doc.long_description or "", ""]
    lines += [f"- `{parameter.arg_name}`: {_join(parameter.description)}" for parameter in doc.params]
    lines += [f"- raises `{error.type_name}`: {_join(error.description)}" for error in doc.raises]
    return "\n".join(lines) + "\n"


def _join(text: str | None) -> str:
    return " ".join((text or "").split())


def _list_fields(value: type) -> Iterator[tuple[str, str]]:
    """Yield the attributes of a class with the strings below them."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
    assert isinstance(body, ast.ClassDef)
    for node, below in zip(body.body, body.body[1:], strict=False):
        match node, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                if not name.startswith("_"):
                    yield name, _join(text)


GENERATED: dict[str, Callable[[], str]] = {"reference/cli.md": list_options, "reference/python.md": list_names}
