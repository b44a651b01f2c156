"""Rewrite the imports of a module that was written for ADK, and find what behaves differently in Waystation."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Literal

import libcst as cst
from libcst.helpers import get_full_name_for_node
from libcst.metadata import MetadataWrapper, PositionProvider, QualifiedNameProvider, QualifiedNameSource
from pydantic import BaseModel, ValidationError

from waystation.adk_names import FROM_ADK, find_rule, known_differences

ADK = "google.adk"
OURS = "waystation"
ATTRIBUTES = {
    "_invocation_context": "`_invocation_context` is private to ADK. Use the context's public attributes.",
    "rewind_async": "Recorded events are not removed. Fork an invocation with `waystation fork` instead.",
    "run_live": "Live audio and video are not recorded. Use `run_async`.",
}
"""Methods and attributes of ADK's objects that do not work in Waystation."""

_REFUSED = {"node": "workflow nodes are not supported. Pass an agent or an app."}
"""Arguments that exist in Waystation's signatures only to be refused."""

_LINK, _LINK_TEXT = re.compile(r"\[(.+?)\]\(.+?\)"), r"\1"
"""Matches a link in Markdown, and replaces it with its text."""

Kind = Literal["changed", "missing", "unsupported", "differs", "skipped"]


@dataclass(frozen=True, order=True)
class ImportChange:
    """A place in a module, with what changes there."""

    line: int
    """The line before the change, counted from 1."""
    kind: Kind
    """`changed` is an import that is rewritten. `missing` and `unsupported` are names and arguments that do not work
    in Waystation. `differs` is a name with a different behavior. `skipped` is a file that cannot be changed."""
    text: str


class NotParsable(ValueError):
    """A file is not a valid Python module."""


def migrate(source: bytes) -> tuple[bytes, list[ImportChange]]:
    """Return a module with its imports rewritten, and what was found, by line.

    Raises:
        NotParsable: The source is not valid Python, or not in its declared encoding.
    """
    if not re.search(rb"\bgoogle\b", source) or not re.search(rb"\badk\b", source):
        return source, []
    try:
        ast.parse(source)  # LibCST's parser crashes if a module is nested too deeply
        rewriter = _Rewriter()
        changed = MetadataWrapper(cst.parse_module(source)).visit(rewriter)
    except SyntaxError as error:
        raise NotParsable(f"line {error.lineno}: {error.msg}" if error.lineno else error.msg) from None
    except (cst.ParserSyntaxError, ValueError) as error:
        raise NotParsable(str(error)) from None
    except (RecursionError, MemoryError):
        raise NotParsable("it is nested too deeply") from None
    return changed.bytes, sorted(rewriter.findings)


@cache
def _names_in(module: str) -> frozenset[str] | None:
    """Return the names that a module of Waystation defines or imports, or None if the module does not exist.

    The module is not imported, because it may need a package that is not installed.
    """
    path = Path(__file__).parent.joinpath(*module.split(".")[1:])
    files = [path.with_suffix(".py"), path / "__init__.pyi", path / "__init__.py"]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return None
    names = {entry.stem for entry in path.iterdir()} if path.is_dir() else set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Import() | ast.ImportFrom():
                names.update(alias.asname or alias.name for alias in node.names)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return frozenset(names)


def _rule_of(name: str) -> str | None:
    return find_rule(name.removeprefix(f"{ADK}."))


def _has_module(module: str) -> bool:
    """Return whether a module of ADK exists in Waystation, or is provided by the extra `adk`."""
    return _names_in(OURS + module.removeprefix(ADK)) is not None or _rule_of(module) == FROM_ADK


def _target_of(module: str, name: str) -> str | None:
    """Return the module of Waystation that has a name of an ADK module, or None if there is none.

    It is the module with the same path, or else the nearest package above it that has the name.
    """
    target = OURS + module.removeprefix(ADK)
    if rule := _rule_of(f"{module}.{name}"):
        return target if rule == FROM_ADK else None
    while target != OURS:
        if name in (_names_in(target) or ()):
            return target
        target = target.rpartition(".")[0]
    return target if module == ADK and name in (_names_in(target) or ()) else None


def _split(qualified: str) -> tuple[str, str]:
    """Split the qualified name of something in ADK into the module and the name that follows it, which may be empty.

    The module is the longest one that exists in Waystation.
    """
    parts = qualified.split(".")
    length = 2
    while length < len(parts) and _has_module(".".join(parts[: length + 1])):
        length += 1
    return ".".join(parts[:length]), parts[length] if length < len(parts) else ""


