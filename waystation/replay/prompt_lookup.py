"""Rebuild the prompt of a model call from a recording."""

from dataclasses import replace
from typing import TYPE_CHECKING

from waystation.core import (
    Conversation,
    ForeignHistory,
    Log,
    ModelCalled,
    ModelReplied,
    ModelReply,
    NoPrompt,
    StoreFailed,
    next_phase,
    verdict,
)
from waystation.core.conversation import prompt
from waystation.history import SessionReader
from waystation.replay.prompt import Agents, Prompt, PromptContext
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

    Of an event in which a model replied it is the prompt that gave this reply; of any other the one that a model was
    given next after it, or would have been given, had it been context. The last event if `number` is left out.

    Args:
        recording: Where the event is.
        number: The event's, from 1; 0 is before the first.
        agents: Where the agent is found. Instructions that are functions and toolsets are asked anew; nothing else of
            its author's runs. Without it the prompt has no instruction, tools and settings.
        callbacks: Whether to run `before_model` callbacks, and tools that change requests, on this machine.
        services: What instructions with `{artifact.…}` and callbacks read; by default as a worker in this folder.
        session: Of the session that the invocation belongs to: what was said before.
        store: Where the workers keep large payloads.

    Raises:
        NoSuchEvent: The recording has no such event.
        NoPrompt: No model was asked after it.
        UnknownAgent: None of the agents has the name.
    """
    moment = recording.moment(number)
    context = _context(recording, moment)
    said, remarks = await _conversation(context.log, session, store)
    if context.log.entries_before:
        remarks.append("Earlier runs are missing from the recording, and what was said in them from this prompt.")
    compaction = context.reply.compaction if context.reply else None
    summary = compaction.event(recording.id, context.work.branch) if compaction else None
    found = Prompt(
        at=moment.number,
        agent=context.work.agent,
        call=context.call,
        gave=context.gave,
        contents=prompt.contents(said, agent=context.work.agent, branch=context.work.branch, summary=summary),
        remarks=remarks,
    )
    if agents is None:
        missing = "Only what was said: instruction, tools and settings are the agent's, which --agents DIR (`agents=`)"
        return replace(found, remarks=[*remarks, f"{missing} would add."])
    # Here, because it loads all that a worker loads.
    from waystation.replay.activity_replay import as_declared

    return await as_declared(found, recording, context, said, agents, callbacks=callbacks, services=services)


def _context(recording: Recording, moment: Moment) -> PromptContext:
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
            gave = _gave(recording, at, reply) if at is not None and reply else None
            reason = (
                (reply.wrap_up if reply else None)
                or verdict(log.state, work, next_phase(log.state, work)).reason
                or "it is used up"
            )
            return PromptContext(log, work, called.number, reply, gave, reason if called.wrap_up else None)
    models = [work for work in moment.log.state.runs.by_index.values() if work.shape.kind == "llm"]
    if not models or moment.log.state.input is None:
        text = f"no model was asked after event {moment.number}, nor would one have been"
        raise NoPrompt(f"{recording.source!r}: {text}.")
    return PromptContext(moment.log, models[-1], None, None, None)


def _gave(recording: Recording, index: int, reply: ModelReply) -> int | None:
    """Return the number of the event with what the model said; others may have come of the same entry."""
    before, after = recording.course[index].events, recording.course[index + 1].events
    numbers = range(before + 1, after + 1)
    said = (n for n in numbers if (event := recording.moment(n).event) and event.content == reply.content)
    return next(said, numbers[0] if numbers else None)


async def _conversation(log: Log, session: Recording | None, store: str | None) -> tuple[Conversation, list[str]]:
    """Return what was said until then, earlier in the session included, and what is missing of it."""
    link = log.state.input.session if log.state.input else None
    if link is None:
        return Conversation(log), []
    problem = "its history was not given"
    for history in reversed(session.histories if session else ()):  # a later run knows what was said in earlier ones
        reader = SessionReader(link.id, Blobs(store))
        try:
            await reader.read(history.events)
        except (ForeignHistory, StoreFailed) as error:
            problem = str(error)
            continue
        if link.number in reader.transcript.marks:
            return Conversation(log, reader.transcript, reader.transcript.marks[link.number]), []
        problem = "its history does not begin this invocation"
    missing = f"What was said before in session {link.id!r} is missing: {problem.rstrip('.')}."
    return Conversation(log), [missing]
