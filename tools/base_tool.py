"""The base class of all tools: name, description, declaration, settings and `run_async`.

Tools run in activities. Workflows never handle a tool object; the settings that a workflow needs are copied into each
recorded call.
"""

import sys
from collections.abc import Callable, Container, Iterator, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args

import structlog

from waystation.core import summary
from waystation.core.actions import ACTIONS
from waystation.core.approval import LONGEST, ApprovalPolicy, External, default_hint
from waystation.core.contract import MIN_HEARTBEAT_INTERVAL, Confirmation, Effect
from waystation.core.errors import AuthoringError, InvalidTool, NotJson
from waystation.core.payload import JsonObject, copy_json, decode, encode, to_plain_json
from waystation.tools import ToolContext, call_predicate, report_failure
from waystation.tools.json_schema import find_mistakes, json_schema, on_vertex, schema_problem
from waystation.tools.memoize import memoize

log = structlog.get_logger(__name__)

OnError = Literal["tell", "raise"]
MAX_RESPONSE_SCHEMA_BYTES = 16_000
"""Size limit for a response schema, which is copied into every recorded call."""


_Method = TypeVar("_Method", bound=Callable[..., Any])
_CACHEABLE: set[Callable[..., Any]] = set()
"""Methods marked `@cacheable`. Kept in a set, because `functools.wraps` would copy an attribute to a wrapper."""


def cacheable(declares: _Method) -> _Method:
    """Mark a `_get_declaration` method as cacheable: its result depends only on the tool's name and description."""
    _CACHEABLE.add(declares)
    return declares


