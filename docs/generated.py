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

from waystation.cli.program import COMMANDS, app
from waystation.worker.main import parse_options

PACKAGES = (
    *("waystation", "waystation.worker", "waystation.testing", "waystation.replay", "waystation.models"),
    *("waystation.artifacts", "waystation.memory"),
)
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
        documented = {name: getattr(module, name) for name in sorted(module.__all__)}
        new = {name: value for name, value in documented.items() if inspect.getdoc(value) and id(value) not in seen}
        seen |= {id(value) for value in new.values()}
        parts.append(f"### Package `{package}`\n")
        parts += [_describe(name, value) for name, value in new.items() if _is_ours(value)]
    return "\n".join(parts)


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
