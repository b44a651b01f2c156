"""A model of a few rules, with which any agent runs without an API key: the model of `--model demo`."""

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from waystation.core.payload import JsonObject
from waystation.models.function_model import FunctionModel, calls, latest_turn, says
from waystation.models.llm_response import LlmResponse
from waystation.models.plain_request import LlmRequest

NAME = "[demo model]"
"""Begins each text of the model."""
SHORT = 3
"""Minimum length of a word that can select a tool. Shorter words, such as `to` and `of`, are in most messages."""
_NUMBER = re.compile(r"(?<![\w.-])-?\d+(?:\.\d+)?")
_NAME = re.compile(r"(?<=[\w,:] )[A-Z]\w*(?: [A-Z]\w*)*")
"""Matches capitalized words that do not begin a sentence."""
_WHOLE = ("request", "message", "text", "query", "question", "prompt", "input")
"""Parameters that receive the whole message."""
_QUOTED = re.compile(r"""(?<!\w)(['"])(.+?)\1(?!\w)""")
"""Matches text in quotation marks. An apostrophe follows a letter, so it does not begin a match."""


def reply(request: LlmRequest) -> LlmResponse:
    """Reply to the user's last message and the tool responses since.

    A message such as `refund(order="7", amount=20)` calls a tool with these arguments. Otherwise, the tool is called
    whose name or description has most words of the message, with arguments taken from the message. The next reply is
    the response of the tool.
    """
    message, responses = latest_turn(request)
    if responses:
        tool, response = responses[-1]
        return _conclude(request, f"{NAME} {tool}: {json.dumps(response, ensure_ascii=False)}")
    tools = {str(tool["name"]): tool for tool in request.tools}
    if call := _parse_call(message, tools) or _match_call(message, tools):
        return calls(call)
    example = next((f"To call a tool, write: {_format_example(tool)}" for tool in tools.values()), "")
    return _conclude(request, f"{NAME} You wrote: {message}\n{example}".rstrip())


def _conclude(request: LlmRequest, text: str) -> LlmResponse:
    """Return a final text, or an example of the agent's output schema if there is one."""
    schema = request.config.get("responseJsonSchema")
    return says(text if schema is None else json.dumps(_example_of(schema, schema)))


def _parse_call(message: str, tools: Mapping[str, JsonObject]) -> tuple[str, JsonObject] | None:
    """Parse a message that is a call with literal arguments by name, written as in Python. Return None for others."""
    try:
        call = ast.parse(message.strip(), mode="eval").body
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in tools and not call.args:
            args = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
            return call.func.id, json.loads(json.dumps(args))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        pass
    return None


def _match_call(message: str, tools: Mapping[str, JsonObject]) -> tuple[str, JsonObject] | None:
    """Return a call of the tool that most words of a message select, or None if no word selects a tool."""
    words = _words_of(message)
    scores = {name: _score(words, tool) for name, tool in tools.items()}
    best = max(scores, key=lambda name: scores[name], default=None)
    return (best, _find_args(message, tools[best])) if best is not None and scores[best] else None


def _score(words: set[str], tool: JsonObject) -> int:
    """Count the words that a tool shares with a message. A word of the tool's name counts ten times.

    A transfer is selected only by the name of an agent.
    """
    name, schema = str(tool["name"]), _schema_of(tool)
    if name == "transfer_to_agent":
        agents = schema.get("properties", {}).get("agent_name", {}).get("enum") or ()
        return sum(len(_words_of(agent) & words) for agent in agents)
    return 10 * len(_words_of(name) & words) + len(_words_of(str(tool.get("description", ""))) & words)


def _words_of(text: str) -> set[str]:
    """Return the words of a text in lower case, without short ones and without a plural's `s`."""
    return {word.removesuffix("s") for word in re.findall(r"[^\W_]+", text.lower()) if len(word) >= SHORT}


