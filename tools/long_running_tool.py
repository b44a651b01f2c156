"""Function tools whose final response arrives later, as an external answer."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from waystation.core.approval import ApprovalPolicy, External
from waystation.core.contract import Effect
from waystation.core.payload import JsonObject
from waystation.tools import FunctionTool, OnError, cacheable

NOTE = (
    "NOTE: This operation is long-running. Once it has returned an intermediate or pending status, do not "
    "call it again; its final result will follow."
)


class LongRunningFunctionTool(FunctionTool):
    """A function that starts work that finishes later, such as a request to a person, an order, or a render job.

    The function runs once, and an external answer closes the call. If the return value is truthy, the model
    receives it immediately as an interim response. Otherwise the model receives nothing until the answer arrives.
    """

    is_long_running = True

    def __init__(
        self,
        func: Callable[..., Any],
        *,
        name: str | None = None,
        title: str | None = None,
        timeout: timedelta | None = None,
        retries: int = 0,
        heartbeat_timeout: timedelta | None = None,
        cancel_within: timedelta | None = None,
        task_queue: str | None = None,
        effect: Effect | None = None,
        on_error: OnError = "tell",
        deadline: timedelta | None = None,
        approval: ApprovalPolicy | None = None,
        answered_by: External | None = None,
        response_schema: Any = None,
    ) -> None:
        """Wrap `func`. See `BaseTool` for the settings.

        `deadline` limits the wait for the answer, `approval` restricts who may answer, and `response_schema` describes
        the answer's `response`. With `answered_by`, a machine answers instead of people, and `approval` makes each call
        wait for people before `func` runs.
        """
        self.response_schema, self.answered_by = response_schema, answered_by
        super().__init__(
            func,
            name=name,
            title=title,
            timeout=timeout,
            retries=retries,
            heartbeat_timeout=heartbeat_timeout,
            cancel_within=cancel_within,
            task_queue=task_queue,
            effect=effect,
            on_error=on_error,
            deadline=deadline,
            approval=approval,
        )

    @cacheable
    def _get_declaration(self) -> JsonObject | None:
        declaration = super()._get_declaration()
        if declaration is not None:
            description = declaration.get("description")
            declaration["description"] = f"{description}\n\n{NOTE}" if description else NOTE
        return declaration
