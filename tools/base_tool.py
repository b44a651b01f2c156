"""The base class of all tools: name, description, declaration, settings and `run_async`.

Tools run in activities. Workflows never see a tool: the settings that a workflow needs are copied into each recorded
call.
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
    default_hint,
    encode,
    to_plain_json,
)
from waystation.tools import ToolContext, call_predicate, find_author_line
from waystation.tools.json_schema import find_mistakes, json_schema, on_vertex, schema_problem

log = structlog.get_logger(__name__)

OnError = Literal["tell", "raise"]
MAX_RESPONSE_SCHEMA_BYTES = 16_000
"""Every recorded call contains the schema."""
_SETTLES: Mapping[bool, tuple[Decision, ...]] = {
    True: ("approve", "reject", "respond"),
    False: ("approve", "edit"),
}
"""The decisions that close a long-running call (True), or that let any other call run (False)."""


_Method = TypeVar("_Method", bound=Callable[..., Any])
_CACHEABLE: set[Callable[..., Any]] = set()
"""A set, not an attribute of the function: `functools.wraps` would copy an attribute to an author's wrapper."""


def cacheable(declares: _Method) -> _Method:
    """Mark a `_get_declaration` whose result depends only on the tool's name and description, so it can be cached."""
    _CACHEABLE.add(declares)
    return declares


