"""Planners and code executors, which are parts of google-adk's flow around a model call.

Code that a model writes runs as a tool call, so that its result is recorded and the code does not run again after a
crash. The model sees the same text as in google-adk.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from google.adk.code_executors import BaseCodeExecutor, BuiltInCodeExecutor
from google.adk.code_executors.code_execution_utils import CodeExecutionInput, CodeExecutionUtils
from google.adk.code_executors.code_executor_context import CodeExecutorContext
from google.adk.flows.llm_flows.extensions import _code_execution, _planning
from google.adk.models import LlmResponse as AdkResponse
from google.genai import types

from waystation.adk.context_adapter import AdkContext, AdkContexts
from waystation.adk.tool_adapter import editing, editing_response
from waystation.agents import ReadonlyContext
from waystation.core.payload import JsonObject
from waystation.models import LlmResponse
from waystation.tools import BaseTool, BaseToolset, ToolContext
from waystation.tools.threads import run_in_thread

RUN_CODE = "adk_run_code"
"""The name of the tool call that runs code."""


def runs_code(agent: Any) -> bool:
    """Return whether an agent's code executor runs code outside the model's service."""
    return isinstance(agent.code_executor, BaseCodeExecutor) and not isinstance(
        agent.code_executor, BuiltInCodeExecutor
    )


@contextlib.contextmanager
def _using(contexts: AdkContexts, agent: Any, context: ToolContext) -> Iterator[AdkContext]:
    """Provide google-adk's context of an agent. A plugin may have created it before, without the agent's settings."""
    with contexts.using(context) as adk:
        adk._invocation_context.agent = agent
        yield adk


class RunCodeTool(BaseTool):
    """Runs code with an agent's code executor. Models do not see this tool."""

    def __init__(self, contexts: AdkContexts, agent: Any) -> None:
        super().__init__(name=RUN_CODE, description="Runs the code block that the model wrote.")
        self._contexts, self._agent = contexts, agent

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Return the outcome and the output as a genai CodeExecutionResult."""
        with _using(self._contexts, self._agent, tool_context) as context:
            invocation, executor = context._invocation_context, self._agent.code_executor
            known = CodeExecutorContext(context.state)
            request = CodeExecutionInput(
                code=str(args.get("code", "")),
                input_files=known.get_input_files(),
                execution_id=_code_execution._get_or_set_execution_id(invocation, known),
            )
            result = await run_in_thread(executor.execute_code, invocation, request)
            event = await _code_execution._post_process_code_execution_result(invocation, known, result)
            context.state.update(event.actions.state_delta)
            return event.content.parts[0].code_execution_result.model_dump(mode="json", exclude_none=True)


def flow_tools(contexts: AdkContexts, agent: Any) -> list[BaseTool | BaseToolset]:
    """Return what applies an agent's planner and code executor, including the tool that runs code if there is one."""
    return [FlowToolset(contexts, agent), *([RunCodeTool(contexts, agent)] if runs_code(agent) else ())]


class FlowToolset(BaseToolset):
    """Applies an agent's planner and code executor to model requests."""

    def __init__(self, contexts: AdkContexts, agent: Any) -> None:
        super().__init__()
        self._contexts, self._agent = contexts, agent
        self.runs_code = runs_code(agent)

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[Any]:
        """Return no tools."""
        return []

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: Any) -> None:
        """Add the planner's instruction, and show the model its code as text."""
        with _using(self._contexts, self._agent, tool_context) as context, editing(llm_request) as request:
            await _drain(_planning.request_processor, context, request)
            if self.runs_code:
                for content in request.contents:
                    content.parts = [part for part in map(_show_code, content.parts or ()) if part]
                request.contents = [content for content in request.contents if content.parts]
            await _drain(_code_execution.request_processor, context, request)


def _show_code(part: Any) -> Any:
    """Return google-adk's form of a part: the call that runs code is left out, because the code is a part itself."""
    if part.function_call and part.function_call.name == RUN_CODE:
        return None
    answered = part.function_response
    if not (answered and answered.name == RUN_CODE):
        return part
    response = answered.response or {}
    failed = types.CodeExecutionResult(outcome=types.Outcome.OUTCOME_FAILED, output=str(response.get("error")))
    result = types.CodeExecutionResult.model_validate(response) if "outcome" in response else failed
    return types.Part(code_execution_result=result)


async def _drain(processor: Any, context: AdkContext, subject: Any) -> None:
    """Run a processor of google-adk, and record the state in the events that it yields."""
    async for event in processor.run_async(context._invocation_context, subject):
        context.state.update(event.actions.state_delta)


def process_responses(
    contexts: AdkContexts, agent: Any, callbacks: list[Callable[..., Any]]
) -> list[Callable[..., Any]]:
    """Return an agent's `after_model` callbacks, such that the planner and code executor process the response last."""

    async def process(callback_context: ToolContext, llm_response: LlmResponse) -> None:
        with _using(contexts, agent, callback_context) as context, editing_response(llm_response) as response:
            await _drain(_planning.response_processor, context, response)
            if runs_code(agent):
                _call_code(agent.code_executor, context, response)

    def process_after(callback: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(callback)
        async def run(*args: Any, **kwargs: Any) -> Any:
            answer = callback(*args, **kwargs)
            answer = await answer if inspect.isawaitable(answer) else answer
            if isinstance(answer, LlmResponse):
                context = next(value for value in (*args, *kwargs.values()) if isinstance(value, ToolContext))
                await process(context, answer)
            return answer

        return run

    return [*map(process_after, callbacks), process]


def _call_code(executor: Any, context: AdkContext, response: AdkResponse) -> None:
    """If a response contains code, cut off what follows the code and add the call that runs it."""
    invocation = context._invocation_context
    known = CodeExecutorContext(dict(invocation.session.state))
    if response.content is None or known.get_error_count(invocation.invocation_id) >= executor.error_retry_attempts:
        return
    rewrites = _planning.response_rewriting_planner(invocation) is not None
    content, thoughts = _code_execution._split_thoughts(response.content.model_copy(), signed_only=rewrites)
    code = CodeExecutionUtils.extract_code_and_truncate_content(content, executor.code_block_delimiters)
    if code:
        call = types.Part(function_call=types.FunctionCall(name=RUN_CODE, args={"code": code}))
        response.content = content.model_copy(update={"parts": [*thoughts, *content.parts, call]})
