"""Agents that run elsewhere and are called over the Agent2Agent protocol (A2A). Requires the extra `a2a`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from waystation.agents.llm_agent import LlmAgent
from waystation.core.approval import ApprovalPolicy
from waystation.core.contract import Effect, parts_of
from waystation.core.conversation import BEGIN_QUOTE, END_QUOTE, PREAMBLE
from waystation.core.payload import JsonObject
from waystation.models import BaseLlm, LlmRequest, LlmResponse
from waystation.models.function_model import calls, says
from waystation.tools import FunctionTool, RequestInputTool
from waystation.tools.a2a_tool import AGENT_CARD_WELL_KNOWN_PATH as AGENT_CARD_WELL_KNOWN_PATH
from waystation.tools.a2a_tool import RUNNING, AgentCard, RemoteAgent
from waystation.tools.request_input_tool import REQUEST_INPUT

DEFAULT_TIMEOUT = 600.0
FAILED = "REMOTE_AGENT_FAILED"
"""The error code of the agent's answer if the remote agent did not complete the task."""
MAX_TASK_LIMIT = timedelta(days=366)
MAX_INTERRUPTIONS = 200
"""How many workers may be lost or replaced during the wait for one task."""
MAX_STEPS = 100
"""How many results the agent may see before it answers. A remote agent could ask, or change its state, for ever."""
RESENDS = 3
STARTUP = timedelta(minutes=1)
"""How much longer a message may take than its request: for the card, and for an agent that cannot be reached."""
MAX_MESSAGE_CHARS = 100_000
MAX_QUESTION_CHARS = 8_000
SEND, CANCEL = "send_message", "cancel_task"
_SAID = re.compile(rf"(\[\w+\] said:\n){re.escape(BEGIN_QUOTE)}\n(.*)\n{re.escape(END_QUOTE)}", re.DOTALL)


class RemoteA2aAgent(LlmAgent):
    """A remote agent as a sub-agent, or in an AgentTool.

    The agent has no model of its own: it passes messages on. The remote task is recorded and polled, so it may take
    weeks. Its answer never counts as an approval here.
    """

    def __init__(
        self,
        name: str,
        agent_card: AgentCard | str,
        *,
        description: str = "",
        timeout: float = DEFAULT_TIMEOUT,
        auth_scheme: Any = None,
        auth_credential: Any = None,
        credential_key: str | None = None,
        effect: Effect = "once",
        approval: ApprovalPolicy | None = None,
        task_limit: timedelta = timedelta(days=30),
        poll_interval: timedelta = timedelta(minutes=1),
        use_legacy: bool = True,
        **fields: Any,
    ) -> None:
        """Declare the agent.

        Args:
            name: The agent's name here.
            agent_card: The card: an AgentCard, the path of a JSON file, or a URL.
            description: What the agent is for, for the models of other agents. Defaults to that of the card, except for
                a URL, because a card from the network could contain instructions for these models.
            timeout: Time limit, in seconds, for sending a message.
            auth_scheme: The security scheme of the remote agent.
            auth_credential: The credential. It must be one that is sent in a header.
            credential_key: Key under which the credential service stores the user's credential.
            effect: What happens if a message is sent twice. With `repeatable`, a message without a reply is sent again,
                with the same message ID.
            approval: The policy for sending a message.
            task_limit: How long a remote task may take. Afterward, it is canceled.
            poll_interval: The longest pause between two requests about a task. The first pauses are shorter.
            use_legacy: Accepted for compatibility with ADK, but has no effect.
            fields: Fields of `BaseAgent`, and `approval_rules`.

        Raises:
            ValueError: The card cannot be read, or a setting is not valid.
        """
        if not timedelta() < task_limit <= MAX_TASK_LIMIT:
            raise ValueError(f"`task_limit` is {task_limit!r}; use a duration above zero, and at most one year.")
        remote = RemoteAgent(
            name,
            agent_card,
            timeout_s=timeout,
            task_limit_s=task_limit.total_seconds(),
            poll_interval_s=poll_interval.total_seconds(),
            repeatable=effect != "once",
            auth=(auth_scheme, auth_credential, credential_key),
        )
        send = FunctionTool(
            remote.send_message,
            title=f"Send to the remote agent {name}: {{message}}",
            effect=effect,
            approval=approval,
            retries=0 if effect == "once" else RESENDS,
            timeout=timedelta(seconds=timeout) + STARTUP,
        )
        wait = FunctionTool(
            remote.wait_for_task, effect="read", retries=MAX_INTERRUPTIONS, timeout=task_limit + timedelta(hours=1)
        )
        question = RequestInputTool()
        question.approval = ApprovalPolicy(
            actions=("respond", "reject")
        )  # an interim answer would be sent as the answer
        super().__init__(
            name=name,
            description=description or (remote.card.description if remote.card else ""),
            model=RelayModel(name),
            tools=[send, wait, question, FunctionTool(remote.cancel_task, effect="repeatable")],
            # As in ADK, the user's next message goes to the agent that transferred.
            disallow_transfer_to_parent=True,
            disallow_transfer_to_peers=True,
            **fields,
        )


