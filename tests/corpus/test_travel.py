"""Moments of recordings, and differences between moments and between invocations."""

import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHistory

from tests.paths import HISTORIES
from tests.programs import command
from waystation.core.contract import Call, EventActions, InvocationInput, ModelReply, ToolOutcome
from waystation.core.errors import NoSuchEvent
from waystation.core.log import (
    START,
    Began,
    Body,
    CallReturned,
    Log,
    MessageJoined,
    ModelCalled,
    ModelCallRef,
    ModelReplied,
    parse_ref,
)
from waystation.replay import Changes, Pair, Recording, difference, prompt_at

INVOCATIONS = [path for path in sorted(HISTORIES.glob("*.json")) if not path.name.endswith(".held.json")]


async def read_history(name: str) -> Recording:
    """Read a history of the corpus."""
    return await Recording.read(HISTORIES / f"{name}.json", store=str(HISTORIES / "store"))


def history_path(name: str) -> str:
    """Return the path of a history of the corpus."""
    return str(HISTORIES / f"{name}.json")


async def test_a_moment_has_the_state_of_its_time() -> None:
    """A moment has the state, the pending calls and the event of that time."""
    recording = await read_history("confirmation-approved")
    moments = list(recording.moments())
    assert [moment.number for moment in moments] == [1, 2, 3, 4, 5, 6]
    assert [moment.event for moment in moments] == list(recording.events)
    assert [[call.function_call_id for call in moment.pending] for moment in moments] == [
        *([], ["fc-1"], ["fc-1"], [], [], []),
    ]
    assert [moment.state for moment in moments] == [{"seed": 1}] * 4 + [{"seed": 1, "notes": {"x": True}}] * 2
    assert (moments[2].log.state.session.values, len(moments[2].log.state.events)) == ({"seed": 1}, 3)
    assert moments[0].time <= moments[-1].time


