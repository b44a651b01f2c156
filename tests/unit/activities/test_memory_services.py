"""The memory services in memory, in SQLite and in PostgreSQL follow the same rules."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import drawn_examples
from waystation.core.errors import InputValidationError
from waystation.events import Event
from waystation.memory import BaseMemoryService, InMemoryMemoryService, MemoryEntry
from waystation.memory.postgres_memory_service import PostgresMemoryService
from waystation.memory.sqlite_memory_service import SqliteMemoryService
from waystation.tools.session_view import Session

ANN: dict[str, Any] = {"app_name": "shop", "user_id": "ann"}


@pytest.fixture(params=["in memory", "sqlite", "postgres"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> BaseMemoryService:
    """Return an empty service."""
    kinds: dict[str, Callable[[], BaseMemoryService]] = {
        "in memory": InMemoryMemoryService,
        "sqlite": lambda: SqliteMemoryService(tmp_path / "kept" / "memory.db"),
        "postgres": lambda: PostgresMemoryService(request.getfixturevalue("postgres")),
    }
    return kinds[request.param]()


def text_event(text: str, *, id: str = "", author: str = "user", **part: Any) -> Event:
    """Return an event with `text`."""
    content = types.UserContent(types.Part(text=text, **part))
    return Event(id=id or text, author=author, timestamp=0.5, content=content)


def session(*texts: str, id: str = "s1") -> Session:
    """Return a session of Ann's with these texts."""
    return Session(id=id, app_name="shop", user_id="ann", events=[text_event(text) for text in texts])


async def search(service: BaseMemoryService, query: str, **scope: str) -> list[str]:
    """Return the texts of the memories that a search finds, in order."""
    response = await service.search_memory(**{**ANN, **scope}, query=query)
    return [part.text or "" for memory in response.memories for part in memory.content.parts or ()]


async def test_a_memory_is_found_by_its_words(service: BaseMemoryService) -> None:
    """A search ignores case, returns the memory with more shared words first, and omits others."""
    await service.add_session_to_memory(session("I like green tea", "My cat likes tea", "It rains"))
    assert await search(service, "Which GREEN tea?") == ["I like green tea", "My cat likes tea"]
    assert await search(service, "snow") == []
    assert await search(service, "ten") == []


async def test_a_memory_contains_its_source(service: BaseMemoryService) -> None:
    """A memory has the event's id, its author, and its time in ISO 8601."""
    await service.add_events_to_memory(**ANN, events=[text_event("tea", id="inv/e1", author="butler")])
    (memory,) = (await service.search_memory(**ANN, query="tea")).memories
    assert memory == MemoryEntry(
        id="inv/e1",
        author="butler",
        timestamp="1970-01-01T00:00:00.500000+00:00",
        content=types.Content(role="user", parts=[types.Part(text="tea")]),
    )


async def test_at_most_ten_memories_are_found(service: BaseMemoryService) -> None:
    """A search returns the ten oldest of a hundred equal matches."""
    await service.add_session_to_memory(session(*(f"tea {number}" for number in range(100))))
    assert await search(service, "tea") == [f"tea {number}" for number in range(10)]


@pytest.mark.parametrize("other", [{"user_id": "bob"}, {"app_name": "bank"}, {"user_id": ""}])
async def test_others_find_nothing(service: BaseMemoryService, other: dict[str, str]) -> None:
    """Other users and apps can neither find nor delete a memory."""
    await service.add_session_to_memory(session("tea"))
    assert await search(service, "tea", **other) == []
    await service.delete_memory(**{**ANN, **other}, memory_id="tea")
    assert await search(service, "tea") == ["tea"]


async def test_the_same_event_is_remembered_once(service: BaseMemoryService) -> None:
    """An event is stored once, although activities are retried and sessions are added again."""
    await service.add_session_to_memory(session("green tea"))
    await service.add_session_to_memory(session("green tea", "black tea"))
    await service.add_events_to_memory(**ANN, events=[text_event("black tea")], session_id="s1")
    await service.add_events_to_memory(**ANN, events=[text_event("black tea")])
    assert sorted(await search(service, "tea")) == ["black tea", "green tea"]


