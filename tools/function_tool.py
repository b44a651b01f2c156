"""Functions as tools."""

import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

from pydantic import ValidationError

from waystation.core import ApprovalPolicy, Effect, InvalidTool, JsonObject
from waystation.tools import (
    BaseTool,
    OnError,
    Signature,
    ToolContext,
    argument_mistakes,
    cacheable,
    declaration,
    doc_of,
    flatten_for_vertex,
    invoke,
    name_of,
    on_vertex,
)


class ArgumentsRejected(dict[str, Any]):
    """The response to a call with invalid arguments; the function was not called. Source: adk-semantics 1.4."""

    @classmethod
    def missing(cls, tool: str, parameters: Sequence[str]) -> Self:
        """Return the response that names the missing mandatory parameters, in ADK's words."""
        return cls(
            error=f"Invoking `{tool}()` failed as the following mandatory input parameters are not "
            "present:\n" + "\n".join(parameters) + "\nYou could retry calling this tool, but it is IMPORTANT for "
            "you to provide all the mandatory parameters."
        )

    @classmethod
    def wrong(cls, tool: str, mistakes: Sequence[str]) -> Self:
        """Return the response that lists the invalid arguments, in the words of ADK's opt-in validation."""
        return cls(
            error=f"Invoking `{tool}()` failed due to argument validation errors:\n"
            + "\n".join(mistakes)
            + "\nYou could retry calling this tool with corrected argument types."
        )


class FunctionTool(BaseTool):
    """A Python function as a tool. The model sees its name, docstring and annotations.

    A parameter annotated `ToolContext`, or else one named `tool_context`, receives the context. Arguments are
    converted to the annotated types; the model receives an error for arguments that cannot be converted. Sync functions
    run in threads. A generator returns the one value that it yields.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        *,
        require_confirmation: bool | Callable[..., Any] = False,
        hint: str | None = None,
        timeout: timedelta | None = None,
        retries: int = 0,
        heartbeat_timeout: timedelta | None = None,
        task_queue: str | None = None,
        effect: Effect | None = None,
        on_error: OnError = "tell",
        deadline: timedelta | None = None,
        approval: ApprovalPolicy | None = None,
    ) -> None:
        """Wrap `func`.

        Args:
            func: A function, coroutine function, method, partial or callable object.
            require_confirmation: Whether an approver must confirm each call, or a function that decides it. The
                function receives the arguments that it names, converted to the tool's types.
            hint: Text for the approver.
            timeout: Limit for one attempt. BaseTool describes this and the following settings.
            retries: Further attempts after the function raised.
            heartbeat_timeout: Longest time without a heartbeat.
            task_queue: Task queue of the function; the agent's by default.
            effect: Effect of running the function twice.
            on_error: `tell` reports an exception to the model, `raise` ends the invocation.
            deadline: Time for the approver to confirm.
            approval: Policy for approvers. Every call then waits for approval, or only the calls that
                `require_confirmation` selects.

        Raises:
            InvalidTool: A setting has an invalid value.
        """
        if not callable(func):
            raise TypeError(f"Expected a callable object, got {type(func).__name__}")
        super().__init__(name=name_of(func), description=doc_of(func), is_long_running=self.is_long_running)
        self.func = func
        self.require_confirmation = require_confirmation
        self.hint = hint
        self.timeout, self.heartbeat_timeout, self.deadline = timeout, heartbeat_timeout, deadline
        self.retries, self.task_queue, self.effect, self.on_error = retries, task_queue, effect, on_error
        self.approval = approval
        if problems := self.setting_problems():
            raise InvalidTool(self.name, " ".join(problems))

    @functools.cached_property
    def signature(self) -> Signature:
        """The parameters of the function."""
        return Signature(self.func, self.name)

    @cacheable
    def _get_declaration(self) -> JsonObject | None:
        schema = self.signature.schema
        if not on_vertex():
            return declaration(self.name, self.description, schema)
        return declaration(
            self.name, self.description, flatten_for_vertex(schema), flatten_for_vertex(self.signature.response_schema)
        )

    def confirmation_hint(self) -> str:
        """Return the tool's own hint, or ADK's default."""
        return self.hint or super().confirmation_hint()

    def seen(self, args: JsonObject, tool_context: ToolContext) -> Mapping[str, Any] | None:
        """Return the values that the function receives: converted arguments, its own defaults, the context."""
        prepared = self._prepare(args)
        return (
            None if isinstance(prepared, ArgumentsRejected) else self.signature.build_arguments(prepared, tool_context)
        )

    def edited(self, args: JsonObject, shown: JsonObject) -> JsonObject:
        """Return the arguments that an approver edited, converted for the function.

        Unknown arguments from the model are dropped; unknown arguments from the approver are errors.

        Raises:
            ValueError: Arguments are invalid; the text names them and the reasons.
        """
        known, missing = self.signature.annotations, self.signature.find_missing(args)
        unknown = [name for name in args if name not in known and (name not in shown or shown[name] != args[name])]
        wrong = [f"it has no parameter {name!r}" for name in unknown]
        wrong += [f"parameter {name!r} is missing" for name in missing]
        try:
            taken = self.signature.convert_to_json(args)
        except ValidationError as error:
            taken = args
            texts = argument_mistakes(error, known)
            wrong += [text for text in texts if not any(text.startswith(f"Parameter {n!r}") for n in missing)]
        if wrong:
            raise ValueError("; ".join(wrong))
        return taken

    def setting_problems(self) -> list[str]:
        """Return the invalid settings, one sentence each."""
        problems = super().setting_problems()
        if not isinstance(self.hint, str | None):
            problems.append(f"`hint` is {self.hint!r}; use text.")
        if isinstance(self.approval, ApprovalPolicy):
            problems += [
                f"`remember_args` of its `approval` names {name!r}, which is not a parameter of the tool."
                for name in self.approval.remember_args or ()
                if name not in self.signature.annotations
            ]
        return problems

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Call the function. Invalid arguments do not raise; they return `ArgumentsRefused`."""
        prepared = self._prepare(args)
        if isinstance(prepared, ArgumentsRejected):
            return prepared
        return await invoke(self.func, self.signature.bind(prepared, tool_context))

    def _prepare(self, args: JsonObject | None) -> dict[str, Any] | ArgumentsRejected:
        args = args or {}
        if missing := self.signature.find_missing(args):
            return ArgumentsRejected.missing(self.name, missing)
        try:
            return self.signature.convert(args)
        except ValidationError as error:
            return ArgumentsRejected.wrong(self.name, argument_mistakes(error, self.signature.annotations))