@pytest.mark.parametrize("path", INVOCATIONS, ids=lambda path: path.stem)
async def test_moments_of_every_kept_history_equal_those_of_its_log(path: Path) -> None:
    """A log that is rebuilt up to a moment gives the same moment."""
    recording = await Recording.read(path, store=str(HISTORIES / "store"))
    for entries, point in list(enumerate(recording.course))[:: max(1, len(recording.course) // 8)]:
        log = recording.after(entries)
        assert (point.state, list(point.pending)) == (log.state.session.values, log.state.pending())
    last = recording.moment()
    assert (last.state, last.number) == (recording.log.state.session.values, recording.log.state.event_count)


async def test_the_state_at_an_event_excludes_later_events() -> None:
    """Later events are excluded even if they belong to the same log entry."""
    recording = await read_history("callbacks")
    assert [(moment.entries, moment.state["calls"]) for moment in list(recording.moments())[1:3]] == [(3, 1), (3, 4)]


async def test_an_unknown_event_number_is_refused_with_the_valid_range() -> None:
    """An unknown event number raises NoSuchEvent."""
    with pytest.raises(NoSuchEvent, match="has events 0 to 6"):
        (await read_history("confirmation-approved")).moment(7)
    ran = await command("state", history_path("confirmation-approved"), "--at", "7")
    assert (ran.code, "has events 0 to 6" in ran.err) == (6, True)


async def test_a_difference_of_two_moments_lists_changes() -> None:
    """The difference lists state keys, events, and calls that became pending or were answered."""
    recording = await read_history("confirmation-approved")
    changed = difference(recording.moment(1), recording.moment(6))
    assert (changed.state.added, changed.state.changed, changed.state.removed) == ({"notes": {"x": True}}, {}, {})
    assert [event.index for event in changed.events] == [1, 2, 3, 4, 5]
    parked = difference(recording.moment(1), recording.moment(3))
    assert ([call.tool for call in parked.began_to_wait], bool(parked.state)) == (["pay"], False)
    back = difference(recording.moment(6), recording.moment(1))
    assert (back.state.removed, list(back.events)) == ({"notes": {"x": True}}, [])
    assert not difference(recording.moment(4), recording.moment(4))


async def test_a_difference_of_two_prompts_lists_added_contents() -> None:
    """The difference lists the contents that the later prompt added."""
    recording = await read_history("one-tool")
    changed = difference(await prompt_at(recording, 2), await prompt_at(recording, 4))
    assert [(sign, content["role"]) for sign, content in changed.contents] == [("+", "model"), ("+", "user")]
    assert not any((changed.instruction, changed.tools, changed.config))


async def test_two_invocations_are_compared_by_their_events() -> None:
    """The comparison ignores IDs and times, and the first differing event comes with its state."""
    left, right = await read_history("confirmation-approved"), await read_history("confirmation-rejected")
    apart = difference(left, right)
    assert apart.first
    assert (apart.first.left, apart.first.right) == (2, 2)
    assert [(pair.left, pair.right, pair.same) for pair in apart.pairs][:3] == [
        *((1, 1, True), (2, 2, False), (3, 3, True)),
    ]
    assert not difference(left, await read_history("confirmation-approved"))
    assert difference(left, left).first is None


def made(
    call: str, *, id: str = "made", message: str = "go", stored_text: str = "done", kept: Any = 1, last: Any = 0
) -> Recording:
    """Return a recording in which a tool is called under an id and stores a value at the end."""
    log = Log(id)
    log.append(START, 0.0, Began(InvocationInput(agent="clerk", message=message)))
    part = {"functionCall": {"id": call, "name": "keep", "args": {}}}
    reply = ModelReply(content={"role": "model", "parts": [part]}, calls=(Call(id=call),))
    answered = ModelReply(
        content={"role": "model", "parts": [{"text": stored_text}]}, actions=EventActions(state_delta={"k": last})
    )
    outcome = ToolOutcome(function_call_id=call, response={}, actions=EventActions(state_delta={"k": kept}))
    bodies: list[Body] = [ModelReplied(1, reply), CallReturned(outcome), ModelReplied(2, answered)]
    for number, body in enumerate(bodies):
        if isinstance(body, ModelReplied):
            log.append(ModelCallRef(body.number, 0), 0.0, ModelCalled(body.number))
        log.append(parse_ref(f"entry-{number}"), 0.0, body)
    return Recording(id, [WorkflowHistory(id, [])], log)


def test_differing_call_ids_are_not_a_difference() -> None:
    """The comparison ignores call IDs and the order of keys, but not values."""
    assert not difference(made("fc-1"), made("fc-7"))
    apart = difference(made("fc-1", kept=True), made("fc-7", kept=1))
    assert apart.first == Pair(3, 3, same=False)
    assert (apart.state.changed, apart.state.added) == ({"k": (True, 1)}, {})
    ids_in_texts = (
        made("fc-1", id="first-1", stored_text="see first-1"),
        made("fc-1", id="second-2", stored_text="see second-2"),
    )
    assert not difference(*ids_in_texts)
    ids_in_state = [
        made("fc-1", id=id, last=f"see {id}", stored_text=said) for id, said in (("first-1", "a"), ("second-2", "b"))
    ]
    assert not difference(*ids_in_state).state
    other_start = difference(made("fc-1"), made("fc-1", message="stop"))
    assert other_start.first == Pair(1, 1, same=False)
    assert not Changes.between({"x": {"a": 1, "b": 2}}, {"x": {"b": 2, "a": 1}})


async def test_a_longer_invocation_differs_where_the_other_ends() -> None:
    """Additional events have no counterpart, and the state is compared with the last one of the other."""
    apart = difference(await read_history("one-tool"), await read_history("many-steps"))
    assert apart.first
    lefts = [pair.left for pair in apart.pairs if pair.left]
    rights = [pair.right for pair in apart.pairs if pair.right]
    assert (lefts, rights) == (list(range(1, len(lefts) + 1)), list(range(1, len(rights) + 1)))


def test_a_long_recording_shows_its_beginning_and_end() -> None:
    """A notebook shows a shortened recording."""
    log = Log("long")
    log.append(START, 0.0, Began(InvocationInput(agent="clerk", message="go")))
    for number in range(1, 301):
        log.append(parse_ref(f"joined-{number}"), 0.0, MessageJoined(f"message {number}"))
    recording = Recording("long", [WorkflowHistory("long", [])], log)
    html = recording._repr_html_()
    assert ("message 42" in html, "message 150" in html, "message 300" in html) == (True, False, True)
    assert "101 events between" in html
    assert "message 150" not in difference(recording, recording)._repr_html_()


async def test_commands_show_moments_of_a_file() -> None:
    """The commands work on a file without a server, as text and as JSON."""
    path = history_path("confirmation-approved")
    assert "  1  " in (await command("events", path)).out
    up_to = await command("events", path, "--at", "3", "--json")
    assert [record["id"].rpartition("/e")[2] for record in up_to.records] == ["1", "2", "3"]
    assert not (await command("events", path)).out.endswith("\n\n")
    between = await command("events", path, "--diff", "3", "5")
    assert ("user: go" in between.out, "pay answers" in between.out, "+  notes" in between.out) == (False, True, True)
    assert (await command("state", path, "--at", "4", "--json")).records == [{"seed": 1}]
    assert (await command("state", path, "--json")).records == [{"seed": 1, "notes": {"x": True}}]
    changed = await command("state", path, "--diff", "1", "6", "--json")
    assert changed.records == [{"from": 1, "to": 6, "added": {"notes": {"x": True}}, "changed": {}, "removed": {}}]
    assert [each["function_call_id"] for each in (await command("pending", path, "--at", "3", "--json")).records] == [
        "fc-1"
    ]
    listing = (await command("pending", path, "--at", "3")).out
    assert ("waiting for approval" in listing, "later approved" in listing) == (True, True)
    assert "No calls were waiting" in (await command("pending", path)).out


async def test_the_prompt_command_needs_the_agent_for_the_instruction(tmp_path: Path) -> None:
    """With `--agents` the prompt has the instruction, and says whether the agent has changed."""
    package = tmp_path / "travelled_clerks"
    package.mkdir()
    code = "from waystation import Agent\nroot_agent = Agent(name='clerk', model='m', instruction='Be brief.')\n"
    (package / "agent.py").write_text(code)
    path = history_path("one-tool")
    bare = await command("prompt", path, "--at", "2")
    assert ("contents (1)" in bare.out, "--agents" in bare.out) == (True, True)
    ran = await command("prompt", path, "--at", "2", "--agents", str(tmp_path))
    assert (ran.code, "Be brief." in ran.out, "has changed since" in ran.out) == (0, True, True)
    (record,) = (await command("prompt", path, "--at", "4", "--json")).records
    assert (record["call"], record["gave"], len(record["contents"])) == (2, 4, 3)
    (changed,) = (await command("prompt", path, "--diff", "2", "4", "--json")).records
    assert [each["sign"] for each in changed["contents"]] == ["+", "+"]


async def test_earlier_messages_come_only_from_the_own_session() -> None:
    """A history that belongs to another session or is not of a session is refused."""
    other = str(HISTORIES / "called-agent.json")
    ran = await command("prompt", history_path("one-tool"), "--at", "3", "--session", other)
    assert (ran.code, ran.err) == (
        2,
        f"waystation: --session {other!r} is a history of 'AgentInvocation', not of a session.\n",
    )
    session = next(str(path) for path in sorted((HISTORIES / "sessions").rglob("*.json")) if ".held." not in path.name)
    ran = await command("prompt", history_path("one-tool"), "--at", "3", "--session", session)
    assert (ran.code, "does not belong to a session" in ran.err) == (2, True)


async def test_a_session_in_a_file_is_the_wrong_file(tmp_path: Path) -> None:
    """The exit code is 2, as for other files that are not invocations."""
    session = tmp_path / "session.json"
    session.write_text((HISTORIES / "one-tool.json").read_text().replace('"AgentInvocation"', '"AgentSession"'))
    ran = await command("events", str(session))
    assert (ran.code, "'AgentSession'" in ran.err) == (2, True)


@pytest.mark.parametrize("command_name", ["events", "state", "prompt"])
async def test_a_moment_and_a_difference_exclude_each_other(command_name: str) -> None:
    """The command refuses both options together."""
    ran = await command(command_name, history_path("one-tool"), "--at", "1", "--diff", "1", "2")
    assert (ran.code, "use only one of these options" in ran.err) == (2, True)


async def test_the_diff_command_names_the_first_difference() -> None:
    """The exit code is 1 if the invocations differ, like that of `diff`."""
    left, right = history_path("confirmation-approved"), history_path("confirmation-edited")
    ran = await command("diff", left, right)
    assert (ran.code, "First difference: event 2 on the left, event 2 on the right." in ran.out) == (1, True)
    (record,) = (await command("diff", left, right, "--json")).records
    assert record["first"] == {"left": 2, "right": 2}
    same = await command("diff", left, left)
    assert (same.code, "Both recordings have the same events." in same.out) == (0, True)


async def test_pending_calls_of_a_called_agent_are_found_in_a_file(tmp_path: Path) -> None:
    """A called agent in a file is identified only by its call."""
    whole, child = (json.loads((HISTORIES / f"called-agent-waits{end}.json").read_text()) for end in ("", "-child"))
    (tmp_path / "kept.json").write_text(json.dumps({**whole, "calledAgents": [child]}))
    ran = await command("pending", str(tmp_path / "kept.json"), "--at", "3", "--called", "fc-1")
    assert (ran.code, "waiting for approval  pay(amount=5)" in ran.out) == (0, True), ran


@pytest.mark.parametrize("option", ["--agent", "--tool", "--person", "--older-than", "--below"])
async def test_pending_calls_of_a_moment_cannot_be_filtered(option: str) -> None:
    """Filters are refused together with a moment."""
    ran = await command("pending", history_path("confirmation-approved"), "--at", "3", option, "1h")
    assert (ran.code, f"Invalid value for {option}: cannot be used with a file or a past moment" in ran.err) == (
        2,
        True,
    )


async def test_a_long_history_is_traversed_backwards_without_a_rebuild(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is read once for any number of moments in any order."""
    recording = await read_history("many-steps")
    assert recording.course
    monkeypatch.setattr(Recording, "after", None)  # fails if a log is built up to an entry
    moments = [(moment.state, len(moment.pending)) for moment in reversed(list(recording.moments()))]
    assert len(moments) == recording.moment().number
    json.dumps(moments)
