"""Functions whose answer comes later, from outside."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from waystation.core import ApprovalPolicy, Effect, JsonObject
from waystation.tools import FunctionTool, OnError, settled

NOTE = (
    "NOTE: This operation is long-running. Once it has returned an intermediate or pending status, do not "
    "call it again; its final result will follow."
)


class LongRunningFunctionTool(FunctionTool):
    """A function that starts something: a request to a person, an order, a render.

    The function runs once. When it returns something truthy, the model is told so at once and the call stays
    open; when it returns something falsy, the call waits in silence. Either way it is closed by an `answer`
    from outside.
    """

    is_long_running = True

    def __init__(
        self,
        func: Callable[..., Any],
        *,
        timeout: timedelta | None = None,
        retries: int = 0,
        heartbeat_timeout: timedelta | None = None,
        task_queue: str | None = None,
        effect: Effect | None = None,
        on_error: OnError = "tell",
        deadline: timedelta | None = None,
        approval: ApprovalPolicy | None = None,
        response_schema: Any = None,
    ) -> None:
        """Wrap `func`; the settings are those of BaseTool.

        `deadline` is how long the answer may take, `approval` says who may give it, and `response_schema` what it is.
        """
        self.response_schema = response_schema
        super().__init__(
            func,
            timeout=timeout,
            retries=retries,
            heartbeat_timeout=heartbeat_timeout,
            task_queue=task_queue,
            effect=effect,
            on_error=on_error,
            deadline=deadline,
            approval=approval,
        )

    @settled
    def _get_declaration(self) -> JsonObject | None:
        declaration = super()._get_declaration()
        if declaration is not None:
            description = declaration.get("description")
            declaration["description"] = f"{description}\n\n{NOTE}" if description else NOTE
        return declaration