class BaseTool:
    """Base class for your own tools. Declare the tool in `_get_declaration` and do the work in `run_async`.

    The settings below are attributes. A subclass can set them in the class body or in `__init__`.
    """

    name: str
    description: str
    is_long_running: bool = False
    """Whether the final response may arrive after the tool has returned."""
    custom_metadata: Mapping[str, Any] = MappingProxyType({})
    behavior: Any = None
    """Applies to live sessions, as does `response_scheduling`. Both are accepted but have no effect."""
    response_scheduling: Any = None

    timeout: timedelta | None = None
    """Time limit for one attempt. If None, the worker's default applies."""
    retries: int = 0
    """Number of retries if the tool raises an exception. For lost workers, see `effect`."""
    heartbeat_timeout: timedelta | None = None
    """Maximum time between calls to `tool_context.heartbeat()`. After that, the worker is considered lost."""
    cancel_within: timedelta | None = None
    """How soon a cancellation reaches a running call. If None, a third of the heartbeat timeout."""
    task_queue: str | None = None
    """The tool's task queue. If None, the agent's task queue is used."""
    effect: Effect | None = None
    """Effect class of the tool, which says what happens if a call runs twice.

    `read`: nothing, because the call does not change anything. `repeatable`: the tool can handle it, for example
    with an idempotency key. `once`: the call must never run twice, so if its worker is lost, the outcome is reported
    as unknown. None: `once` for a call that an approver confirmed, otherwise `repeatable`.
    """
    quick: bool = False
    """Whether calls usually take a few milliseconds. Calls that no approver is asked about then run as local activities
    in the worker that runs the workflow, which saves time and history events. Requires the effect `read`."""
    on_error: OnError = "tell"
    """How to handle an exception: `tell` reports it to the model; `raise` ends the invocation, as in ADK."""
    deadline: timedelta | None = None
    """How long an approver has to answer or confirm a call. If None, the deadline of `approval` applies, or 30 days."""
    require_confirmation: bool | Callable[..., Any] = False
    """Whether an approver must confirm each call, or a function that decides this for a call. The function receives
    the arguments that match its parameter names, converted to the tool's types."""
    approval: ApprovalPolicy | None = None
    """Approval policy. If set, every call waits for approval unless `check_require_confirmation` returns False. A
    long-running tool starts immediately; instead, the answer to its call must satisfy the policy."""
    title: str | None = None
    """One line on the effect of a call, for approvers, such as `Pay {amount:,.2f} EUR to {payee}`. A name in braces
    stands for the value of that argument. A number may have a format: `,` separates thousands, `.2f` rounds to two
    digits, and `,.2f` does both."""
    answered_by: External | None = None
    """The machine that answers the calls of a long-running tool, or None if people do. An approval policy then asks
    people before the tool starts, as for any other tool."""
    response_schema: Any = None
    """Schema of the `response` in an answer to a long-running call: a pydantic model, or a JSON schema that describes
    an object."""

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
        """Modify a `waystation.models.llm_request.LlmRequest` before it is sent. By default, add this tool to it."""
        llm_request.append_tools([self])

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Run the tool and return the result for the model."""
        raise NotImplementedError(f"{type(self).__name__} has no run_async; define it.")

    async def check_require_confirmation(self, args: JsonObject, tool_context: ToolContext) -> bool:
        """Return whether an approver must confirm this call before it runs.

        If `require_confirmation` is a function, return its result, or True if it raises an exception. Return False if
        the arguments are invalid, because the tool then rejects the call without running.
        """
        if not callable(self.require_confirmation):
            return bool(self.require_confirmation) or self.gated
        seen = self.seen(args, tool_context)
        if seen is None:
            return False
        try:
            return await call_predicate(self.require_confirmation, seen, tool_context)
        except Exception as error:  # noqa: BLE001  # user code; an approver decides when it fails
            report_failure("confirmation_predicate.failed", self.name, error)
            return True

    async def confirmation_for(self, args: JsonObject, tool_context: ToolContext) -> Confirmation | None:
        """Return the question to ask the approver before this call, or None if confirmation is not required."""
        is_required = await self.check_require_confirmation(args, tool_context)
        return Confirmation(hint=self.confirmation_hint()) if is_required else None

    @property
    def gated(self) -> bool:
        """Whether the tool's approval policy requires approval before every call."""
        return self.approval is not None and not self.is_answered_by_people

    @property
    def is_answered_by_people(self) -> bool:
        """Whether people provide the response to a call after it has started."""
        return self.is_long_running and self.answered_by is None

    def seen(self, args: JsonObject, tool_context: ToolContext) -> Mapping[str, Any] | None:
        """Return the arguments to pass to predicates, or None if the tool would reject the call without running."""
        return args

    def edited(self, args: JsonObject, shown: JsonObject) -> JsonObject:
        """Validate arguments that an approver edited and convert them for the tool.

        Args:
            args: The edited arguments.
            shown: The arguments before the edit.

        Raises:
            ValueError: Some arguments are invalid. The message lists them with the reasons.
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
        """Return `response_schema` as a JSON schema, or None if it is not set."""
        return None if self.response_schema is None else json_schema(self.response_schema)

    def confirmation_hint(self) -> str:
        """Return the text that asks the approver to confirm a call."""
        return default_hint(self.name)

    def effect_when(self, *, confirmed: bool) -> Effect:
        """Return the effect class of a call. `confirmed` says whether the call required an approver's confirmation."""
        return self.effect or ("once" if confirmed else "repeatable")

    def setting_problems(self) -> list[str]:
        """Return one sentence for each invalid setting."""
        problems = []
        for setting in ("timeout", "heartbeat_timeout", "cancel_within", "deadline"):
            value = getattr(self, setting)
            if value is not None and not isinstance(value, timedelta):
                problems.append(f"`{setting}` is {value!r}; use a timedelta, such as timedelta(seconds=30).")
            elif value is not None and value <= timedelta():
                problems.append(f"`{setting}` is {value!r}; use a duration above zero.")
            elif value is not None and setting == "cancel_within" and value < MIN_HEARTBEAT_INTERVAL:
                least = MIN_HEARTBEAT_INTERVAL.total_seconds()
                problems.append(f"`{setting}` is {value!r}; use at least {least:g} s, as a heartbeat takes that long.")
            elif value is not None and value > LONGEST:
                problems.append(f"`{setting}` is {value.days} days; use at most {LONGEST.days} days (100 years).")
        queue: object = self.task_queue
        confirms = self.require_confirmation
        rules = (
            ("retries", type(self.retries) is int and self.retries >= 0, "a whole number of at least 0"),
            ("effect", self.effect in (None, *get_args(Effect)), "'read', 'repeatable' or 'once'"),
            ("on_error", self.on_error in get_args(OnError), "'tell' or 'raise'"),
            ("task_queue", isinstance(queue, str | None) and queue != "", "the name of a task queue"),
            (
                "answered_by",
                self.answered_by is None or (self.is_long_running and isinstance(self.answered_by, External)),
                "External('claims'), and only for a long-running tool",
            ),
            ("require_confirmation", isinstance(confirms, bool) or callable(confirms), "True, False or a function"),
        )
        problems += [
            f"`{name}` is {getattr(self, name)!r}; use {remedy}." for name, valid, remedy in rules if not valid
        ]
        return [*problems, *self._quick_problems(), *self._approval_problems(), *self._response_schema_problems()]

    def title_problems(self, parameters: Container[str]) -> Iterator[str]:
        """Yield one sentence for each mistake in `title`. It may name the tool's `parameters`."""
        try:
            names = [name for _, name, _ in summary.parse_title(self.title or "") if name is not None]
        except (TypeError, ValueError) as error:
            yield f"`title` is {self.title!r}: {error}."
        else:
            unknown = [name for name in names if name not in parameters]
            yield from (f"`title` names {name!r}, which is not a parameter of the tool." for name in unknown)

    def _quick_problems(self) -> Iterator[str]:
        if not isinstance(self.quick, bool):
            yield f"`quick` is {self.quick!r}; use True or False."
        elif self.quick:
            if self.effect != "read":
                yield (
                    f"`quick` is True, but `effect` is {self.effect!r}, and a quick tool may run twice; "
                    "set `effect='read'` if the tool only reads, or remove `quick`."
                )
            if self.task_queue is not None:
                yield (
                    f"`quick` is True, but `task_queue` is {self.task_queue!r}, and a quick tool runs in the worker "
                    "that runs the workflow; remove one of them."
                )
            if self.is_long_running:
                yield "`quick` is True, but the tool is long-running; remove `quick`."

    def _approval_problems(self) -> Iterator[str]:
        policy = self.approval
        if policy is None:
            return
        if not isinstance(policy, ApprovalPolicy):
            yield f"`approval` is {policy!r}; use an ApprovalPolicy."
            return
        settles = [
            row.name
            for row in ACTIONS.values()
            if row.listable
            and (row.decides and "long_running" in row.kinds if self.is_answered_by_people else row.approves)
        ]
        if policy.actions is not None and not set(policy.actions).intersection(settles):
            yield (
                f"its `approval` allows only {', '.join(map(repr, policy.actions))}, so no call can be approved; "
                f"add one of {', '.join(map(repr, settles))} to `actions`."
            )
        yield from (f"its `approval` {mistake}" for mistake in policy.mistakes())
        if policy.remember is not None and self.is_answered_by_people:
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
    """Return a new declaration that omits empty fields."""
    declared: JsonObject = {"name": name}
    if description:
        declared["description"] = description
    if schema is not None:
        declared["parametersJsonSchema"] = copy_json(schema)
    if response:
        declared["responseJsonSchema"] = copy_json(response)
    return declared


