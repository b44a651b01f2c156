"""`waystation replay` of invocations and files."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.paths import HISTORIES
from tests.programs import command

KEPT = HISTORIES / "long-running-approved.json"


async def test_a_file_replays_without_a_server() -> None:
    """The history itself contains the invocation ID, from which event IDs are derived."""
    ran = await command("--address", "127.0.0.1:1", "replay", str(KEPT), str(KEPT), "--json")
    assert ran.code == 0
    assert [record["replays"] for record in ran.records] == [True, True]
    assert ran.records[0]["steps"][0]["event"]["id"].startswith(ran.records[0]["invocation_id"])


async def test_earlier_stored_state_is_in_the_state_at_each_event() -> None:
    """`user:` and `app:` state from the start of the invocation is shown although no event wrote it."""
    ran = await command("replay", str(KEPT.with_name("scopes-read.json")), "--json")
    states = [step["state"] for step in ran.records[0]["steps"]]
    assert states[:2] == [{}, {"app:guests": 2, "user:called": ["Ada", "Bo"]}]


async def test_a_history_that_does_not_replay_exits_with_1(tmp_path: Path) -> None:
    """The output shows the difference, and the other histories are still replayed."""
    changed = tmp_path / "changed.json"
    changed.write_text(KEPT.read_text().replace('"call_model"', '"call.another_model"'))
    ran = await command("replay", str(changed), str(KEPT), "--json")
    assert ran.code == 1
    assert [record["replays"] for record in ran.records] == [False, True]
    problem = ran.records[0]["problem"]
    assert "call.another_model" in problem
    assert "Failure {" not in problem
    assert "differs" in (await command("replay", str(changed))).out


def _decoded(value: Any) -> Any:
    """Return a history in the form of the Web UI's download with decoded payloads: plain values, no payloads."""
    if isinstance(value, dict):
        return {"x": 1} if set(value) == {"metadata", "data"} else {k: _decoded(v) for k, v in value.items()}
    return [_decoded(item) for item in value] if isinstance(value, list) else value


async def test_an_unreadable_source_does_not_stop_the_others(tmp_path: Path) -> None:
    """Unreadable sources are named; their exit code takes precedence over that of differing histories."""
    changed, empty = tmp_path / "changed.json", tmp_path / "empty.json"
    changed.write_text(KEPT.read_text().replace('"call_model"', '"call.another_model"'))
    empty.touch()
    sources = (str(empty), str(changed), str(tmp_path / "missing.json"), str(KEPT))
    ran = await command("--address", "127.0.0.1:1", "replay", *sources, "--json")
    assert [(record["source"], record["replays"]) for record in ran.records] == [
        (sources[1], False),
        (sources[3], True),
    ]
    assert [line.split("waystation: ")[1][:11] for line in ran.err.splitlines()] == [
        f"{sources[0]!r}"[:11],
        f"{sources[2]!r}"[:11],
    ]
    assert ran.code == 2
    assert (await command("--address", "127.0.0.1:1", "replay", "an-id", str(empty), str(KEPT))).code == 8


@pytest.mark.parametrize("name", ["replay", "events", "history", "diff"])
async def test_a_folder_is_reported_as_a_folder(tmp_path: Path, name: str) -> None:
    """The path of a folder is reported as a folder and never looked up on a server."""
    sources = [str(tmp_path)] * (2 if name == "diff" else 1)
    ran = await command("--address", "127.0.0.1:1", name, *sources)
    assert (ran.code, f"{str(tmp_path)!r} is a folder, not a history file" in ran.err) == (2, True), ran.err


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "it is empty"),
        ("[" * 100_000, "its JSON is cut off"),
        ("{}", "no list of `events`"),
        ("[]", "no list of `events`"),
        ('{"events": []}', "no list of `events`"),
        ('{"events": [1]}', "it cannot be read"),
        ('{"events": [{"eventType": "NoSuchThing"}]}', "its first event is not"),
        (KEPT.read_text().replace('"AgentInvocation"', '"Other"'), "a history of 'Other'"),
        (json.dumps(_decoded(json.loads(KEPT.read_text()))), "the input of activity 'm1'"),
        (json.dumps({"events": json.loads(KEPT.read_text())["events"][4:]}), "not the workflow's start"),
        (json.dumps({"events": [e for e in json.loads(KEPT.read_text())["events"] if e["eventId"] != "7"]}), "event 7"),
        (KEPT.read_text().replace('"originalExecutionRunId"', '"firstExecutionRunId"'), "originalExecutionRunId"),
    ],
    ids=[
        "empty",
        "deep",
        "object",
        "list",
        "no events",
        "number",
        "type",
        "foreign",
        "decoded",
        "beginning lost",
        "event lost",
        "no run id",
    ],
)
async def test_a_file_that_is_not_a_history_exits_with_2(tmp_path: Path, text: str, named: str) -> None:
    """One line names the file and the mistake in it."""
    path = tmp_path / "given.json"
    path.write_text(text)
    ran = await command("replay", str(path))
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran
    assert named in ran.err
    assert "given.json" in ran.err


async def test_a_missing_file_exits_with_2(tmp_path: Path) -> None:
    """A source that ends in `.json` is a file, not the id of an invocation."""
    ran = await command("replay", str(tmp_path / "missing.json"))
    assert (ran.code, "No such file" in ran.err) == (2, True)
