"""Redacted histories replay and read as before, and hide their content."""

import itertools
import json
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory

from tests.paths import HISTORIES
from tests.programs import command
from tests.tiers import sampled
from waystation.core.log import Log
from waystation.history import SavedHistory, format_saved_history, read_history_file
from waystation.replay import Recording, replay
from waystation.replay.redaction import redact
from waystation.storage import Blobs
from waystation.storage.driver import offloading

NAMES = sorted(path.name.removesuffix(".held.json") for path in HISTORIES.glob("*.held.json"))
SESSIONS = sorted(path.stem for path in (HISTORIES / "sessions").glob("*.json"))
RULES = {
    "secrets": ["secrets"],
    "fields": ["field:amount", "field:request", "field:args.purpose", "field:reason", "field:text"],
    "text": ["text"],
}


def outline(log: Log) -> list[object]:
    """Return the steps of an invocation without their content."""
    events = [
        (event.id, event.author, event.branch, [sorted(part) for part in (event.content or {}).get("parts", ())])
        for event in log.state.events
    ]
    waits = [(call.function_call_id, call.tool, call.kind, call.deadline) for call in log.state.pending()]
    calls = [
        (call.id, call.name, call.gate, call.closed, call.answer and call.answer.action)
        for call in log.state.calls.values()
    ]
    ended = log.state.outcome.ended if log.state.outcome.ended else None
    return [
        [(str(entry.ref), type(entry.body).__name__) for entry in log.entries],
        events,
        calls,
        waits,
        ended,
        [*log.state.session.values],
    ]


async def kept_redacted(path: Path, rules: list[str], tmp_path: Path) -> Path:
    """Redact a history of the corpus into a file."""
    saved = await redact(
        read_history_file(path), rules, converter=offloading(Blobs(HISTORIES / "store"), short_forms=True)
    )
    file = tmp_path / f"{path.stem}.json"
    file.write_text(json.dumps(format_saved_history(saved)))
    return file


@pytest.mark.parametrize(("name", "rules"), sampled([*itertools.product(NAMES, RULES)]))
async def test_a_redacted_history_replays_and_reads_as_before(name: str, rules: str, tmp_path: Path) -> None:
    """Entries, events, calls and waits stay the same, and reading them needs no store."""
    before = await Recording.read(HISTORIES / f"{name}.json", store=str(HISTORIES / "store"))
    after = await Recording.read(await kept_redacted(HISTORIES / f"{name}.json", RULES[rules], tmp_path))
    await replay(after)
    assert outline(after.log) == outline(before.log)


def test_a_redacted_history_is_a_saved_one() -> None:
    """A redacted history can be saved as a history file with the redacted values."""
    assert isinstance(read_history_file(HISTORIES / "one-tool.json"), SavedHistory)


async def test_without_the_store_nothing_is_redacted(tmp_path: Path) -> None:
    """Redaction fails if large values are missing from the store, because the file would not replay."""
    ran = await command("--store", str(tmp_path), "history", str(HISTORIES / "offloaded.json"), "--redact", "text")
    assert (ran.code, ran.out, "Set --store to the workers' store." in ran.err) == (1, "", True), ran


@pytest.mark.parametrize(("name", "rules"), sampled([*itertools.product(SESSIONS, RULES)]))
async def test_a_redacted_session_replays(name: str, rules: str, tmp_path: Path) -> None:
    """Every kept session replays after redaction."""
    kept = json.loads((HISTORIES / "sessions" / f"{name}.json").read_text())
    one = SavedHistory([WorkflowHistory.from_json(kept["id"], kept["history"])])
    saved = await redact(one, RULES[rules], converter=offloading(Blobs(HISTORIES / "store"), short_forms=True))
    for history in saved.histories:
        await replay(history)