def declaration_key(tool: BaseTool) -> tuple[str, str, bool] | None:
    """Return the values that a tool's declaration depends on, or None if they are unknown."""
    function = getattr(tool._get_declaration, "__func__", None)
    return (tool.name, tool.description, on_vertex()) if function in _CACHEABLE else None


def declare(tool: BaseTool) -> JsonObject | None:
    """Return a tool's declaration as plain JSON, or None if the tool is hidden from models.

    A tool's `_get_declaration` may also return a genai FunctionDeclaration, as in tools written for ADK.

    Raises:
        InvalidTool: The tool's declaration is not usable.
    """
    if (made_of := declaration_key(tool)) is None:
        return _create_declaration(tool)
    # Cache the declaration as bytes. Callers may modify what they get, and decoding is the fastest way to copy it.
    declared: JsonObject | None = decode(memoize(tool, "_declared", made_of, lambda: encode(_create_declaration(tool))))
    return declared


def _create_declaration(tool: BaseTool) -> JsonObject | None:
    try:
        declared = tool._get_declaration()
    except AuthoringError:
        raise
    except Exception as error:  # user code
        raise InvalidTool(tool.name, f"`_get_declaration` failed ({type(error).__name__}: {error}).") from error
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
            f"its declaration has the name {usable.get('name')!r}; use the tool's name in the declaration.",
        )
    return usable


def _from_genai(declared: Any) -> Any:
    # Look the module up instead of importing it: a tool that returns a genai object has already imported genai.
    types = sys.modules.get("google.genai.types")
    if types is None or not isinstance(declared, types.FunctionDeclaration):
        return declared
    usable = declared.model_dump(mode="json", by_alias=True, exclude_none=True)
    if declared.parameters is not None:
        del usable["parameters"]
        schema = declared.parameters.json_schema
        usable["parametersJsonSchema"] = schema.model_dump(mode="json", by_alias=True, exclude_none=True)
    return usable
