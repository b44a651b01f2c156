"""What every tool is: a name, a description and a declaration, a way to run, and how durably it is carried out.

Tools run in activities. Nothing here is ever seen by a workflow: what the workflow has to know about a tool
is copied into each recorded call.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args

import structlog

from waystation.agents.memoize import memoize
from waystation.core import (
    LONGEST,
    ApprovalPolicy,
    AuthoringError,
    Confirmation,
    Decision,
    Effect,
    InvalidTool,
    JsonObject,
    NotJson,
    copy_json,
    decode,
    encode,
    plain,
    usual_hint,
)
from waystation.tools import ToolContext, call_predicate, place_of
from waystation.tools.json_schema import json_schema, mistakes, on_vertex, schema_problem

log = structlog.get_logger(__name__)

OnError = Literal["tell", "raise"]
MAX_RESPONSE_SCHEMA_BYTES = 16_000
"""The schema is recorded with each call."""
_SETTLES: Mapping[bool, tuple[Decision, ...]] = {
    True: ("approve", "reject", "respond"),
    False: ("approve", "edit"),
}
"""What closes a long-running call, and what has any other call run."""


_Method = TypeVar("_Method", bound=Callable[..., Any])
_SETTLED: set[Callable[..., Any]] = set()
"""Not a mark on the function: `functools.wraps` would give that to whatever an author puts around it."""


def settled(declares: _Method) -> _Method:
    """Mark a `_get_declaration` that says the same for as long as the tool has the same name and description."""
    _SETTLED.add(declares)
    return declares


class BaseTool:
    """A tool of your own: subclass it, declare it with `_get_declaration`, and do the work in `run_async`.

    The settings below are attributes: a subclass may set them in its body, in `__init__` or not at all.
    """

    name: str
    description: str
    is_long_running: bool = False
    """Whether the answer may come from outside, after the tool itself has returned."""
    custom_metadata: Mapping[str, Any] = MappingProxyType({})
    behavior: Any = None
    """For live sessions, like `response_scheduling`: kept, and not used."""
    response_scheduling: Any = None

    timeout: timedelta | None = None
    """How long one attempt may take; None: the worker's default."""
    retries: int = 0
    """How often the tool is run again after it raised. A lost worker is another matter: see `effect`."""
    heartbeat_timeout: timedelta | None = None
    """How long the tool may go without `tool_context.heartbeat()` before its worker counts as lost."""
    task_queue: str | None = None
    """Where the tool runs, when not on the task queue of the agent."""
    effect: Effect | None = None
    """What a repetition would do.

    `read`: nothing changes. `repeatable`: the tool copes, for instance by its idempotency key. `once`: it
    must never run twice, so a lost worker leaves the outcome unknown. None: `once` when a person had to
    confirm the call, else `repeatable`.
    """
    on_error: OnError = "tell"
    """What an exception does: `tell` the model and go on, or `raise` out of the invocation, as in ADK."""
    deadline: timedelta | None = None
    """How long a person may take to answer or to confirm a call; None: that of `approval`, or else 30 days."""
    require_confirmation: bool | Callable[..., Any] = False
    """Whether a person has to agree before a call runs, or a function that decides it from those of the arguments that
    it takes, as the tool will see them."""
    approval: ApprovalPolicy | None = None
    """Who may answer. With one, every call waits for a person unless `check_require_confirmation` says otherwise; a
    long-running tool runs, and its answer has to satisfy the policy."""
    response_schema: Any = None
    """For a long-running tool: what the `response` is with which a call is answered, as a pydantic model or a JSON
    schema of an object."""

    def __init__(
        self,
        *,
        name: str,
        description: str,
        is_long_running: bool = False,
        custom_metadata: Mapping[str, Any] | None = None,
        behavior: Any = None,
        response_scheduling: Any = None,
    ) -> None:
        self.name = name
        self.description = description
        self.is_long_running = is_long_running
        self.custom_metadata = custom_metadata or {}
        self.behavior, self.response_scheduling = behavior, response_scheduling

    def _get_declaration(self) -> JsonObject | None:
        """Return `{"name", "description", "parametersJsonSchema"}`, or None to stay unknown to models."""
        return None

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: Any) -> None:
        """Change the request of a model call, a `waystation.models.llm_request.LlmRequest`; here: declare the tool."""
        llm_request.append_tools([self])

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Do the work and return what the model is told."""
        raise NotImplementedError(f"{type(self).__name__} has no run_async; define it.")

    async def check_require_confirmation(self, args: JsonObject, tool_context: ToolContext) -> bool:
        """Whether a person has to agree before this call runs.

        A function that raises counts as yes. Arguments that the tool would refuse need no confirmation by a function,
        since such a call is answered without running anything.
        """
        if not callable(self.require_confirmation):
            return bool(self.require_confirmation) or self.gated
        seen = self.seen(args, tool_context)
        if seen is None:
            return False
        try:
            return await call_predicate(self.require_confirmation, seen, tool_context)
        except Exception as error:  # noqa: BLE001  # author's code; whatever it raises, a person decides
            # Only the type: the text may quote arguments.
            log.warning(
                "confirmation_predicate.failed", tool=self.name, error_type=type(error).__name__, place=place_of(error)
            )
            return True

    async def confirmation_for(self, args: JsonObject, tool_context: ToolContext) -> Confirmation | None:
        """Return what a person is asked before this call runs, or None when nobody is."""
        asks = await self.check_require_confirmation(args, tool_context)
        return Confirmation(hint=self.confirmation_hint()) if asks else None

    @property
    def gated(self) -> bool:
        """Whether a person has to agree before any call runs, because of the policy."""
        return self.approval is not None and not self.is_long_running

    def seen(self, args: JsonObject, tool_context: ToolContext) -> Mapping[str, Any] | None:
        """Return the arguments as predicates see them; None when the tool would refuse them without doing anything."""
        return args

    def edited(self, args: JsonObject, shown: JsonObject) -> JsonObject:
        """Return arguments that a person gives instead of those that were shown, as the tool will take them.

        Raises:
            ValueError: They do not fit; the text says which and why.
        """
        schema = (declare(self) or {}).get("parametersJsonSchema")
        try:
            wrong = mistakes(schema, args) if schema else []
        except ValueError as error:
            raise ValueError(f"what `{self.name}` takes cannot be told, as its schema is wrong: {error}") from None
        if wrong:
            raise ValueError("; ".join(wrong))
        return args

    def answer_schema(self) -> JsonObject | None:
        """Return `response_schema` as JSON schema."""
        return None if self.response_schema is None else json_schema(self.response_schema)

    def confirmation_hint(self) -> str:
        """Return what a person reads who is asked to confirm a call."""
        return usual_hint(self.name)

    def effect_when(self, *, confirmed: bool) -> Effect:
        """Return the effect class of a call, given whether a person had to confirm it."""
        return self.effect or ("once" if confirmed else "repeatable")

    def setting_problems(self) -> list[str]:
        """Return what is wrong with the settings, one sentence each."""
        problems = []
        for setting in ("timeout", "heartbeat_timeout", "deadline"):
            value = getattr(self, setting)
            if value is not None and not isinstance(value, timedelta):
                problems.append(f"`{setting}` is {value!r}; use a timedelta, such as timedelta(seconds=30).")
            elif value is not None and value <= timedelta():
                problems.append(f"`{setting}` is {value!r}; use a duration above zero.")
            elif value is not None and value > LONGEST:
                problems.append(f"`{setting}` is {value.days} days; use at most {LONGEST.days}, a hundred years.")
        queue: object = self.task_queue
        asks = self.require_confirmation
        rules = (
            ("retries", type(self.retries) is int and self.retries >= 0, "a whole number of at least 0"),
            ("effect", self.effect in (None, *get_args(Effect)), "'read', 'repeatable' or 'once'"),
            ("on_error", self.on_error in get_args(OnError), "'tell' or 'raise'"),
            ("task_queue", isinstance(queue, str | None) and queue != "", "the name of a task queue"),
            ("require_confirmation", isinstance(asks, bool) or callable(asks), "True, False or a function"),
        )
        problems += [
            f"`{name}` is {getattr(self, name)!r}; use {remedy}." for name, valid, remedy in rules if not valid
        ]
        return [*problems, *self._approval_problems(), *self._response_schema_problems()]

    def _approval_problems(self) -> Iterator[str]:
        policy = self.approval
        if policy is None:
            return
        if not isinstance(policy, ApprovalPolicy):
            yield f"`approval` is {policy!r}; use an ApprovalPolicy."
            return
        settles = _SETTLES[self.is_long_running]
        if policy.actions is not None and not set(policy.actions) & set(settles):
            yield (
                f"its `approval` allows {', '.join(map(repr, policy.actions))}, with which no call of it can ever be "
                f"let through; add one of {', '.join(map(repr, settles))} to `actions`."
            )
        yield from (f"its `approval` {mistake}" for mistake in policy.mistakes())
        if policy.remember is not None and self.is_long_running:
            yield "its `approval` has `remember`, but a long-running call is answered each time; leave it out."

    def _response_schema_problems(self) -> Iterator[str]:
        if self.response_schema is None:
            return
        if not self.is_long_running:
            yield "it has a `response_schema`, but only a long-running tool is answered with a response; leave it out."
        try:
            schema = self.answer_schema() or {}
        except Exception as error:  # noqa: BLE001  # whatever a type raises, it is of no use
            yield f"its `response_schema` has no JSON schema ({type(error).__name__}); use a pydantic model."
            return
        if problem := schema_problem(schema):
            yield f"its `response_schema` is no JSON schema: {problem}."
        elif schema.get("type") != "object":
            yield "its `response_schema` is not of an object, which a response is; use a pydantic model."
        elif (size := len(encode(schema))) > MAX_RESPONSE_SCHEMA_BYTES:
            yield f"its `response_schema` is {size} bytes; at most {MAX_RESPONSE_SCHEMA_BYTES} can be recorded."

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def declaration(
    name: str, description: str, schema: JsonObject | None, response: JsonObject | None = None
) -> JsonObject:
    """Return a declaration of its own; what is empty is left out."""
    declared: JsonObject = {"name": name}
    if description:
        declared["description"] = description
    if schema is not None:
        declared["parametersJsonSchema"] = copy_json(schema)
    if response:
        declared["responseJsonSchema"] = copy_json(response)
    return declared


def declared_by(tool: BaseTool) -> tuple[str, str, bool] | None:
    """Return what a declaration depends on; None when only the tool knows."""
    function = getattr(tool._get_declaration, "__func__", None)
    return (tool.name, tool.description, on_vertex()) if function in _SETTLED else None


def declare(tool: BaseTool) -> JsonObject | None:
    """Return the declaration of any tool as plain JSON, or None when no model is to know it.

    A `_get_declaration` that was written for ADK and returns a genai FunctionDeclaration is understood.

    Raises:
        InvalidTool: The tool has no usable declaration.
    """
    if (made_of := declared_by(tool)) is None:
        return _declared(tool)
    # As bytes, because reading them is the quickest way to a copy: whoever gets a declaration may change it.
    declared: JsonObject | None = decode(memoize(tool, "_declared", made_of, lambda: encode(_declared(tool))))
    return declared


def _declared(tool: BaseTool) -> JsonObject | None:
    try:
        declared = tool._get_declaration()
    except AuthoringError:
        raise
    except Exception as error:  # author's code
        raise InvalidTool(tool.name, f"its declaration failed ({type(error).__name__}: {error}).") from error
    if declared is None:
        return None
    try:
        usable = plain(_from_genai(declared))
    except NotJson as error:
        raise InvalidTool(tool.name, f"its declaration is not JSON: {error}") from error
    if not isinstance(usable, dict) or not isinstance(usable.get("parametersJsonSchema", {}), dict):
        raise InvalidTool(
            tool.name,
            '`_get_declaration` must return {"name", "description", "parametersJsonSchema"} or None.',
        )
    if usable.get("name") != tool.name:
        raise InvalidTool(
            tool.name,
            f"its declaration is named {usable.get('name')!r}; use the same name in both places.",
        )
    return usable


def _from_genai(declared: Any) -> Any:
    # Looked up, not imported: who returns one of its objects has imported genai already.
    types = sys.modules.get("google.genai.types")
    if types is None or not isinstance(declared, types.FunctionDeclaration):
        return declared
    usable = declared.model_dump(mode="json", by_alias=True, exclude_none=True)
    if declared.parameters is not None:
        del usable["parameters"]
        schema = declared.parameters.json_schema
        usable["parametersJsonSchema"] = schema.model_dump(mode="json", by_alias=True, exclude_none=True)
    return usable
