"""Functions as tools."""

import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

from pydantic import ValidationError

from waystation.core.approval import ApprovalPolicy
from waystation.core.contract import Effect
from waystation.core.errors import InvalidTool
from waystation.core.payload import JsonObject
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
    """The response to a call whose arguments were invalid, so that the function was not called."""

    @classmethod
    def missing(cls, tool: str, parameters: Sequence[str]) -> Self:
        """Return a response that lists the missing required parameters, worded as in ADK."""
        return cls(
            error=f"Invoking `{tool}()` failed as the following mandatory input parameters are not "
            "present:\n" + "\n".join(parameters) + "\nYou could retry calling this tool, but it is IMPORTANT for "
            "you to provide all the mandatory parameters."
        )

    @classmethod
    def wrong(cls, tool: str, mistakes: Sequence[str]) -> Self:
        """Return a response that lists the invalid arguments, worded as in ADK's opt-in validation."""
        return cls(
            error=f"Invoking `{tool}()` failed due to argument validation errors:\n"
            + "\n".join(mistakes)
            + "\nYou could retry calling this tool with corrected argument types."
        )


class FunctionTool(BaseTool):
    """A tool that calls a Python function. The model sees the function's name, docstring and parameter types.

    The parameter annotated `ToolContext`, or otherwise the one named `tool_context`, receives the context. Arguments
    are converted to the annotated types; if an argument cannot be converted, the model receives an error. Sync
    functions run in threads. The result of a generator is the single value that it yields.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        *,
        name: str | None = None,
        require_confirmation: bool | Callable[..., Any] = False,
        title: str | None = None,
        hint: str | None = None,
        timeout: timedelta | None = None,
        retries: int = 0,
        heartbeat_timeout: timedelta | None = None,
        cancel_within: timedelta | None = None,
        task_queue: str | None = None,
        effect: Effect | None = None,
        quick: bool = False,
        on_error: OnError = "tell",
        deadline: timedelta | None = None,
        approval: ApprovalPolicy | None = None,
    ) -> None:
        """Wrap `func`.

        Args:
            func: A function, coroutine function, method, partial or callable object.
            name: The tool's name. By default, the function's name.
            require_confirmation: Whether an approver must confirm each call, or a function that decides this for a
                call. The function receives the arguments that match its parameter names, converted to the tool's
                types.
            title: One line on the effect of a call, for the approver, such as `Pay {amount} to {payee}`.
            hint: Text to show to the approver.
            timeout: Time limit for one attempt. See `BaseTool` for details of this and the following settings.
            retries: Number of retries if the function raises an exception.
            heartbeat_timeout: Maximum time between heartbeats.
            cancel_within: How soon a cancellation reaches a running call.
            task_queue: The tool's task queue. Defaults to the agent's task queue.
            effect: What happens if the function runs twice for the same call.
            quick: Whether the function usually returns within a few milliseconds. Requires `effect="read"`.
            on_error: `tell` reports an exception to the model; `raise` ends the invocation.
            deadline: How long the approver has to confirm a call.
            approval: Approval policy. If set, every call waits for approval, or only the calls that
                `require_confirmation` selects.

        Raises:
            InvalidTool: A setting has an invalid value.
        """
        if not callable(func):
            raise TypeError(f"Expected a callable object, got {type(func).__name__}")
        super().__init__(name=name or name_of(func), description=doc_of(func), is_long_running=self.is_long_running)
        self.func = func
        self.require_confirmation = require_confirmation
        self.title, self.hint = title, hint
        self.timeout, self.heartbeat_timeout, self.deadline = timeout, heartbeat_timeout, deadline
        self.cancel_within = cancel_within
        self.retries, self.task_queue, self.effect, self.on_error = retries, task_queue, effect, on_error
        self.quick, self.approval = quick, approval
        if problems := self.setting_problems():
            raise InvalidTool(self.name, " ".join(problems))

    @functools.cached_property
    def signature(self) -> Signature:
        """The function's parameters."""
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
        """Return the tool's hint, or ADK's default hint if it does not have one."""
        return self.hint or super().confirmation_hint()

    def seen(self, args: JsonObject, tool_context: ToolContext) -> Mapping[str, Any] | None:
        """Return the values that the function would receive, or None if the arguments are invalid.

        The values are the converted arguments, the function's defaults and the context.
        """
        prepared = self._prepare(args)
        return (
            None if isinstance(prepared, ArgumentsRejected) else self.signature.build_arguments(prepared, tool_context)
        )

    def edited(self, args: JsonObject, shown: JsonObject) -> JsonObject:
        """Validate arguments that an approver edited and convert them for the function.

        Unknown arguments that the model sent are dropped. Unknown arguments that the approver added are errors.

        Raises:
            ValueError: Some arguments are invalid. The message lists them with the reasons.
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
        """Return one sentence for each invalid setting."""
        problems = super().setting_problems()
        if self.title is not None:  # subclasses set their name later, and the signature contains it
            problems += self.title_problems(self.signature.annotations)
        if not isinstance(self.hint, str | None):
            problems.append(f"`hint` is {self.hint!r}; use a string.")
        if isinstance(self.approval, ApprovalPolicy):
            problems += [
                f"`remember_args` of its `approval` names {name!r}, which is not a parameter of the tool."
                for name in self.approval.remember_args or ()
                if name not in self.signature.annotations
            ]
        return problems

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Call the function. If the arguments are invalid, return an `ArgumentsRejected` instead of raising."""
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