class _Rewriter(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (PositionProvider, QualifiedNameProvider)

    def __init__(self) -> None:
        super().__init__()
        self.findings: set[ImportChange] = set()
        self._inner: set[cst.CSTNode] = set()
        """Imported names, and parts of dotted names that have been handled."""
        self._kept: set[cst.CSTNode] = set()
        """The `google.adk` of dotted names that Waystation does not have."""

    def _report(self, node: cst.CSTNode, kind: Kind, text: str) -> None:
        self.findings.add(ImportChange(self.get_metadata(PositionProvider, node).start.line, kind, text))

    def _adk_name(self, node: cst.CSTNode) -> str | None:
        """Return the qualified name of an expression that was imported from ADK, or None for others."""
        for found in self.get_metadata(QualifiedNameProvider, node, ()):
            name: str = found.name
            if found.source is QualifiedNameSource.IMPORT and name.startswith(f"{ADK}."):
                return name
        return None

    # Imports.

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.Import:
        aliases = []
        for alias in original_node.names:
            module = get_full_name_for_node(alias.name) or ""
            if module == ADK or module.startswith(f"{ADK}."):
                target = OURS + module.removeprefix(ADK)
                if not _has_module(module):
                    self._report(original_node, "missing", _describe_missing(module))
                else:
                    alias = alias.with_changes(name=cst.parse_expression(target))
                    self._report(original_node, "changed", f"import {_list_names([alias])}")
                    if text := _describe_difference(module):
                        self._report(original_node, "differs", text)
            aliases.append(alias)
        return updated_node.with_changes(names=aliases)

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.FlattenSentinel[cst.BaseSmallStatement]:
        module = get_full_name_for_node(original_node.module) if original_node.module else None
        is_adk = f"{module}.".startswith(f"{ADK}.")
        if original_node.relative or module is None or not (is_adk or module == "google"):
            return updated_node
        if isinstance(original_node.names, cst.ImportStar):
            return self._change_star(original_node, module) if is_adk else updated_node
        groups: dict[str, list[cst.ImportAlias]] = {}
        root: list[cst.BaseSmallStatement] = []
        for alias in original_node.names:
            name = str(alias.evaluated_name)
            if is_adk:
                groups.setdefault(self._find_target(alias, module, name) or module, []).append(alias)
            elif name == "adk":
                renamed = cst.ImportAlias(name=cst.Name(OURS), asname=alias.asname or cst.AsName(name=cst.Name("adk")))
                self._report(alias, "changed", f"import {_list_names([renamed])}")
                root.append(cst.Import([renamed]))
            else:
                groups.setdefault(module, []).append(alias)
        for target, aliases in groups.items():
            if target != module:
                self._report(original_node, "changed", f"from {target} import {_list_names(aliases)}")
        moved = [_import_from(original_node, target, aliases) for target, aliases in groups.items()]
        return cst.FlattenSentinel([*moved, *root])

    def _find_target(self, alias: cst.ImportAlias, module: str, name: str) -> str | None:
        """Return the module to import a name of ADK from, or None if Waystation does not have the name."""
        target = _target_of(module, name)
        if target is None:
            self._report(alias, "missing", _describe_missing(f"{module}.{name}"))
        elif text := _describe_difference(f"{module}.{name}"):
            self._report(alias, "differs", text)
        return target

    def _change_star(self, node: cst.ImportFrom, module: str) -> cst.ImportFrom:
        target = OURS + module.removeprefix(ADK)
        if not _has_module(module):
            self._report(node, "missing", _describe_missing(module))
            return node
        self._report(node, "changed", f"from {target} import *")
        self._report(node, "differs", "A star import: names that Waystation does not have are not reported.")
        return node.with_changes(module=cst.parse_expression(target))

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.FlattenSentinel[cst.BaseStatement]:
        if len(original_node.body) > 1 or len(updated_node.body) < 2:
            return updated_node
        *others, last = (
            cst.SimpleStatementLine([statement.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)])
            for statement in updated_node.body
        )
        lines = [*others, last.with_changes(trailing_whitespace=updated_node.trailing_whitespace)]
        lines[0] = lines[0].with_changes(leading_lines=updated_node.leading_lines)
        return cst.FlattenSentinel(lines)

    # Uses.

    def visit_Attribute(self, node: cst.Attribute) -> None:
        if node in self._inner or (qualified := self._adk_name(node)) is None:
            self._check_attribute(node)
            return
        base = node
        while isinstance(base.value, cst.Attribute):
            base = base.value
            self._inner.add(base)
        module, name = _split(qualified)
        target = _target_of(module, name) if name else module
        if target != OURS + module.removeprefix(ADK) and name:
            self._report(node, "missing", _describe_missing(f"{module}.{name}", target))
            self._kept.add(base)
        elif text := _describe_difference(f"{module}.{name}"):
            self._report(node, "differs", text)

    def _check_attribute(self, node: cst.Attribute) -> None:
        if text := ATTRIBUTES.get(node.attr.value):
            self._report(node, "unsupported", text)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        names = {found.name for found in self.get_metadata(QualifiedNameProvider, original_node, ())}
        is_root = isinstance(original_node.value, cst.Name) and original_node.value.value == "google"
        return cst.Name(OURS) if is_root and ADK in names and original_node not in self._kept else updated_node

    def visit_Call(self, node: cst.Call) -> None:
        kind = self._find_class(node.func)
        for argument in node.args:
            if kind is not None and argument.keyword is not None:
                name = argument.keyword.value
                if problem := _find_problem(kind, name, cst.Module(()).code_for_node(argument.value)):
                    self._report(argument, "unsupported", f"{kind.__name__}({name}=…): {problem}")

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        methods = [entry.name.value for entry in node.body.body if isinstance(entry, cst.FunctionDef)]
        for base in node.bases:
            kind = self._find_class(base.value)
            if kind is None:
                continue
            try:
                type(node.name.value, (kind,), {"__module__": __name__} | dict.fromkeys(methods, _method))
            except TypeError as error:
                self._report(node.name, "unsupported", str(error))

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        value = node.evaluated_value
        if isinstance(value, str) and re.fullmatch(r"google\.adk(\.\w+)*(:\w+)?", value):
            self._report(node, "differs", f"The text {value!r} is not changed. Change it if it names an import.")

    def _find_class(self, node: cst.BaseExpression) -> type | None:
        """Return the class of Waystation that replaces a class of ADK, if it exists and can be imported."""
        module, name = _split(self._adk_name(node) or ADK)
        target = _target_of(module, name)
        if not name or target is None:
            return None
        try:
            kind = getattr(import_module(target), name, None)
        except ImportError:  # it needs an extra that is not installed
            return None
        return kind if isinstance(kind, type) else None


