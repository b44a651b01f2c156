"""Put a recorded prompt together as workers do, with the agent as it is now."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from temporalio.testing import ActivityEnvironment

from waystation.activities.available_tools import tools_for
from waystation.activities.callbacks import Hooks
from waystation.activities.contexts import Contexts
from waystation.activities.model_call.request import definition_digest, request_of, speakers
from waystation.agents.llm_agent import LlmAgent
from waystation.agents.registry import Registry, discover
from waystation.core import ids
from waystation.core.conversation import Conversation
from waystation.core.errors import NoPrompt
from waystation.core.log import Log
from waystation.core.naming import a
from waystation.models import LlmRequest
from waystation.replay.bench import Bench, NotAsked
from waystation.replay.prompt import Agents, Asked, Prompt
from waystation.replay.recording import Recording
from waystation.replay.steps import model_step
from waystation.tools.base_tool import BaseTool
from waystation.tools.services import Services
from waystation.worker.services import lasting_services


async def as_declared(
    found: Prompt,
    recording: Recording,
    asked: Asked,
    said: Conversation,
    agents: Agents,
    *,
    callbacks: bool = False,
    services: Services | None = None,
) -> Prompt:
    """Return a prompt with all that the agent's declaration adds to it.

    Raises:
        UnknownAgent: None of the agents has the name.
        NoPrompt: It has no model now.
        InstructionFailed: Its instruction cannot be put together.
        ApplicationError: A callback raised.
    """
    return await ActivityEnvironment().run(_declared, found, recording, asked, said, agents, callbacks, services)


def registry_of(agents: Agents) -> Registry:
    """Return the agents that are meant.

    Raises:
        AuthoringError: None can be used; the first mistake.
    """
    if isinstance(agents, Registry):
        return agents
    folders: Sequence[Path | str] = [agents] if isinstance(agents, Path | str) else agents
    registry, problems = discover([Path(folder) for folder in folders])
    if problems and not registry.roots:
        raise problems[0].error
    return registry


async def _declared(
    found: Prompt,
    recording: Recording,
    asked: Asked,
    said: Conversation,
    agents: Agents,
    callbacks: bool,
    services: Services | None,
) -> Prompt:
    log, work, reply = asked.log, asked.work, asked.reply
    registry = registry_of(agents)
    root, agent = registry.find(log.root, work.agent)
    if not isinstance(agent, LlmAgent):
        raise NoPrompt(f"Agent {agent.name!r} is {a(agent)} now; it has no model.")
    step = ids.model_replied(asked.call or log.steps + 1)
    scopes = reply.scopes if reply else None
    services = services or lasting_services()
    contexts = Contexts.of(log, work, services, step, scopes_read=root.state_scopes, said=said).over(scopes)
    if reply and reply.before:
        contexts = contexts.after(reply.before.actions)
    tools = {} if asked.wrap_up else await tools_for(agent, contexts)
    compaction, attempt = (reply.compaction, reply.attempt) if reply else (None, 1)
    request = await request_of(agent, work, contexts, tools, attempt or 1, compaction, asked.wrap_up)
    same = _same(agent, request, asked)
    remarks = [*found.remarks, *_remarks(agent, asked, same=same)]
    changing = _changing(agent, Hooks(agent, root.plugins_of(agent)), tools)
    if changing and callbacks:
        bench = Bench(registry, services=services, conversations=_Said(said))
        sent, remark = await _as_sent(recording, asked, bench)
        request = sent or request
        remarks.append(remark)
    elif changing:
        text = f"{', '.join(changing)} may have changed it then, and did not run now; --callbacks (`callbacks=`) runs"
        remarks.append(f"{text} them on this machine.")
    certain = not (found.remarks or changing or _asked_anew(agent))
    return replace(
        found,
        contents=request.contents,
        model=request.model,
        instruction=request.system_instruction,
        tools=request.tools,
        native_tools=request.native_tools,
        config=request.config,
        whole=True,
        exact=(True if certain else None) if same else same,
        remarks=remarks,
    )


def _same(agent: LlmAgent, request: LlmRequest, asked: Asked) -> bool | None:
    """Return whether the agent's declaration is the one of which the digest was recorded."""
    if asked.reply is None or not asked.reply.definition:
        return None
    return definition_digest(agent, request) == asked.reply.definition


def _remarks(agent: LlmAgent, asked: Asked, *, same: bool | None) -> list[str]:
    remarks = []
    if same is False:
        remarks.append("The agent has changed since: model, instruction, tools and settings are as they are now.")
    if same is None:
        why = "gave no reply" if asked.call else "was not asked"
        remarks.append(f"The model {why}, so nothing says whether the agent is still as it was.")
    if names := _asked_anew(agent):
        remarks.append(f"A function gives the {' and the '.join(names)}; it was asked now.")
    return remarks


def _asked_anew(agent: LlmAgent) -> list[str]:
    """Return which instructions are functions: only their names are in the recorded digest."""
    given = {"global_instruction": agent.root_agent, "instruction": agent}
    return [name for name, owner in given.items() if callable(getattr(owner, name, ""))]


def _changing(agent: LlmAgent, hooks: Hooks, tools: dict[str, BaseTool]) -> list[str]:
    """Return what may change a request once it is put together."""
    names = [getattr(each, "name", None) or type(each).__name__ for each in (speakers(agent, tools) if tools else ())]
    return [*names, *(["`before_model_callback`"] if hooks.has("before_model_callback") else ())]


async def _as_sent(recording: Recording, asked: Asked, bench: Bench) -> tuple[LlmRequest | None, str]:
    """Return the request after callbacks and tools have changed it, and what to say of that."""
    if asked.call is None:
        return None, "Callbacks did not run: they do for model calls that were made."
    try:
        sent = (await bench.prompt(model_step(recording, asked.call))).sent
    except NotAsked as answered:
        return None, f"Callbacks ran now. {answered}"
    return sent, "Callbacks ran now, on this machine; what they did then is not recorded."


class _Said:
    """What was said, where workers read it from a server."""

    def __init__(self, said: Conversation) -> None:
        self._said = said

    async def conversation(self, log: Log) -> Conversation:
        return Conversation(log, self._said.earlier, self._said.count)
