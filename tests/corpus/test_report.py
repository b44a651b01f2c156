"""Reports on invocations, as JSON and as a page."""

import html.parser
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.paths import HISTORIES
from tests.programs import command
from tests.tiers import sampled
from waystation.core.conversation import prompt
from waystation.core.payload import JsonObject, encode
from waystation.history import SavedHistory, format_saved_history, read_history_file
from waystation.replay import Recording, invocation_report, report

KEPT = sorted(path for path in HISTORIES.glob("*.json") if not path.name.endswith(".held.json"))


VOID = {"meta", "link", "input", "rect", "line", "circle"}


class Page(html.parser.HTMLParser):
    """A parsed page. Checks that tags are closed, ids are unique, and links have targets."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: Counter[str] = Counter()
        self.links: set[str] = set()
        self.tags: Counter[str] = Counter()
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []
        assert [id for id, count in self.ids.items() if count > 1] == []
        assert {link.removeprefix("#") for link in self.links} <= set(self.ids)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record a tag."""
        self.tags[tag] += 1
        attributes = dict(attrs)
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        if attributes.get("id"):
            self.ids[str(attributes["id"])] += 1
        if "href" in attributes and tag == "a":
            self.links.add(str(attributes["href"]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record a tag without content."""
        self.tags[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        """Close the latest tag."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Collect the visible text."""
        if not {"script", "style"} & set(self.open):
            self.text += data


@pytest.mark.parametrize("path", sampled(KEPT), ids=lambda path: path.stem)
async def test_every_kept_history_has_a_page(path: Path) -> None:
    """The page of every kept history is valid HTML with all events."""
    recording = await Recording.read(path, store=str(HISTORIES / "store"))
    made_report = report(recording)
    assert [each["event"] for each in made_report.to_json()["events"]] == [
        event.to_json() for event in recording.events
    ]
    page = Page(made_report.html())
    assert {f"e{recording.events_before + n}" for n in range(1, len(recording.events) + 1)} <= set(page.ids)


async def test_prompts_are_described_by_references_to_events() -> None:
    """Each rebuilt prompt equals the model's request, and repeated parts are references to events."""
    recording = await Recording.read(HISTORIES / "many-steps.json")
    made_report = report(recording).to_json()
    prompt_contents: dict[int, list[JsonObject]] = {}
    parts = {event["number"]: event["event"]["content"]["parts"] for event in made_report["events"]}
    for call in made_report["model_calls"]:
        made = call["prompt"]
        begins = made.get("begins_as", {"model_call": 0, "contents": 0})
        known = prompt_contents.get(begins["model_call"], [])[: begins["contents"]]
        own = [{"role": each["role"], "parts": parts[each["parts"][0]["event"]]} for each in made["then"]]
        assert len(own) <= 2
        prompt_contents[call["number"]] = [*known, *own]
        number = made["then"][-1]["parts"][0]["event"]
        expected = prompt.contents(recording.at(number))
        assert without_ids(prompt_contents[call["number"]]) == without_ids(expected)
    assert len(prompt_contents) == 9


def without_ids(contents: list[JsonObject]) -> Any:
    """Return contents without call ids."""
    text = json.dumps(contents)
    plain: Any = json.loads(text, object_hook=lambda held: {key: value for key, value in held.items() if key != "id"})
    return plain


async def test_a_change_of_the_definition_is_placed_between_its_calls(tmp_path: Path) -> None:
    """The digests in the replies show the change."""
    (history,) = read_history_file(HISTORIES / "many-steps.json").histories
    replies = [
        payload
        for event in history.events
        for payload in event.activity_task_completed_event_attributes.result.payloads
        if b'"definition"' in payload.data
    ]
    for payload in replies[3:]:
        payload.data = encode({**json.loads(payload.data), "definition": "another"})
    (tmp_path / "changed.json").write_text(json.dumps(format_saved_history(SavedHistory([history]))))
    made_report = report(await Recording.read(tmp_path / "changed.json"))
    changed = {call["number"]: call.get("definition_changed") for call in made_report.to_json()["model_calls"]}
    (number,) = [number for number, change in changed.items() if change]
    assert (number, changed[4]["since_model_call"], changed[4]["after"]) == (4, 3, "another")
    assert "changed between model call 3 and 4" in Page(made_report.html()).text


async def test_a_page_shows_the_first_and_last_of_many_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page gives the number of omitted events and where to find all."""
    monkeypatch.setattr(invocation_report, "FIRST", 2)
    monkeypatch.setattr(invocation_report, "LAST", 5)
    monkeypatch.setattr(invocation_report, "GROUP", 3)
    text = report(await Recording.read(HISTORIES / "many-steps.json")).html()
    assert "11 events after number 2 are omitted here" in text
    assert [n for n in range(1, 19) if f'id="e{n}"' in text] == [1, 2, 14, 15, 16, 17, 18]
    assert text.count('<details class="group"') == 3


async def test_a_notebook_shows_the_page_in_a_frame() -> None:
    """The page cannot affect the notebook."""
    made_report = report(await Recording.read(HISTORIES / "one-tool.json"))
    frame = made_report._repr_html_()
    assert frame.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert 'sandbox="allow-scripts"' in frame
    assert frame.count('"') == 12


async def test_the_command_writes_a_page_or_json(tmp_path: Path) -> None:
    """The report goes to a file or standard output, and a history in a file needs no server."""
    kept, made = str(HISTORIES / "one-tool.json"), tmp_path / "report.html"
    ran = await command("--address", "127.0.0.1:1", "report", kept, "-o", str(made))
    assert (ran.code, ran.out) == (0, f"{made}: {len(made.read_bytes()):,} bytes\n")
    assert made.read_text().startswith("<!doctype html>")
    assert (await command("report", kept)).out.startswith("<!doctype html>")
    ran = await command("report", kept, "--json")
    assert (ran.code, ran.records[0]["status"]) == (0, "completed")


async def test_a_recording_without_a_report_exits_with_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session, and a missing jinja2, are usage errors with the remedy."""
    session = tmp_path / "session.json"
    session.write_text((HISTORIES / "one-tool.json").read_text().replace('"AgentInvocation"', '"AgentSession"'))
    ran = await command("report", str(session), "--json")
    assert (ran.code, "'AgentSession'" in ran.err) == (2, True)
    monkeypatch.delitem(sys.modules, "waystation.presentation.html", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    ran = await command("report", str(HISTORIES / "one-tool.json"), "-o", str(tmp_path / "report.html"))
    assert (ran.code, "pip install 'waystation[report]'" in ran.err) == (2, True)
    assert (await command("report", str(HISTORIES / "one-tool.json"), "--json")).code == 0


async def test_a_page_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The message names the file and the cause."""
    ran = await command("report", str(HISTORIES / "one-tool.json"), "-o", str(tmp_path))
    assert (ran.code, ran.err) == (2, f"waystation: {str(tmp_path)!r} cannot be written: Is a directory.\n")


async def test_a_fork_names_its_source() -> None:
    """The source of the fork is on the page and in the JSON."""
    made = report(await Recording.read(HISTORIES / "forked-fork.json"))
    assert made.to_json()["fork"] == {"invocation_id": "forked", "event": 3}
    assert "forked, event 3" in made.html()
