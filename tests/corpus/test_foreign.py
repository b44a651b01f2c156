"""Unreadable files and invocations are refused in one line with cause and remedy."""

import asyncio
import base64
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.paths import HISTORIES, ROOT
from tests.programs import command
from tests.tiers import sampled
from waystation.core import ids
from waystation.history import history_files
from waystation.replay import Recording

KEPT = HISTORIES / "long-running-approved.json"


CORPUS = sorted(path for path in HISTORIES.glob("*.json") if not path.name.endswith(".held.json"))


COMMANDS = [
    ("replay",),
    ("report", "--json"),
    ("events", "--at", "1"),
    ("state", "--at", "1"),
    ("pending", "--at", "1"),
    ("prompt", "--at", "1"),
    ("audit", "export"),
    ("history", "--redact", "text"),
]
"""Commands that take a file."""


def text_of(change: Callable[[str], str]) -> str:
    """Return the text of a history file after a change."""
    changed = change(KEPT.read_text())
    assert changed != KEPT.read_text()
    return changed


def without(number: str) -> str:
    """Return a history file without one event."""
    found = json.loads(KEPT.read_text())
    return json.dumps({"events": [event for event in found["events"] if event["eventId"] != number]})


def recoded(encoding: str) -> str:
    """Return a history file with payloads that a codec has encoded."""
    found = json.loads(KEPT.read_text())

    def each(value: Any) -> Any:
        if isinstance(value, dict) and set(value) == {"metadata", "data"}:
            return {"metadata": {"encoding": base64.b64encode(encoding.encode()).decode()}, "data": "c2VjcmV0"}
        if isinstance(value, dict):
            return {name: each(held) for name, held in value.items()}
        return [each(held) for held in value] if isinstance(value, list) else value

    return json.dumps(each(found))


def marked(mark: str) -> str:
    """Return a history file with a marker of `workflow.patched`."""
    found = json.loads(KEPT.read_text())
    data = base64.b64encode(json.dumps({"id": mark, "deprecated": False}).encode()).decode()
    payload = {"metadata": {"encoding": base64.b64encode(b"json/plain").decode()}, "data": data}
    event = {
        "eventId": str(len(found["events"]) + 1),
        "eventTime": found["events"][-1]["eventTime"],
        "eventType": "EVENT_TYPE_MARKER_RECORDED",
        "markerRecordedEventAttributes": {
            "markerName": "core_patch",
            "details": {"patch-data": {"payloads": [payload]}},
        },
    }
    found["events"].append(event)
    return json.dumps(found)


def edited(change: Callable[[list[Any]], None]) -> str:
    """Return a history file after an edit of its events."""
    found = json.loads(KEPT.read_text())
    change(found["events"])
    return json.dumps(found)


def without_its_message(events: list[Any]) -> None:
    """Remove the message from the input."""
    [payload] = events[0]["workflowExecutionStartedEventAttributes"]["input"]["payloads"]
    given = json.loads(base64.b64decode(payload["data"]))
    del given["message"]
    payload["data"] = base64.b64encode(json.dumps(given).encode()).decode()


def of_another_activity(events: list[Any]) -> None:
    """Make the first started activity refer to an event that did not schedule it."""
    started = next(event for event in events if event["eventType"] == "EVENT_TYPE_ACTIVITY_TASK_STARTED")
    started["activityTaskStartedEventAttributes"]["scheduledEventId"] = "1"