class RelayModel(BaseLlm):
    """Decides from the recorded conversation what to do next for a remote agent. It calls no service.

    What the remote agent says becomes text or the text of a question, and never a function call.
    """

    is_free = True

    def __init__(self, agent: str) -> None:
        self.agent = agent

    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Return the next call, or the remote agent's answer."""
        reply = self._continue(request.contents)
        if not request.tools and parts_of(reply.content, "functionCall"):
            return _fail("The budget is used up, so the remote agent was not called again.")
        return reply

    def _continue(self, contents: Sequence[JsonObject]) -> LlmResponse:
        turn = _current_turn(contents)
        unsent = "\n\n".join(_list_texts(turn))[-MAX_MESSAGE_CHARS:]
        results = [part for content in turn for part in parts_of(content, "functionResponse")]
        if not results:
            return calls((SEND, {"message": unsent})) if unsent else _fail("There is no message to send.")
        # People answer questions with any object, so only the results of the other tools name a task.
        named = [part["response"].get("task_id") for part in results if part["name"] != REQUEST_INPUT]
        task = {"task_id": str(task_ids[-1])} if (task_ids := list(filter(None, named))) else {}
        result = results[-1]["response"]
        if len(results) >= MAX_STEPS and task and results[-1]["name"] != CANCEL:
            return calls((CANCEL, task))
        if results[-1]["name"] == REQUEST_INPUT:
            if result.get("status") == "rejected" or "error_type" in result:
                return calls((CANCEL, task))
            return calls((SEND, {"message": unsent or _format_answer(result), **task}))
        match result:
            case {"error": str(problem)}:
                return _fail(problem)
            case {"state": "canceled"} if len(results) > MAX_STEPS:
                return _fail(f"The task of the remote agent took more than {MAX_STEPS} steps, so it was canceled.")
            case {"state": "canceled"}:
                return _fail("The question of the remote agent was not answered, so its task was canceled.")
            case {"state": state} if state in (*RUNNING, "auth_required") and task:
                return calls(("wait_for_task", {**task, "until": result.get("until", 0)}))
            case {"state": "input_required"} if not unsent:
                question = str(result.get("text") or "It needs more information.")[:MAX_QUESTION_CHARS]
                return calls((REQUEST_INPUT, {"message": f"The remote agent {self.agent!r} asks: {question}"}))
            case {"state": "input_required"}:
                return calls((SEND, {"message": unsent, **task}))
        return calls((SEND, {"message": unsent})) if unsent else says(_format_result(result))


def _fail(problem: str) -> LlmResponse:
    return LlmResponse(error_code=FAILED, error_message=problem, finish_reason="STOP")


def _current_turn(contents: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the contents after the agent's latest answer."""
    answers = [i for i, each in enumerate(contents) if each["role"] == "model" and not parts_of(each, "functionCall")]
    return list(contents[answers[-1] + 1 if answers else 0 :])


def _list_texts(turn: Sequence[JsonObject]) -> Iterator[str]:
    """Yield what the user and other agents have said since the latest message to the remote agent.

    The calls of other agents, and their results, stay here.
    """
    calling = [i for i, each in enumerate(turn) if any(call["name"] == SEND for call in parts_of(each, "functionCall"))]
    for content in turn[calling[-1] + 1 if calling else 0 :]:
        texts = [part["text"] for part in content["parts"] if part.get("text") and content["role"] == "user"]
        if texts[:1] == [PREAMBLE]:
            yield from (match[1] + match[2] for match in map(_SAID.fullmatch, texts) if match)
        else:
            yield from texts


def _format_answer(response: JsonObject) -> str:
    """Return a person's answer as text. By convention, an answer that is only text is the `result`."""
    text = response.get("result")
    return text if isinstance(text, str) and len(response) == 1 else json.dumps(response, ensure_ascii=False)


def _format_result(result: JsonObject) -> str:
    data = [json.dumps(value, ensure_ascii=False) for value in result.get("data") or ()]
    files = [f"File: {file}" for file in result.get("files") or ()]
    texts = (str(result.get("text") or result.get("result") or ""), *data, *files)
    return "\n\n".join(filter(str.strip, texts)) or "The remote agent is done, and sent no message."