def _find_args(message: str, tool: JsonObject) -> JsonObject:
    """Return the arguments for a tool's required parameters, and for others that the message names, from a message."""
    schema = _schema_of(tool)
    required, args = schema.get("required") or (), dict[str, Any]()
    numbers, quoted = _NUMBER.findall(message), [match[2] for match in _QUOTED.finditer(message)]
    fields = {name: _resolve(field, schema) for name, field in (schema.get("properties") or {}).items()}
    for name, field in fields.items():  # a value after its name: `order 7`, `order: A-7`
        words = re.escape(name).replace("_", r"[ _-]")
        if field.get("type") == "string" and (
            match := re.search(rf"(?i)\b{words}\b[\s:=#]*([\w.@-]*\d[\w.@-]*)", message)
        ):
            args[name] = match[1].rstrip(".")
            if match[1] in numbers:
                numbers.remove(match[1])
    for types in (("integer", "number"), None):  # numbers first, so that no text takes them
        for name, field in fields.items():
            if name in required and name not in args and (types is None or field.get("type") in types):
                args[name] = _take_value(name, message, field, schema, numbers, quoted)
    return {name: args[name] for name in fields if name in args}


def _take_value(
    name: str, message: str, field: JsonObject, schema: JsonObject, numbers: list[str], quoted: list[str]
) -> Any:
    """Return a value for a parameter: the next number or text of the message, or else an example."""
    if choices := field.get("enum"):
        words = _words_of(message)
        return max(choices, key=lambda choice: len(_words_of(str(choice)) & words))
    match field.get("type"):
        case "number" if numbers:
            return float(numbers.pop(0))
        case "integer" if numbers:
            return int(float(numbers.pop(0)))
        case "string" if name not in _WHOLE:
            texts = quoted or _NAME.findall(message) or numbers or re.findall(rf"[^\W_]{{{SHORT},}}", message)[-1:]
            text = texts[0] if texts else message
            if texts is quoted or texts is numbers:
                texts.pop(0)
            return text
        case "string":
            return message
        case _:
            return _example_of(field, schema)


def _example_of(field: JsonObject, schema: JsonObject) -> Any:
    """Return a value that a JSON Schema allows: its default, its first choice, or a short value of its type."""
    if "default" in field:
        return field["default"]
    if {"type": "null"} in (field.get("anyOf") or ()):  # also ends the recursion of a schema that refers to itself
        return None
    field = _resolve(field, schema)
    if choices := field.get("enum") or ([field["const"]] if "const" in field else None):
        return choices[0]
    match field.get("type"):
        case "object":
            properties = field.get("properties") or {}
            return {
                name: _example_of(properties[name], schema)
                for name in field.get("required") or ()
                if name in properties
            }
        case "array":
            return [_example_of(field.get("items") or {}, schema) for _ in range(int(field.get("minItems") or 0))]
        case "string":
            return "text"
        case "number" | "integer":
            return field.get("minimum", 1)
        case "boolean":
            return True
        case _:
            return None


def _resolve(field: JsonObject, schema: JsonObject) -> JsonObject:
    """Follow a reference to a definition of the schema, and take the first alternative of a choice of schemas."""
    if alternatives := field.get("anyOf"):
        return _resolve(alternatives[0], schema)
    if reference := field.get("$ref"):
        found = (schema.get("$defs") or {}).get(str(reference).rsplit("/", 1)[-1])
        return _resolve(found, schema) if found else {}
    return field


def _schema_of(tool: JsonObject) -> JsonObject:
    schema: JsonObject = tool.get("parametersJsonSchema") or {}
    return schema


def _format_example(tool: JsonObject) -> str:
    """Return a call of a tool as a user can write it."""
    schema = _schema_of(tool)
    fields = schema.get("properties") or {}
    args = (f"{name}={_example_of(fields[name], schema)!r}" for name in schema.get("required") or () if name in fields)
    return f"{tool['name']}({', '.join(args)})"


demo_model = FunctionModel(reply, pace_s=0.02)
