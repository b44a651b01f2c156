"""The option `--stream` writes text while the model generates it, and writes each text once."""

import pytest

from waystation.cli.invocations import StreamedText
from waystation.cli.output import Output
from waystation.core.contract import Event, Piece
from waystation.core.payload import JsonObject


def piece(
    text: str = "", *, number: int = 1, attempt: int = 1, offset: int = 0, author: str = "a", **last: bool
) -> Event:
    """Return a partial event."""
    made = Piece(number, attempt, offset, text, **last)
    return made.event(invocation_id="i", author=author, branch=None, timestamp=0.0)


def recorded(*parts: JsonObject, author: str = "a") -> Event:
    """Return a recorded event."""
    content: JsonObject = {"role": "model", "parts": list(parts)}
    return Event(id="i/e1", invocation_id="i", author=author, timestamp=0.0, content=content)


def written(capsys: pytest.CaptureFixture[str], *events: Event) -> list[str]:
    """Return the lines written for a stream, without their times."""
    growing = StreamedText(Output())
    for event in events:
        growing.write(event)
    growing.interrupt()
    return [
        line[line.index("  ") + 2 :] if line.startswith("19") else line for line in capsys.readouterr().out.splitlines()
    ]


def test_pieces_and_the_rest_make_one_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Streamed text is not repeated by the recorded event, but calls in the event are written."""
    call = {"functionCall": {"name": "add", "args": {"a": 1}, "id": "fc-1"}}
    assert written(
        capsys,
        piece("It "),
        piece("rai", offset=3),
        piece(offset=6, complete=True),
        recorded({"text": "It rains."}, call),
    ) == ["a: It rains.", "a calls add(a=1) [fc-1]"]


def test_text_of_a_failed_attempt_is_marked_as_discarded(capsys: pytest.CaptureFixture[str]) -> None:
    """The text of the next attempt starts on a new line."""
    assert written(
        capsys,
        piece("It sn"),
        piece(offset=5, void=True),
        piece("It ", attempt=2),
        piece(attempt=2, offset=3, complete=True),
        recorded({"text": "It rains."}),
    ) == ["a: It sn", "          discarded: attempt 1 failed", "a: It rains."]


def test_text_of_two_agents_does_not_mix(capsys: pytest.CaptureFixture[str]) -> None:
    """Each agent's text starts on a new line; interrupted text is written whole when it is recorded."""
    assert written(
        capsys,
        piece("one "),
        piece("eins ", number=2, author="b"),
        piece(offset=4, complete=True),
        recorded({"text": "one two"}),
        piece(number=2, offset=5, complete=True, author="b"),
        recorded({"text": "eins zwei"}, author="b"),
    ) == ["a: one ", "b: eins ", "a: one two", "b: eins zwei"]


def test_text_that_was_missed_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    """A text with missed pieces is marked, and then the recorded text is written whole."""
    assert written(
        capsys, piece("rains", offset=3), piece(offset=8, complete=True), recorded({"text": "It rains."})
    ) == ["a: …rains", "a: It rains."]


@pytest.mark.parametrize("size", [1, 3, 7, 1_000])
def test_a_growing_text_is_wrapped_between_words(capsys: pytest.CaptureFixture[str], size: int) -> None:
    """Streamed text is wrapped like recorded text, however it is split; only words longer than a line are broken."""
    text = "It rains in Bern, and it will continue to rain.\n  - 雨雨雨雨雨雨雨雨雨雨雨雨雨雨雨雨\n\nhttps://example.com/weather/bern/2026"
    growing = StreamedText(Output(page=38, now=lambda: 0.0))
    for at in range(0, len(text), size):
        growing.write(piece(text[at : at + size], offset=at))
    growing.write(piece(offset=len(text), complete=True))
    growing.write(recorded({"text": text}))
    lines = capsys.readouterr().out.splitlines()
    assert [line[10:] for line in lines] == [
        "a: It rains in Bern, and it",
        "will continue to rain.",
        "  -",
        "雨" * 14,
        "雨雨",
        "",
        "https://example.com/weather/",
        "bern/2026",
    ]
