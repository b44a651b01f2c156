"""Existing Temporal code as tools: activities, workflows and Nexus operations, written in any language.

The workflow runs the code itself, with the arguments of the call and nothing else. The code receives neither the
conversation nor the state nor any credential.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from pydantic import BaseModel, ValidationError

from waystation.core.approval import ApprovalPolicy
from waystation.core.contract import SESSION_WORKFLOW, WORKFLOW, Effect, Target
from waystation.core.errors import InvalidTool, NotJson
from waystation.core.payload import JsonObject, encode, to_plain_json
from waystation.core.scope_state import SCOPE_WORKFLOW
from waystation.tools import BaseTool, Signature, ToolContext, declaration, doc_of, validation_mistakes
from waystation.tools.functions import find_bound_names
from waystation.tools.json_schema import find_mistakes, flatten_for_vertex, json_schema, on_vertex, schema_problem

MAX_ARGUMENT_BYTES = 200_000
"""Maximum size of the arguments of one call. Payloads of 256 KiB or more are moved to the payload store by default, and
workers that are not Waystation's cannot read them from there."""
_OWN_WORKFLOWS = frozenset({WORKFLOW, SESSION_WORKFLOW, SCOPE_WORKFLOW})
_NO_ARGUMENTS: JsonObject = {"type": "object", "properties": {}, "additionalProperties": False}


class TemporalTool(BaseTool):
    """The base class of tools for which the workflow runs existing Temporal code."""

    def __init__(
        self,
        code: str,
        *,
        schema: type[BaseModel] | JsonObject | Callable[..., Any] | None = None,
        name: str | None = None,
        description: str | None = None,
        task_queue: str | None = None,
        timeout: timedelta | None = None,
        retries: int = 0,
        heartbeat_timeout: timedelta | None = None,
        effect: Effect | None = None,
        require_confirmation: bool | Callable[..., Any] = False,
        title: str | None = None,
        hint: str | None = None,
        approval: ApprovalPolicy | None = None,
        deadline: timedelta | None = None,
    ) -> None:
        """Declare the tool.

        Args:
            code: The type of the activity or workflow, or the name of the operation.
            schema: The arguments: a pydantic model or a JSON schema, which are passed as one object, or a function with
                the same parameters, which are passed separately. The function is not called. None: no arguments.
            name: The name that models see. Defaults to `code`.
            description: The description that models see. Defaults to the docstring of the model or function.
            task_queue: The task queue of the workers that run the code. Defaults to the agent's task queue.
            timeout: Time limit for one attempt. See `BaseTool` for details of this and the following settings.
            retries: Number of retries after any failure, including a lost worker. Not allowed for the effect `once`; a
                call with this effect is tried only once.
            heartbeat_timeout: Maximum time between heartbeats. By default, no heartbeats are expected.
            effect: What happens if the code runs twice for the same call.
            require_confirmation: Whether an approver must confirm each call, or a function that decides this for a
                call.
            title: One line on the effect of a call, for the approver, such as `Pay {amount} to {payee}`.
            hint: Text to show to the approver.
            approval: Approval policy.
            deadline: How long the approver has to confirm a call.

        Raises:
            InvalidTool: A setting has an invalid value.
        """
        described = schema if callable(schema) else None
        super().__init__(name=name or code, description=description or (doc_of(described) if described else ""))
        self.code, self.title, self.hint, self.task_queue, self.retries = code, title, hint, task_queue, retries
        self.timeout, self.heartbeat_timeout, self.deadline = timeout, heartbeat_timeout, deadline
        self.effect, self.require_confirmation, self.approval = effect, require_confirmation, approval
        self._model: type[BaseModel] | None = None
        self._signature: Signature | None = None
        match schema:
            case type() if issubclass(schema, BaseModel):
                self._model, self._schema = schema, json_schema(schema)
            case Mapping():
                # Without this, arguments that the schema does not describe would be valid.
                self._schema = {"additionalProperties": False, **json_schema(dict(schema))}
            case None:
                self._schema = _NO_ARGUMENTS
            case _ if callable(schema):
                self._signature = Signature(schema, self.name)
                self._schema = self._signature.schema or _NO_ARGUMENTS
            case _:
                raise InvalidTool(
                    self.name, f"`schema` is {schema!r}; use a pydantic model, a JSON schema or a function."
                )
        if problems := self.setting_problems():
            raise InvalidTool(self.name, " ".join(problems))

    def _get_declaration(self) -> JsonObject | None:
        schema = None if self._schema is _NO_ARGUMENTS else self._schema
        return declaration(self.name, self.description, flatten_for_vertex(schema) if on_vertex() else schema)

    def target(self, *, check: bool) -> Target:
        """Return what the workflow runs. `check` says whether a tool activity first verifies the call's approval."""
        raise NotImplementedError(f"{type(self).__name__} has no target; define it.")

    @property
    def parameters(self) -> tuple[str, ...] | None:
        """The names of the arguments if they are passed separately, or None if they are passed as one object."""
        if self._signature:
            return tuple(self._signature.annotations)
        return () if self._schema is _NO_ARGUMENTS else None

    def prepare(self, args: JsonObject) -> JsonObject:
        """Return validated arguments in the form in which the code receives them.

        Raises:
            ValueError: Some arguments are invalid. The message lists them with the reasons.
        """
        try:
            prepared: JsonObject = to_plain_json(self._convert(args))
        except ValidationError as error:
            mistakes = validation_mistakes(error)[:10]
            raise ValueError("; ".join(f"{path or 'arguments'}: {reason}" for path, reason in mistakes)) from None
        except NotJson as error:
            raise ValueError(str(error)) from None
        if (size := len(encode(prepared))) > MAX_ARGUMENT_BYTES:
            raise ValueError(f"the arguments have {size:,} bytes of JSON; use at most {MAX_ARGUMENT_BYTES:,}")
        return prepared

    def _convert(self, args: JsonObject) -> Any:
        if self._model is not None:
            return self._model.model_validate_json(encode(args)).model_dump(
                mode="json", by_alias=True, exclude_unset=True
            )
        if self._signature is not None:
            converted = self._signature.convert_to_json(args)
            parameters = self._signature.python.parameters
            # Fill in the defaults, because a parameter can be left out only if all later ones are left out, too.
            return {name: converted.get(name, parameters[name].default) for name in self._signature.annotations}
        if mistakes := find_mistakes(self._schema, args):
            raise ValueError("; ".join(mistakes))
        return args

    def edited(self, args: JsonObject, shown: JsonObject) -> JsonObject:
        """Return arguments that an approver edited, in the form in which the code receives them.

        Raises:
            ValueError: Some arguments are invalid. The message lists them with the reasons.
        """
        return self.prepare(args)

    def confirmation_hint(self) -> str:
        """Return the tool's hint, or ADK's default hint if it does not have one."""
        return self.hint or super().confirmation_hint()

    def setting_problems(self) -> list[str]:
        """Return one sentence for each invalid setting."""
        problems = [*super().setting_problems(), *self.title_problems(self._schema.get("properties") or ())]
        if self.effect == "once" and self.retries:
            problems.append(
                f"`retries` is {self.retries!r}, but `effect` is 'once', and the server would also retry after a lost "
                "worker; remove one of them."
            )
        if self._signature and (bound := find_bound_names(self._signature.function)):
            problems.append(
                f"its `schema` binds {min(bound)!r} with a partial, which is not called; use a function without it."
            )
        if self._signature and self._signature.context:
            problems.append(
                f"parameter {self._signature.context!r} is a ToolContext, which only tools receive; remove it."
            )
        if problem := schema_problem(self._schema):
            problems.append(f"its `schema` is not a valid JSON schema: {problem}.")
        elif "$ref" not in self._schema and self._schema.get("type") != "object":
            problems.append('its `schema` does not describe an object; use `"type": "object"`.')
        return problems

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Always raise InvalidTool. Only the workflow can run the code."""
        raise InvalidTool(
            self.name,
            f"{type(self).__name__} cannot run inside another tool, because the workflow runs its code; add it to an "
            "agent's `tools` so that the model can call it.",
        )


class ActivityTool(TemporalTool):
    """An existing activity as a tool. The agent's workflow schedules it on the task queue of its workers."""

    def target(self, *, check: bool) -> Target:
        """Return the activity."""
        return Target(name=self.code, parameters=self.parameters, check=check)


