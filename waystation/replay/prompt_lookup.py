"""Rebuild the prompt of a model call from a recording."""

from dataclasses import replace
from typing import TYPE_CHECKING

from waystation.core.contract import ModelReply
from waystation.core.conversation import Conversation, prompt
from waystation.core.errors import ForeignHistory, NoPrompt, StoreFailed
from waystation.core.log import Log, ModelCalled, ModelReplied, next_phase, verdict
from waystation.history import SessionReader
from waystation.replay.model_prompt import Agents, Prompt, PromptContext
from waystation.replay.recording import Moment, Recording
from waystation.storage import Blobs

if TYPE_CHECKING:
    from waystation.tools.services import Services


async def prompt_at(
    recording: Recording,
    number: int | None = None,
    *,
    agents: Agents | None = None,
    callbacks: bool = False,
    services: "Services | None" = None,
    session: Recording | None = None,
    store: str | None = None,
) -> Prompt:
    """Return the prompt at event `number`.

    For an event that a model produced, this is the prompt of that model call. For any other event, it is the prompt of
    the next model call, or the prompt that a model call would receive at that point if none was made.

    Args:
        recording: The recording.
        number: Number of the event, starting at 1, or 0 for the moment before the first event. Defaults to the last
            event.
        agents: A registry, or the folders that contain the agents. Toolsets and instruction functions are called again,
            but no other user code runs unless `callbacks` is set. Without agents, the prompt has no instruction, tools
            or settings.
        callbacks: Also run `before_model` callbacks and tools that change requests, on this machine.
        services: The services for callbacks and for instructions with `{artifact.…}`. Defaults to those of a worker in
            this folder.
        session: The recording of the invocation's session, which provides the earlier invocations. Without it, they are
            missing from the prompt.
        store: The store for large payloads, as configured for the workers.

    Raises:
        NoSuchEvent: The recording has no such event.
        NoPrompt: No model was called after the event and none would be, or the agent no longer has a model.
        UnknownAgent: The agent does not exist.
        InstructionFailed: The instruction cannot be built.
        ApplicationError: A callback raised an exception.
    """
    moment = recording.moment(number)
    context = _find_model_call(recording, moment)
    conversation, remarks = await _read_conversation(context.log, session, store)
    if context.log.entries_before:
        remarks.append("Earlier runs are missing from the recording, so their messages are missing from the prompt.")
    compaction = context.reply.compaction if context.reply else None
    summary = compaction.event(recording.id, context.work.branch) if compaction else None
    bare = Prompt(
        at=moment.number,
        agent=context.work.agent,
        call=context.call,
        gave=context.gave,
        contents=prompt.contents(conversation, agent=context.work.agent, branch=context.work.branch, summary=summary),
        remarks=remarks,
    )
    if agents is None:
        hint = "Contents only. To see the instruction, tools and settings, pass --agents DIR (`agents=`)."
        return replace(bare, remarks=[*remarks, hint])
    # Import only when needed, because this module loads all of a worker's code.
    from waystation.replay.activity_replay import add_declaration

    return await add_declaration(bare, recording, context, conversation, agents, callbacks=callbacks, services=services)


def _find_model_call(recording: Recording, moment: Moment) -> PromptContext:
    bodies = [entry.body for entry in recording.log.entries]
    calls = [(index, body) for index, body in enumerate(bodies) if isinstance(body, ModelCalled)]
    replies = {body.number: (index, body.reply) for index, body in enumerate(bodies) if isinstance(body, ModelReplied)}
    first = moment.entries
    replied = moment.entry.body if moment.entry else None
    if isinstance(replied, ModelReplied) and moment.event and moment.event.author != "user":
        first = next((index for index, called in calls if called.number == replied.number), first)
    for index, called in [call for call in calls if call[0] >= first]:
        log = recording.after(index)
        work = log.state.runs[called.turn]
        at, reply = replies.get(called.number, (None, None))
        if work.asks_model(next_phase(log.state, work), reply):
            event = _find_event(recording, at, reply) if at is not None and reply else None
            reason = (
                (reply.wrap_up if reply else None)
                or verdict(log.state, work, next_phase(log.state, work)).reason
                or "it is used up"
            )
            return PromptContext(log, work, called.number, reply, event, reason if called.wrap_up else None)
    models = [work for work in moment.log.state.runs.by_index.values() if work.shape.kind == "llm"]
    if not models or moment.log.state.input is None:
        raise NoPrompt(f"{recording.source!r}: no model was called after event {moment.number}, and none would be.")
    return PromptContext(moment.log, models[-1], None, None, None)


def _find_event(recording: Recording, index: int, reply: ModelReply) -> int | None:
    """Return the number of the event that contains the reply, among all events that the reply's log entry emitted.

    If none matches, return the first of these events, or None if the entry emitted no events.
    """
    before, after = recording.course[index].events, recording.course[index + 1].events
    numbers = range(before + 1, after + 1)
    matches = (n for n in numbers if (event := recording.moment(n).event) and event.content == reply.content)
    return next(matches, numbers[0] if numbers else None)


async def _read_conversation(log: Log, session: Recording | None, store: str | None) -> tuple[Conversation, list[str]]:
    """Return the conversation so far, with the session's earlier invocations, and remarks about what is missing."""
    link = log.state.input.session if log.state.input else None
    if link is None:
        return Conversation(log), []
    problem = "its recording was not passed"
    for history in reversed(session.histories if session else ()):  # the latest run has the transcript of earlier ones
        reader = SessionReader(link.id, Blobs(store))
        try:
            await reader.read(history.events)
        except (ForeignHistory, StoreFailed) as error:
            problem = str(error)
            continue
        if link.number in reader.transcript.marks:
            return Conversation(log, reader.transcript, reader.transcript.marks[link.number]), []
        problem = "its history does not contain this invocation"
    missing = f"Earlier invocations of session {link.id!r} are missing: {problem.rstrip('.')}."
    return Conversation(log), [missing]