def _import_from(original: cst.ImportFrom, module: str, aliases: Sequence[cst.ImportAlias]) -> cst.ImportFrom:
    """Return an import of some of a statement's names from another module."""
    comma = aliases[-1].comma
    if original.lpar is None:
        comma = cst.MaybeSentinel.DEFAULT
    elif isinstance(comma, cst.Comma) and isinstance(comma.whitespace_after, cst.ParenthesizedWhitespace):
        comma = comma.with_deep_changes(comma.whitespace_after, last_line=cst.SimpleWhitespace(""))
    aliases = [*aliases[:-1], aliases[-1].with_changes(comma=comma)]
    return original.with_changes(module=cst.parse_expression(module), names=aliases)


def _list_names(aliases: Sequence[cst.ImportAlias]) -> str:
    plain = (alias.with_changes(comma=cst.MaybeSentinel.DEFAULT) for alias in aliases)
    return ", ".join(cst.Module(()).code_for_node(alias) for alias in plain)


def _describe_missing(name: str, module: str | None = None) -> str:
    reason = f"Use {module}.{name.rpartition('.')[2]}." if module else _rule_of(name)
    return f"Waystation does not have {name}." + (f" {reason}" if reason else "")


def _describe_difference(name: str) -> str | None:
    if _rule_of(name) == FROM_ADK:
        return f"{name} is google-adk's own. Install it with: pip install 'waystation[adk]'"
    text = known_differences().get(name.removeprefix(f"{ADK}."))
    return f"{name}: {_LINK.sub(_LINK_TEXT, text)}." if text else None


def _find_problem(kind: type, argument: str, code: str) -> str | None:
    """Return why a class does not accept an argument with this source code, or None if that is not known."""
    try:
        value = ast.literal_eval(code)
        is_literal = True
    except (ValueError, SyntaxError):
        value, is_literal = object(), False
    if not issubclass(kind, BaseModel):
        parameters = inspect.signature(kind).parameters
        if argument in parameters:
            return _REFUSED.get(argument) if value is not None else None
        variadic = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        return None if variadic else "there is no such argument."
    if not is_literal and argument in kind.model_fields:
        return None
    try:
        kind.model_validate({argument: value})
    except ValidationError as error:
        for mistake in error.errors():
            if mistake["loc"] in ((), (argument,)):
                return mistake["msg"].removeprefix("Value error, ")
    return None


def _method(*_: object, **__: object) -> None:
    """Stand for a method of an author's class."""