async def test_events_without_text_are_not_stored(service: BaseMemoryService) -> None:
    """Calls, responses, state changes and thoughts are not stored."""
    call = types.ModelContent(types.Part.from_function_call(name="tea", args={}))
    events = [
        Event(id="1", author="a"),
        Event(id="2", author="a", content=call),
        text_event("tea", id="3", thought=True),
    ]
    await service.add_events_to_memory(**ANN, events=events)
    assert await search(service, "tea") == []


async def test_a_note_is_stored_once(service: BaseMemoryService) -> None:
    """A note without an id gets one from its content; its metadata is stored."""
    entry = MemoryEntry(content=types.Content(parts=[types.Part(text="Ann's tea is green")]), author="butler")
    for _ in range(2):
        await service.add_memory(**ANN, memories=[entry], custom_metadata={"ttl": 3})
    (memory,) = (await service.search_memory(**ANN, query="tea")).memories
    assert (memory.author, memory.timestamp, memory.custom_metadata) == ("butler", None, {"ttl": 3})
    assert memory.id is not None


async def test_a_deleted_memory_stays_deleted(service: BaseMemoryService) -> None:
    """A deleted memory stays deleted when its session is added again; unknown IDs are ignored."""
    await service.add_session_to_memory(session("green tea", "black tea"))
    for memory_id in (None, "", "nonsense", "green tea", "green tea"):
        await service.delete_memory(**ANN, memory_id=memory_id)
    await service.add_session_to_memory(session("green tea", "black tea"))
    assert await search(service, "tea") == ["black tea"]


async def test_a_deleted_session_is_forgotten(service: BaseMemoryService) -> None:
    """Only the memories of the session are deleted, not those of others or notes."""
    await service.add_session_to_memory(session("green tea"))
    await service.add_events_to_memory(**ANN, events=[text_event("white tea")], session_id="s1")
    await service.add_session_to_memory(session("black tea", id="s2"))
    await service.add_events_to_memory(**ANN, events=[text_event("red tea")])
    await service.add_memory(**ANN, memories=[MemoryEntry(content=types.Content(parts=[types.Part(text="tea!")]))])
    assert await service.delete_session_memory(**ANN, session_id="s1") == 2
    assert await service.delete_session_memory(**ANN, session_id="s1") == 0
    assert sorted(await search(service, "tea")) == ["black tea", "red tea", "tea!"]


async def test_a_new_session_with_a_deleted_id_is_stored(service: BaseMemoryService) -> None:
    """A new session with the id of a deleted one is stored, even with the same event ids."""
    await service.add_session_to_memory(session("green tea"))
    await service.delete_session_memory(**ANN, session_id="s1")
    await service.add_session_to_memory(session("green tea"))
    assert await search(service, "tea") == ["green tea"]


@pytest.mark.parametrize("other", [{"user_id": "bob"}, {"app_name": "bank"}, {"session_id": "%"}, {"session_id": ""}])
async def test_sessions_of_others_are_not_forgotten(service: BaseMemoryService, other: dict[str, str]) -> None:
    """Sessions of other users, other apps or other ids stay."""
    await service.add_session_to_memory(session("tea"))
    assert await service.delete_session_memory(**{**ANN, "session_id": "s1", **other}) == 0
    assert await search(service, "tea") == ["tea"]


async def test_reading_creates_no_file(service: BaseMemoryService, tmp_path: Path) -> None:
    """Searching and deleting do not create a file."""
    assert await search(service, "tea") == []
    await service.delete_memory(**ANN, memory_id="tea")
    assert await service.delete_session_memory(**ANN, session_id="s1") == 0
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("私はPythonを使う", "Python"),
        ("私は東京に住んでいます", "東京"),
        ("我喜欢绿茶", "绿茶"),
        ("ผมชอบชาเขียว", "ชาเขียว"),
        ("Мой чай зелёный", "ЧАЙ"),
        ("मुझे हिन्दी पसंद है", "हिन्दी"),
        ("Grüße aus Köln", "GRÜSSE KÖLN"),
        ("cafe\u0301 au lait", "CAFÉ"),
    ],
)
async def test_every_script_is_searched(service: BaseMemoryService, text: str, query: str) -> None:
    """Scripts without spaces between words are searched, and composed characters equal decomposed ones."""
    await service.add_session_to_memory(session("something else entirely", text))
    assert await search(service, query) == [text]