FOREIGN: dict[str, tuple[Callable[[], str], str]] = {
    "empty": (lambda: "", "it is empty"),
    "blank": (lambda: " \n ", "it is empty"),
    "a proxy's error": (lambda: "<!DOCTYPE html><html><body>502 Bad Gateway</body></html>", "it is HTML or XML"),
    "words": (lambda: "Error: context deadline exceeded", "it is not JSON"),
    "another JSON": (lambda: '{"hello": "world"}', "no list of `events`"),
    "a list": (lambda: "[1, 2]", "it cannot be read"),
    "a package": (lambda: '{"name": "x", "version": "1.0.0", "events": {}}', "no list of `events`"),
    "another workflow": (lambda: text_of(lambda t: t.replace('"AgentInvocation"', '"Order"')), "a history of 'Order'"),
    "cut off": (lambda: text_of(lambda t: t[: len(t) // 2]), "its JSON is cut off after"),
    "cut off in a text": (
        lambda: text_of(lambda t: t[: t.index("TIMER_STARTED") + 9]),
        "its JSON is cut off after",
    ),
    "damaged": (
        lambda: text_of(lambda t: t.replace("eventTime", 'event"Time', 1)),
        "it is damaged JSON at line ",
    ),
    "without its beginning": (lambda: without("1"), "its first event is not the workflow's start"),
    "without a middle event": (lambda: without("7"), "event 7 is missing; the next event is 8"),
    "an event of a server that is newer": (
        lambda: text_of(lambda t: t.replace("EVENT_TYPE_WORKFLOW_TASK_COMPLETED", "EVENT_TYPE_UNHEARD_OF", 1)),
        "event 4 has a type unknown to the installed Temporal SDK",
    ),
    "an activity out of nothing": (
        lambda: edited(of_another_activity),
        "belongs to an activity that event 1 did not schedule",
    ),
    "edited against what follows": (lambda: edited(without_its_message), "is inconsistent (KeyError: "),
    "its first page": (
        lambda: json.dumps({"history": json.loads(KEPT.read_text()), "nextPageToken": "CAE="}),
        "the first page of a history",
    ),
    "encrypted": (lambda: recoded("binary/encrypted"), "encoded as 'binary/encrypted'"),
    "compressed": (lambda: recoded("binary/zlib"), "encoded as 'binary/zlib'"),
    "a newer mark": (
        lambda: marked("fewer-events"),
        "newer version of Waystation: it contains the marker 'fewer-events'",
    ),
    "a newer activity": (
        lambda: text_of(lambda t: t.replace('"call_model"', '"call_models"')),
        "newer version of Waystation: it contains the activity 'call_models'",
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
async def test_a_foreign_file_is_refused_with_cause_and_remedy(tmp_path: Path, name: str) -> None:
    """The exit code is 2, and one line names the file, the cause and the remedy."""
    made, cause = FOREIGN[name]
    path = tmp_path / "given.json"
    path.write_text(made())
    ran = await command("report", str(path), "--json")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran
    assert cause in ran.err
    assert "given.json" in ran.err
    remedies = ("Save one with", "Save it again", "Waystation only reads", "--codec-endpoint", "Update Waystation")
    assert any(remedy in ran.err for remedy in remedies)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("name", ["encrypted", "a newer mark", "cut off", "edited against what follows"])
async def test_every_command_that_takes_files_refuses_them(
    tmp_path: Path, arguments: tuple[str, ...], name: str
) -> None:
    """All commands that read files report the same error for a foreign file."""
    made, cause = FOREIGN[name]
    path = tmp_path / "given.json"
    path.write_text(made())
    ran = await command(*arguments, str(path))
    assert (ran.code, ran.out, cause in ran.err) == (2, "", True), ran


async def test_a_source_that_is_not_a_file_is_refused_at_once(tmp_path: Path) -> None:
    """Neither a folder nor an idle pipe blocks the command."""
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    for name, cause in (("folder.json", "is a folder"), ("pipe.json", "is not a regular file")):
        ran = await command("replay", str(tmp_path / name))
        assert (ran.code, cause in ran.err, name in ran.err) == (2, True, True), ran


async def test_a_file_beyond_all_limits_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file above the size limit, which is far above the server's, is refused before it is read."""
    assert history_files.MAX_BYTES > 4 * 50_000_000
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(history_files.MAX_BYTES + 1)
    ran = await command("replay", str(tmp_path / "huge.json"))
    assert (ran.code, "is 300 MB, but a history file can be at most 300 MB" in ran.err) == (2, True), ran
    monkeypatch.setattr(history_files, "MAX_BYTES", KEPT.stat().st_size)
    assert (await command("report", str(KEPT), "--json")).code == 0


@pytest.mark.parametrize("count", range(1, 25, 3))
async def test_a_missing_tail_is_accepted(tmp_path: Path, count: int) -> None:
    """A history without its last events is valid."""
    history = json.loads(KEPT.read_text())
    (tmp_path / "open.json").write_text(json.dumps({"events": history["events"][:count]}))
    whole = await Recording.read(KEPT)
    cut = await Recording.read(tmp_path / "open.json")
    assert [event.id for event in cut.events] == [event.id for event in whole.events][: len(cut.events)]


def decoded(value: Any, *, metadata: bool) -> Any:
    """Return a history in the form of the Web UI's download with decoded payloads.

    Source: temporalio/ui, src/lib/utilities/decode-payload.ts. Like older versions, it leaves out `metadata`.
    """
    if isinstance(value, dict) and {"metadata", "data"} <= set(value):
        encoding = base64.b64decode(value["metadata"]["encoding"]).decode()
        data = json.loads(base64.b64decode(value["data"])) if encoding == "json/plain" else None
        if data is None:
            return value
        plain = {name: base64.b64decode(held).decode() for name, held in value["metadata"].items()}
        return {"metadata": plain, "data": data} if metadata else data
    if isinstance(value, dict):
        return {name: decoded(held, metadata=metadata) for name, held in value.items()}
    return [decoded(held, metadata=metadata) for held in value] if isinstance(value, list) else value


@pytest.mark.parametrize("metadata", [True, False], ids=["with metadata", "older"])
@pytest.mark.parametrize("path", sampled(CORPUS), ids=lambda path: path.stem)
async def test_a_decoded_download_of_the_web_ui_is_equivalent(tmp_path: Path, path: Path, metadata: bool) -> None:
    """A decoded download is read as the same history, including markers, memo and failures."""
    history = decoded(json.loads(await asyncio.to_thread(path.read_text)), metadata=metadata)
    (tmp_path / path.name).write_text(json.dumps(history))
    store = str(HISTORIES / "store")
    whole, read = [await Recording.read(each, store=store) for each in (path, tmp_path / path.name)]
    assert read.log.entries == whole.log.entries
    assert read.events == whole.events


async def test_a_response_of_the_servers_http_api_is_a_history(tmp_path: Path) -> None:
    """A one-page response of the server's HTTP API and a bare list of events are valid histories."""
    history = json.loads(KEPT.read_text())
    for number, shape in enumerate(({"history": history, "nextPageToken": ""}, history["events"])):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(shape))
        assert (await Recording.read(path)).events == (await Recording.read(KEPT)).events


def test_workflows_record_only_known_markers() -> None:
    """Readers attribute other markers to newer versions."""
    sources = "".join(path.read_text() for path in sorted((ROOT / "workflows").glob("*.py")))
    changes = {"ids.CANCEL_STARTED", "ids.FILLED", "ids.FLUSH_BEFORE_PARKING", "ids.JOIN_IN_ORDER"}
    changes |= {"ids.ASKS_OUTCOMES", "ids.ASKS_UNSTOPPED"}
    assert set(re.findall(r"workflow\.patched\((.+?)\)", sources)) == {"mark", *changes}
    created_by = {"ids.not_found", "ids.unsearchable", "ids.uncached", "ids.unseen", "mark"}
    assert set(re.findall(r"[ (]observe\((\S+?)[(,]", sources)) == created_by
    arrivals = (ids.arrival(1, "fc-1", late=late) for late in (True, False))
    numbered = (ids.not_found(1), ids.unsearchable(1), ids.uncached(1), ids.unseen(1), *arrivals)
    known = ids.CANCEL_STARTED, ids.FILLED, ids.FLUSH_BEFORE_PARKING, ids.JOIN_IN_ORDER, ids.READ_BEFORE_START
    changed = (*known, ids.ASKS_OUTCOMES, ids.ASKS_UNSTOPPED)
    assert all(map(ids.is_known_mark, (*numbered, *changed)))
    assert not ids.is_known_mark("another-1")