class WorkflowTool(TemporalTool):
    """An existing workflow as a tool. The agent's workflow runs it as a child, for as long as it takes.

    `timeout` limits the whole child workflow, with all its runs. By default, it has no limit.
    """

    def target(self, *, check: bool) -> Target:
        """Return the workflow."""
        return Target(kind="workflow", name=self.code, parameters=self.parameters, check=check)

    def setting_problems(self) -> list[str]:
        """Return one sentence for each invalid setting."""
        problems = super().setting_problems()
        if self.code in _OWN_WORKFLOWS:
            problems.append(f"{self.code!r} is a workflow of Waystation; use an AgentTool to call an agent.")
        return problems


class NexusTool(TemporalTool):
    """An operation of a Nexus service, possibly in another namespace, as a tool.

    The server repeats a request until it succeeds, so a call is never `once`: the handler must recognize repeated
    requests by their request ID, as handlers that start a workflow do. `timeout` limits all attempts together.
    """

    def __init__(self, code: str, *, endpoint: str, service: str, **settings: Any) -> None:
        """Declare the tool. `code` is the operation. See `TemporalTool` for the settings."""
        self.endpoint, self.service = endpoint, service
        super().__init__(code, **settings)

    @property
    def parameters(self) -> tuple[str, ...] | None:
        """None, because an operation takes one argument, or an empty tuple if it takes none."""
        return None if super().parameters else super().parameters

    def target(self, *, check: bool) -> Target:
        """Return the operation."""
        about = {"endpoint": self.endpoint, "service": self.service}
        return Target(kind="nexus", name=self.code, parameters=self.parameters, check=check, **about)

    def effect_when(self, *, confirmed: bool) -> Effect:
        """Return the tool's effect, which is `repeatable` by default, even for a call that an approver confirmed."""
        return self.effect or "repeatable"

    def setting_problems(self) -> list[str]:
        """Return one sentence for each invalid setting."""
        problems = super().setting_problems()
        if self.effect == "once":
            problems.append(
                "`effect` is 'once', but the server repeats requests to Nexus operations; use 'repeatable', and have "
                "the handler recognize the request ID."
            )
        if self.retries or self.task_queue or self.heartbeat_timeout:
            problems.append("a NexusTool has no `retries`, `task_queue` or `heartbeat_timeout`; remove them.")
        return problems