async def test_part_of_a_latin_word_is_not_a_word(service: BaseMemoryService) -> None:
    """Part of a Latin word does not match the word."""
    await service.add_session_to_memory(session("私はPythonを使う", "steam"))
    assert await search(service, "thon tea") == []


async def test_a_value_that_is_not_json_is_refused(service: BaseMemoryService) -> None:
    """Values without a JSON form are refused."""
    with pytest.raises(InputValidationError, match="cannot be converted to JSON"):
        await service.add_events_to_memory(**ANN, events=[text_event("tea")], custom_metadata={"when": object()})


HOSTILE = [
    "",
    " ",
    '"',
    '"tea',
    "tea OR",
    "NEAR(tea, 3)",
    "text : tea",
    "-tea",
    "tea*",
    "^tea",
    "(((",
    "{scope text} : tea",
    "tea' OR 1=1 --",
    "\0tea\0",
    "\ud800tea",
    "\u0301",
    "_",
    "%",
    "\U0001f375",
    "tea " * 100_000,
    " ".join(str(number) for number in range(10_000)),
    "茶" * 10_000,
]


def test_any_text_is_a_query(service: BaseMemoryService) -> None:
    """A query has no syntax: any text is valid and never finds memories of others."""
    bob = service.add_events_to_memory(app_name="shop", user_id="bob", events=[text_event("0 1 2 secret tea 茶")])
    asyncio.run(bob)
    asyncio.run(service.add_session_to_memory(session("green tea")))

    @settings(max_examples=drawn_examples(100), deadline=None)
    @given(
        query=st.one_of(st.sampled_from(HOSTILE), st.text(max_size=30), st.text('tea"*:()^-+ANDORNT{}', max_size=20))
    )
    def check(query: str) -> None:
        assert set(asyncio.run(search(service, query))) <= {"green tea"}

    check()


async def test_all_memories_of_a_user_are_deleted(service: BaseMemoryService) -> None:
    """Memories of other users and apps stay, and a memory that was deleted before can be added again."""
    await service.add_session_to_memory(session("green tea", "black tea"))
    await service.delete_memory(**ANN, memory_id="black tea")
    for scope in ({**ANN, "user_id": "bob"}, {**ANN, "app_name": "desk"}):
        await service.add_events_to_memory(**scope, events=[text_event("white tea")])
    assert await service.list_user_apps(user_id="ann") == ["desk", "shop"]
    assert await service.delete_user(**ANN, dry_run=True) == 1
    assert await search(service, "tea") == ["green tea"]
    assert await service.delete_user(**ANN) == 1
    assert await service.delete_user(**ANN) == 0
    assert await service.list_user_apps(user_id="ann") == ["desk"]
    assert await search(service, "tea", user_id="bob") == ["white tea"]
    await service.add_session_to_memory(session("black tea"))
    assert await search(service, "tea") == ["black tea"]


def read_all(folder: Path) -> bytes:
    """Return the content of all files in a folder."""
    return b"".join(file.read_bytes() for file in folder.iterdir())


async def test_a_file_does_not_contain_the_memories_of_a_deleted_user(tmp_path: Path) -> None:
    """Deleted memories leave the file, although SQLite keeps deleted rows in unused pages and in its index."""
    service = SqliteMemoryService(tmp_path / "memory.db")
    await service.add_session_to_memory(session(*(f"Tweety sings {number} songs" for number in range(50))))
    await service.add_events_to_memory(app_name="shop", user_id="bob", events=[text_event("Sylvester listens")])
    await service.delete_user(**ANN)
    content = read_all(tmp_path).lower()
    assert (b"tweety" in content, b"sylvester" in content) == (False, True)