class BaseTool:
    """Base class for your own tools: declare the tool in `_get_declaration` and do the work in `run_async`.

    The settings below are attributes. A subclass may set them in its body or in `__init__`.
    """

    name: str
    description: str
    is_long_running: bool = False
    """Whether the final response may arrive after the tool has returned."""
    custom_metadata: Mapping[str, Any] = MappingProxyType({})
    behavior: Any = None
    """For live sessions, like `response_scheduling`. Accepted and not used."""
    response_scheduling: Any = None

    timeout: timedelta | None = None
    """Limit for one attempt. None: the worker's default."""
    retries: int = 0
    """Further attempts after the tool raised. `effect` covers lost workers."""
    heartbeat_timeout: timedelta | None = None
    """Longest time without `tool_context.heartbeat()`. After it, the worker counts as lost."""
    task_queue: str | None = None
    """Task queue of the tool. None: the task queue of the agent."""
    effect: Effect | None = None
    """Effect of running a call twice.

    `read`: the call changes nothing. `repeatable`: the tool tolerates it, for instance with its idempotency key.
    `once`: the call must never run twice, so the outcome is unknown when its worker is lost. None: `once` for a call
    that an approver confirmed, otherwise `repeatable`.
    """
    on_error: OnError = "tell"
    """`tell` reports an exception to the model; `raise` ends the invocation, as in ADK."""
    deadline: timedelta | None = None
    """Time for an approver to answer or confirm a call. None: the deadline of `approval`, or else 30 days."""
    require_confirmation: bool | Callable[..., Any] = False
    """Whether an approver must confirm each call, or a function that decides it. The function receives the arguments
    that it names, converted to the tool's types."""
    approval: ApprovalPolicy | None = None
    """Policy for approvers. With a policy, every call waits for approval unless `check_require_confirmation` returns
    False. A long-running tool runs at once, and its answer must satisfy the policy."""
    response_schema: Any = None
    """For a long-running tool: the form of the answer's `response`, as a pydantic model or the JSON schema of an
    object."""

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
        """Return `{"name", "description", "parametersJsonSchema"}`, or None to hide the tool from models."""
        return None

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: Any) -> None:
        """Change a model request, a `waystation.models.llm_request.LlmRequest`. The default adds the tool."""
        llm_request.append_tools([self])

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Run the tool and return its result for the model."""
        raise NotImplementedError(f"{type(self).__name__} has no run_async; define it.")

    async def check_require_confirmation(self, args: JsonObject, tool_context: ToolContext) -> bool:
        """Whether an approver must confirm this call before it runs.

        True when the `require_confirmation` function raises. False when that function exists and the arguments are
        invalid: the tool then rejects the call without running.
        """
        if not callable(self.require_confirmation):
            return bool(self.require_confirmation) or self.gated
        seen = self.seen(args, tool_context)
        if seen is None:
            return False
        try:
            return await call_predicate(self.require_confirmation, seen, tool_context)
        except Exception as error:  # noqa: BLE001  # author's code; an approver decides when it fails
            # Log only the type: the text may quote arguments.
            log.warning(
                "confirmation_predicate.failed",
                tool=self.name,
                error_type=type(error).__name__,
                place=find_author_line(error),
            )
            return True

    async def confirmation_for(self, args: JsonObject, tool_context: ToolContext) -> Confirmation | None:
        """Return the question for the approver before this call runs, or None when the call needs no confirmation."""
        is_required = await self.check_require_confirmation(args, tool_context)
        return Confirmation(hint=self.confirmation_hint()) if is_required else None

    @property
    def gated(self) -> bool:
        """Whether every call needs approval before it runs, because of the policy."""
        return self.approval is not None and not self.is_long_running

    def seen(self, args: JsonObject, tool_context: ToolContext) -> Mapping[str, Any] | None:
        """Return the arguments for predicates; None when the tool would reject the call without running."""
        return args

    def edited(self, args: JsonObject, shown: JsonObject) -> JsonObject:
        """Return the arguments that an approver edited, converted for the tool. `shown` has those before the edit.

        Raises:
            ValueError: Arguments are invalid; the text names them and the reasons.
        """
        schema = (declare(self) or {}).get("parametersJsonSchema")
        try:
            wrong = find_mistakes(schema, args) if schema else []
        except ValueError as error:
            raise ValueError(f"the parameter schema of `{self.name}` is invalid: {error}") from None
        if wrong:
            raise ValueError("; ".join(wrong))
        return args

    def answer_schema(self) -> JsonObject | None:
        """Return `response_schema` as a JSON schema."""
        return None if self.response_schema is None else json_schema(self.response_schema)

    def confirmation_hint(self) -> str:
        """Return the text for the approver who confirms a call."""
        return default_hint(self.name)

    def effect_when(self, *, confirmed: bool) -> Effect:
        """Return the effect class of a call; `confirmed` for a call that an approver had to confirm."""
        return self.effect or ("once" if confirmed else "repeatable")

    def setting_problems(self) -> list[str]:
        """Return the invalid settings, one sentence each."""
        problems = []
        for setting in ("timeout", "heartbeat_timeout", "deadline"):
            value = getattr(self, setting)
            if value is not None and not isinstance(value, timedelta):
                problems.append(f"`{setting}` is {value!r}; use a timedelta, such as timedelta(seconds=30).")
            elif value is not None and value <= timedelta():
                problems.append(f"`{setting}` is {value!r}; use a duration above zero.")
            elif value is not None and value > LONGEST:
                problems.append(f"`{setting}` is {value.days} days; use at most {LONGEST.days} days (100 years).")
        queue: object = self.task_queue
        confirms = self.require_confirmation
        rules = (
            ("retries", type(self.retries) is int and self.retries >= 0, "a whole number of at least 0"),
            ("effect", self.effect in (None, *get_args(Effect)), "'read', 'repeatable' or 'once'"),
            ("on_error", self.on_error in get_args(OnError), "'tell' or 'raise'"),
            ("task_queue", isinstance(queue, str | None) and queue != "", "the name of a task queue"),
            ("require_confirmation", isinstance(confirms, bool) or callable(confirms), "True, False or a function"),
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
                f"its `approval` allows only {', '.join(map(repr, policy.actions))}, so no call can be approved; "
                f"add one of {', '.join(map(repr, settles))} to `actions`."
            )
        yield from (f"its `approval` {mistake}" for mistake in policy.mistakes())
        if policy.remember is not None and self.is_long_running:
            yield "its `approval` has `remember`, but every long-running call needs its own answer; remove `remember`."

    def _response_schema_problems(self) -> Iterator[str]:
        if self.response_schema is None:
            return
        if not self.is_long_running:
            yield "it has a `response_schema`, which only a long-running tool can have; remove it."
        try:
            schema = self.answer_schema() or {}
        except Exception as error:  # noqa: BLE001  # a type's own schema hook can raise anything
            yield f"its `response_schema` has no JSON schema ({type(error).__name__}); use a pydantic model."
            return
        if problem := schema_problem(schema):
            yield f"its `response_schema` is not a valid JSON schema: {problem}."
        elif schema.get("type") != "object":
            yield "its `response_schema` does not describe an object; use a pydantic model."
        elif (size := len(encode(schema))) > MAX_RESPONSE_SCHEMA_BYTES:
            yield f"its `response_schema` has {size} bytes; use at most {MAX_RESPONSE_SCHEMA_BYTES}."

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def declaration(
    name: str, description: str, schema: JsonObject | None, response: JsonObject | None = None
) -> JsonObject:
    """Return a new declaration without empty fields."""
    declared: JsonObject = {"name": name}
    if description:
        declared["description"] = description
    if schema is not None:
        declared["parametersJsonSchema"] = copy_json(schema)
    if response:
        declared["responseJsonSchema"] = copy_json(response)
    return declared


def declaration_key(tool: BaseTool) -> tuple[str, str, bool] | None:
    """Return the values that a declaration depends on; None when they are unknown."""
    function = getattr(tool._get_declaration, "__func__", None)
    return (tool.name, tool.description, on_vertex()) if function in _CACHEABLE else None


def declare(tool: BaseTool) -> JsonObject | None:
    """Return the declaration of any tool as plain JSON, or None for a tool that is hidden from models.

    Accepts a `_get_declaration` that returns a genai FunctionDeclaration, as tools written for ADK do.

    Raises:
        InvalidTool: The tool has no usable declaration.
    """
    if (made_of := declaration_key(tool)) is None:
        return _create_declaration(tool)
    # Cached as bytes: callers may change a declaration, and decoding is the fastest way to copy it.
    declared: JsonObject | None = decode(memoize(tool, "_declared", made_of, lambda: encode(_create_declaration(tool))))
    return declared


def _create_declaration(tool: BaseTool) -> JsonObject | None:
    try:
        declared = tool._get_declaration()
    except AuthoringError:
        raise
    except Exception as error:  # author's code
        raise InvalidTool(tool.name, f"its declaration failed ({type(error).__name__}: {error}).") from error
    if declared is None:
        return None
    try:
        usable = to_plain_json(_from_genai(declared))
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
    # Looked up, not imported: a tool that returns a genai object has imported genai already.
    types = sys.modules.get("google.genai.types")
    if types is None or not isinstance(declared, types.FunctionDeclaration):
        return declared
    usable = declared.model_dump(mode="json", by_alias=True, exclude_none=True)
    if declared.parameters is not None:
        del usable["parameters"]
        schema = declared.parameters.json_schema
        usable["parametersJsonSchema"] = schema.model_dump(mode="json", by_alias=True, exclude_none=True)
    return usable
