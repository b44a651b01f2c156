"""No planted text is left in a redacted file, neither plain nor in Base64."""

import base64
import binascii
import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter

from tests.programs import command
from tests.server.cli.conftest import Command, waystation
from tests.server.conftest import Serve
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.approval import ApprovalPolicy
from waystation.core.log import is_working
from waystation.history import SavedHistory, decode_histories, format_saved_history
from waystation.replay import Recording, redaction, replay
from waystation.replay.redaction import NotRedacted, RedactionRules, Redactor, redact, redact_history
from waystation.storage.driver import offloading
from waystation.testing import AgentEnvironment, ScriptedModel, calls, says
from waystation.tools.agent_tool import AgentTool
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext

__all__ = ["waystation"]

PLACES = (
    *("message", "state", "user", "metadata", "model", "argument", "response", "item", "delta", "raised", "large"),
    *("comment", "person", "approver", "signal", "junk", "helper", "child", "header", "memo", "identity", "summary"),
    *("statekey", "artifact", "principal"),
)


def canary(place: str) -> str:
    """Return a text to plant at a place."""
    return f"Tweety{place.capitalize()}Sings"


def texts_in(held: Any) -> Iterator[str]:
    """Yield every text of a file, and the decoded text if it is Base64."""
    match held:
        case dict():
            for key, value in held.items():
                yield key
                yield from texts_in(value)
        case list():
            for each in held:
                yield from texts_in(each)
        case str():
            yield held
            with contextlib.suppress(binascii.Error, ValueError):
                yield base64.b64decode(held, validate=True).decode(errors="replace")


def find_texts(held: Any, places: Iterable[str] = PLACES) -> set[str]:
    """Return the places whose planted texts are in a file."""
    all_of_it = "\n".join(texts_in(held))
    return {place for place in places if canary(place) in all_of_it}


def look(customer: str, tool_context: ToolContext) -> dict[str, Any]:
    """Look up a customer."""
    tool_context.state["seen"] = canary("delta")
    tool_context.state[f"notes on {canary('statekey')}"] = 1
    tool_context.actions.artifact_delta[f"{canary('artifact')}.txt"] = 0
    return {"email": canary("response"), "items": [canary("item")], "text": canary("large") * 2_000}


def fail(reason: str) -> None:
    """Raise."""
    raise ValueError(canary("raised"))


def pay(amount: int, to: str) -> dict[str, int]:
    """Pay."""
    return {"paid": amount}


def agent() -> Agent:
    """Return an agent with a tool of each kind."""
    helper = Agent(name="helper", description="Helps.", model=ScriptedModel(says(canary("helper"))))
    model = ScriptedModel(
        calls(("look", {"customer": canary("argument")}), ("fail", {"reason": "x"}), text=canary("model")),
        calls(("helper", {"request": canary("child")}), ("pay", {"amount": 5, "to": "dana@example.com"})),
        says(f"dana@example.com has it; the key was sk-{'a1' * 12}."),
    )
    policy = ApprovalPolicy(approvers=(canary("approver"), canary("person")), verified=False)
    payer = FunctionTool(pay, require_confirmation=True, approval=policy)
    return Agent(name="teller", model=model, tools=[look, fail, payer, AgentTool(helper)])


@pytest.fixture
async def planted_histories(serve: Serve) -> tuple[SavedHistory, DataConverter]:
    """Return an invocation with a planted text in every possible place."""
    async with serve(agent(), offload_over=10_000, verify=False) as env:
        invocation = await env.client.start(
            "teller",
            canary("message"),
            state={"s": canary("state"), "api_key": "hunter2-hunter2"},
            user_id=canary("user"),
            metadata={"m": canary("metadata")},
        )
        await _answered(env, invocation)
        saved = await invocation.saved()
        first = saved.histories[0].events[0]
        started = first.workflow_execution_started_event_attributes
        started.header.fields["x"].CopyFrom(_payload("header"))
        started.memo.fields["note"].CopyFrom(_payload("memo"))
        started.identity = canary("identity")
        first.user_metadata.details.CopyFrom(_payload("summary"))
        first.principal.name = canary("principal")
        return saved, offloading(env.client.blobs, short_forms=True)


async def _answered(env: AgentEnvironment, invocation: Invocation) -> None:
    async for log in invocation.follow():
        if log.state.waiting() and not is_working(log.state):
            break
    await invocation.handle.signal(canary("signal"), "x")
    await invocation.handle.signal("answer", canary("junk"))
    (call,) = await invocation.pending()
    await invocation.answer(
        "approve", call.function_call_id, by=canary("person"), comment=canary("comment"), digest=call.digest
    )
    await invocation.result()


def _payload(place: str) -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(canary(place)).encode())


