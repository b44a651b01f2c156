"""Whether an agent's code mentions `user:` or `app:` state, so that invocations that need none do not read any.

Judged by the source, once, when the agent is registered: by then nobody knows which keys will be used. A mention too
many costs two reads; one that is not found is told loudly, see `ScopesNotRead`.
"""

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from waystation.agents.base_agent import BaseAgent, listed
from waystation.agents.llm_agent import LlmAgent
from waystation.plugins.base_plugin import BasePlugin
from waystation.tools.agent_tool import AgentTool
from waystation.tools.authoring import agents_below
from waystation.tools.function_tool import FunctionTool

_MENTION = re.compile(r"""["'{]\s*(?:user|app):[\w"'{%]|\b(?:USER|APP)_PREFIX\b""")
_CALLBACKS = tuple(name for name in LlmAgent.model_fields if name.endswith("_callback"))


def uses_scopes(root: BaseAgent, plugins: Sequence[BasePlugin], package: Path | None = None) -> bool:
    """Whether the agents of a tree, or what runs beside them, mention such keys; `package` is where their code is."""
    sources = sorted(package.rglob("*.py")) if package else []
    if any(map(_mentioned_in, map(str, sources))):
        return True
    for _, agent in agents_below(root):
        if any(map(_mentions, _texts(agent))) or any(map(_used_by, _code(agent))):
            return True
    return any(_used_by(type(plugin)) for plugin in plugins)


def _texts(agent: BaseAgent) -> Iterator[str]:
    """Yield what an agent declares as text: it may come from anywhere, not only from its source."""
    for name in ("instruction", "global_instruction", "static_instruction", "output_key"):
        given = getattr(agent, name, None)
        if given is not None and not callable(given):
            yield f"{given!r}"


def _code(agent: BaseAgent) -> Iterator[Any]:
    yield type(agent)
    for name in ("instruction", "global_instruction"):
        if callable(given := getattr(agent, name, None)):
            yield given
    for name in _CALLBACKS:
        yield from listed(getattr(agent, name, None))
    for tool in agent.tools if isinstance(agent, LlmAgent) else ():
        if isinstance(tool, FunctionTool):
            yield tool.func
        elif not isinstance(tool, AgentTool):  # whose agent is in the tree
            yield tool if inspect.isroutine(tool) else type(tool)


def _used_by(code: Any) -> bool:
    """Whether the module of a function or class mentions such keys, or cannot be read although it is an author's."""
    while isinstance(code, partial):
        code = code.func
    code = inspect.unwrap(code)
    if not (inspect.isroutine(code) or isinstance(code, type)):
        code = type(code)
    names = {getattr(code, "__module__", None)}
    if inspect.ismethod(code):
        names.add(type(code.__self__).__module__)
    return any(map(_module_mentions, names))


def _module_mentions(name: str | None) -> bool:
    if name is None:
        return True
    if name.partition(".")[0] == "waystation" or name in sys.builtin_module_names:
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    return True if file is None else _mentioned_in(file)


@lru_cache(maxsize=1_000)
def _mentioned_in(file: str) -> bool:
    try:
        return file.endswith(".py") is False or _mentions(Path(file).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return True


def _mentions(text: str) -> bool:
    return _MENTION.search(text) is not None