async def decoded(saved: SavedHistory, converter: DataConverter) -> SavedHistory:
    """Return histories without encryption."""
    histories = await decode_histories(saved.histories, converter)
    return SavedHistory(histories, [await decoded(agent, converter) for agent in saved.called])


async def test_no_text_is_left_anywhere(planted_histories: tuple[SavedHistory, DataConverter], tmp_path: Path) -> None:
    """Texts, keys, names of people, payloads and Temporal's own texts are all hidden, except what the ID contains."""
    assert find_texts(format_saved_history(await decoded(*planted_histories))) == set(PLACES)
    redacted = await redact(planted_histories[0], ["text"], converter=planted_histories[1])
    assert find_texts(format_saved_history(redacted)) == find_texts(planted_histories[0].histories[0].workflow_id)
    file = tmp_path / "redacted.json"
    file.write_text(json.dumps(format_saved_history(redacted)))
    recording = await Recording.read(file)
    await replay(recording)
    assert [call.name for call in recording.log.state.calls.values()] == ["look", "fail", "helper", "pay"]
    assert recording.log.state.calls["fc-4"].closed
    looked = recording.log.state.calls["fc-1"].response
    assert looked is not None
    assert len(looked["text"]) == len(canary("large")) * 2_000


async def test_a_redaction_that_does_not_replay_is_not_written(
    planted_histories: tuple[SavedHistory, DataConverter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A redaction that does not replay raises an error, here because the digests of calls are not recomputed."""
    monkeypatch.setattr(redaction, "_recompute", lambda *_: {})
    with pytest.raises(NotRedacted, match=r"would not replay: recorded: wait for approval of pay"):
        await redact(planted_histories[0], ["text"], converter=planted_histories[1])


async def test_secrets_are_hidden_in_every_repetition(planted_histories: tuple[SavedHistory, DataConverter]) -> None:
    """Secrets are found by the name of the field and the form of the text; everything else stays."""
    held = "\n".join(
        texts_in(format_saved_history(await redact(planted_histories[0], ["secrets"], converter=planted_histories[1])))
    )
    assert "hunter2" not in held
    assert "sk-a1" not in held
    assert canary("message") in held
    assert "dana@example.com" in held


@pytest.mark.slow
async def test_a_field_is_hidden_by_its_name_and_in_other_texts(
    planted_histories: tuple[SavedHistory, DataConverter],
) -> None:
    """A rule matches the end of a path, and its values are also hidden where the model repeats them."""
    held = "\n".join(
        texts_in(
            format_saved_history(await redact(planted_histories[0], ["field:args.to"], converter=planted_histories[1]))
        )
    )
    assert "dana@example.com" not in held
    assert canary("argument") in held
    held = "\n".join(
        texts_in(
            format_saved_history(await redact(planted_histories[0], ["field:other.to"], converter=planted_histories[1]))
        )
    )
    assert "dana@example.com" in held


def test_a_failure_is_hidden_with_its_causes_and_its_stack() -> None:
    """A redacted failure hides its causes, its stack and the activity's last heartbeat."""
    places = ("message", "trace", "beat", "cause")
    event = HistoryEvent(event_type=EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED)
    failure = event.activity_task_failed_event_attributes.failure
    failure.message, failure.stack_trace = canary("message"), canary("trace")
    failure.timeout_failure_info.last_heartbeat_details.payloads.append(_payload("beat"))
    failure.cause.message = canary("cause")
    failure.cause.application_failure_info.details.payloads.append(_payload("cause"))
    started = HistoryEvent(event_id=1)
    started.workflow_execution_started_event_attributes.workflow_type.name = "AgentInvocation"
    redacted = redact_history(WorkflowHistory("x", [started, event]), Redactor(RedactionRules(text=True)))
    assert find_texts(redacted.to_json_dict(), places) == set()


@pytest.mark.slow
async def test_the_command_writes_a_redacted_file(waystation: Command, serve: Serve, tmp_path: Path) -> None:
    """The command redacts an invocation on a server or in a file, and refuses an invalid rule."""
    model = ScriptedModel(says(canary("model")))
    async with serve(Agent(name="teller", model=model)) as env:
        invocation = await env.client.start("teller", canary("message"))
        await invocation.result()
        whole = (await waystation(env, "history", invocation.id)).out
        ran = await waystation(env, "history", invocation.id, "--redact", "text")
    assert find_texts(json.loads(whole)) == {"message", "model"}
    assert (ran.code, find_texts(json.loads(ran.out))) == (0, set())
    file = tmp_path / "whole.json"
    file.write_text(whole)
    assert find_texts(json.loads((await command("history", str(file), "--redact", "text")).out)) == set()
    refused = await command("history", str(file), "--redact", "names")
    assert (refused.code, refused.out) == (2, "")
    assert "'names' is not a valid rule" in refused.err
