"""ADK's rules for artifacts hold in memory, in a folder and in an object store."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.genai import types

from waystation.artifacts import BaseArtifactService, InMemoryArtifactService
from waystation.artifacts.object_store_artifact_service import ObjectStoreArtifactService
from waystation.core.errors import InputValidationError, NotJson

WHERE: dict[str, Any] = {"app_name": "shop", "user_id": "ann", "session_id": "s1"}
TEXT = types.Part.from_text(text="hello")

NAMES = ["..", "", "../../etc/passwd", "a\\..\\b", "a\0b", "%2e%2e%2f", "0.json", "user:..", "\u202egnp.exe"]
"""Names that would leave their folder or collide in a store that used them unchanged."""


@pytest.fixture(params=["in memory", "folder", "object store", "s3"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> BaseArtifactService:
    """Return an empty service."""
    match request.param:
        case "in memory":
            return InMemoryArtifactService()
        case "folder":
            return ObjectStoreArtifactService(tmp_path / "artifacts")
        case "object store":
            return ObjectStoreArtifactService("memory:///")
        case _:
            return ObjectStoreArtifactService(request.getfixturevalue("s3"))


IMPORTS = """
import asyncio, sys, threading
from waystation.artifacts import ObjectStoreArtifactService

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "google.genai":
            print(threading.current_thread() is threading.main_thread())

sys.meta_path.insert(0, Watch())
service = ObjectStoreArtifactService("memory:///")
where = {"app_name": "a", "user_id": "u", "session_id": "s", "filename": "f"}
asyncio.run(service.save_artifact(**where, artifact={"text": "hello"}))
"""


def test_the_first_save_of_a_process_imports_its_types_in_a_thread() -> None:
    """The import takes a second, in which the event loop of a web application must not stand still."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True)
    assert done.stdout.split() == ["False"], done.stderr


async def test_versions_count_from_zero(service: BaseArtifactService) -> None:
    """Versions count from zero, and the latest is loaded by default."""
    for text in ("a", "b", "c"):
        part = types.Part.from_text(text=text)
        assert await service.save_artifact(**WHERE, filename="f", artifact=part) == "abc".index(text)
    assert await service.list_versions(**WHERE, filename="f") == [0, 1, 2]
    assert (await service.load_artifact(**WHERE, filename="f")) == types.Part.from_text(text="c")
    assert (await service.load_artifact(**WHERE, filename="f", version=0)) == types.Part.from_text(text="a")


async def test_hostile_names_stay_apart_in_every_store(service: BaseArtifactService) -> None:
    """Each name has its own content and owner, and is listed unchanged."""
    other = WHERE | {"user_id": "../ann"}
    for where, owner in ((WHERE, "mine"), (other, "theirs")):
        for name in NAMES:
            await service.save_artifact(**where, filename=name, artifact=types.Part.from_text(text=f"{owner} {name}"))
    for where, owner in ((WHERE, "mine"), (other, "theirs")):
        assert await service.list_artifact_keys(**where) == sorted(NAMES)
        for name in NAMES:
            expected = types.Part.from_text(text=f"{owner} {name}")
            assert await service.load_artifact(**where, filename=name) == expected
    for name in NAMES:
        await service.delete_artifact(**other, filename=name)
    assert await service.list_artifact_keys(**WHERE) == sorted(NAMES)


@pytest.mark.parametrize("version", [-1, 1, 10**20])
async def test_a_missing_version_is_none(service: BaseArtifactService, version: int) -> None:
    """The content and the metadata of a missing version are None."""
    await service.save_artifact(**WHERE, filename="f", artifact=TEXT)
    assert await service.load_artifact(**WHERE, filename="f", version=version) is None
    assert await service.get_artifact_version(**WHERE, filename="f", version=version) is None


async def test_a_missing_artifact_is_none(service: BaseArtifactService) -> None:
    """Reading or deleting a missing artifact raises nothing."""
    assert await service.load_artifact(**WHERE, filename="f") is None
    assert await service.get_artifact_version(**WHERE, filename="f") is None
    assert await service.list_versions(**WHERE, filename="f") == []
    assert await service.list_artifact_versions(**WHERE, filename="f") == []
    assert await service.list_artifact_keys(**WHERE) == []
    await service.delete_artifact(**WHERE, filename="f")


async def test_user_artifacts_are_shared_by_the_sessions_of_the_user(service: BaseArtifactService) -> None:
    """User artifacts keep their prefix in sorted listings; a listing without a session has only them."""
    for name in ("z.txt", "user:logo.png", "a.txt"):
        await service.save_artifact(**WHERE, filename=name, artifact=TEXT)
    other = {**WHERE, "session_id": "s2"}
    assert await service.list_artifact_keys(**WHERE) == ["a.txt", "user:logo.png", "z.txt"]
    assert await service.list_artifact_keys(**other) == ["user:logo.png"]
    assert await service.list_artifact_keys(app_name="shop", user_id="ann") == ["user:logo.png"]
    assert await service.load_artifact(**other, filename="user:logo.png") == TEXT
    assert await service.load_artifact(app_name="shop", user_id="ann", filename="user:logo.png") == TEXT


@pytest.mark.parametrize("other", [{"session_id": "s2"}, {"user_id": "bob"}, {"app_name": "bank"}])
async def test_others_see_nothing(service: BaseArtifactService, other: dict[str, str]) -> None:
    """Other users and apps see nothing, and other sessions see only user artifacts."""
    await service.save_artifact(**WHERE, filename="f", artifact=TEXT)
    await service.save_artifact(**WHERE, filename="user:g", artifact=TEXT)
    reader: dict[str, Any] = {**WHERE, **other}
    assert await service.load_artifact(**reader, filename="f") is None
    if "session_id" not in other:
        assert await service.load_artifact(**reader, filename="user:g") is None
        assert await service.list_artifact_keys(**reader) == []


async def test_the_artifacts_of_a_session_are_deleted_together(service: BaseArtifactService) -> None:
    """All names and versions of a session are deleted; those of the user and of other sessions stay."""
    long = "n" * 300
    for filename in ("a/b", "a/b", "..", "user", long, "user:shared"):
        await service.save_artifact(**WHERE, filename=filename, artifact=TEXT)
    for others in ({"session_id": "s11"}, {"session_id": "s1/a"}, {"user_id": "bob"}, {"app_name": "bank"}):
        await service.save_artifact(**{**WHERE, **others}, filename="f", artifact=TEXT)
    assert await service.delete_session_artifacts(**WHERE) == sorted(["a/b", "..", "user", long])
    assert await service.delete_session_artifacts(**WHERE) == []
    assert await service.list_artifact_keys(**WHERE) == ["user:shared"]
    for others in ({"session_id": "s11"}, {"session_id": "s1/a"}, {"user_id": "bob"}, {"app_name": "bank"}):
        assert await service.load_artifact(**{**WHERE, **others}, filename="f") == TEXT


async def test_after_a_deletion_versions_start_again(service: BaseArtifactService) -> None:
    """Versions start at zero again, and the artifact of another session stays."""
    other = {**WHERE, "session_id": "s2"}
    for where in (WHERE, WHERE, other):
        await service.save_artifact(**where, filename="f", artifact=TEXT)
    await service.delete_artifact(**WHERE, filename="f")
    assert await service.list_artifact_keys(**WHERE) == []
    assert await service.load_artifact(**WHERE, filename="f") is None
    assert await service.save_artifact(**WHERE, filename="f", artifact=TEXT) == 0
    assert await service.list_versions(**other, filename="f") == [0]


@pytest.mark.parametrize(
    ("part", "mime_type"),
    [
        (types.Part.from_text(text="grüße \U0001f600"), "text/plain"),
        (types.Part(text=""), "text/plain"),
        (types.Part(text="quiet", thought=True, thought_signature=b"\xff\x00"), "text/plain"),
        (types.Part.from_bytes(data=bytes(range(256)), mime_type="image/png"), "image/png"),
        (types.Part.from_bytes(data=b"", mime_type="text/csv"), "text/csv"),
        (types.Part(inline_data=types.Blob(mime_type="a/b", data=b"x", display_name="d")), "a/b"),
        (types.Part(inline_data=types.Blob(mime_type="a/b")), "a/b"),
        (types.Part.from_uri(file_uri="gs://bucket/film", mime_type="video/mp4"), "video/mp4"),
    ],
    ids=["text", "empty text", "thought", "bytes", "no bytes", "named bytes", "promised bytes", "file"],
)
async def test_a_part_survives_a_round_trip(service: BaseArtifactService, part: types.Part, mime_type: str) -> None:
    """A loaded Part has all its fields, and the type of its content is known."""
    await service.save_artifact(**WHERE, filename="f", artifact=part)
    assert await service.load_artifact(**WHERE, filename="f") == part
    about = await service.get_artifact_version(**WHERE, filename="f")
    assert about is not None
    assert about.mime_type == mime_type


async def test_a_part_may_be_given_as_a_dictionary(service: BaseArtifactService) -> None:
    """Dictionaries in either case style are accepted."""
    for blob in (
        {"inlineData": {"mimeType": "a/b", "data": "eA=="}},
        {"inline_data": {"mime_type": "a/b", "data": b"x"}},
    ):
        await service.save_artifact(**WHERE, filename="f", artifact=blob)
        assert await service.load_artifact(**WHERE, filename="f") == types.Part.from_bytes(data=b"x", mime_type="a/b")


async def test_versions_have_metadata(service: BaseArtifactService) -> None:
    """Every version has a number, a URI, metadata, a time and a type."""
    await service.save_artifact(**WHERE, filename="f", artifact=TEXT, custom_metadata={"by": {"name": "ann"}})
    await service.save_artifact(**WHERE, filename="f", artifact=TEXT)
    first, second = await service.list_artifact_versions(**WHERE, filename="f")
    assert (first.version, first.custom_metadata, first.mime_type) == (0, {"by": {"name": "ann"}}, "text/plain")
    assert (second.version, second.custom_metadata) == (1, {})
    assert first.create_time <= second.create_time
    assert first.canonical_uri != second.canonical_uri
    assert await service.get_artifact_version(**WHERE, filename="f") == second
    assert set(first.model_dump(by_alias=True)) == {
        "version",
        "canonicalUri",
        "customMetadata",
        "createTime",
        "mimeType",
    }


async def test_a_saved_part_is_a_copy(service: BaseArtifactService) -> None:
    """Later changes of the Part or its metadata have no effect."""
    part, metadata = types.Part.from_text(text="before"), {"tags": ["a"]}
    await service.save_artifact(**WHERE, filename="f", artifact=part, custom_metadata=metadata)
    part.text = "after"
    metadata["tags"].append("b")
    assert await service.load_artifact(**WHERE, filename="f") == types.Part.from_text(text="before")
    about = await service.get_artifact_version(**WHERE, filename="f")
    assert about is not None
    assert about.custom_metadata == {"tags": ["a"]}


@pytest.mark.parametrize("part", [types.Part(), types.Part(function_call=types.FunctionCall(name="f"))])
async def test_a_part_without_content_is_refused(service: BaseArtifactService, part: types.Part) -> None:
    """A Part without content is refused with ADK's text, and nothing is saved."""
    with pytest.raises(InputValidationError, match=r"^Not supported artifact type\.$"):
        await service.save_artifact(**WHERE, filename="f", artifact=part)
    assert await service.list_artifact_keys(**WHERE) == []


async def test_a_value_that_is_not_a_part_is_refused(service: BaseArtifactService) -> None:
    """The error for other types names the way to create a Part."""
    with pytest.raises(InputValidationError, match=r"not str. Use types\.Part\.from_text"):
        await service.save_artifact(**WHERE, filename="f", artifact="hello")  # type: ignore[arg-type]  # the point


async def test_metadata_that_is_not_json_is_refused(service: BaseArtifactService) -> None:
    """Invalid metadata is refused before anything is written."""
    with pytest.raises(NotJson):
        await service.save_artifact(**WHERE, filename="f", artifact=TEXT, custom_metadata={"when": object()})
    assert await service.list_artifact_keys(**WHERE) == []


async def test_a_session_artifact_needs_a_session(service: BaseArtifactService) -> None:
    """Every method with a name refuses a session artifact without a session, with ADK's text."""
    where: dict[str, Any] = {"app_name": "shop", "user_id": "ann", "filename": "f"}
    for attempt in (
        service.save_artifact(**where, artifact=TEXT),
        service.load_artifact(**where),
        service.list_versions(**where),
        service.list_artifact_versions(**where),
        service.get_artifact_version(**where),
        service.delete_artifact(**where),
    ):
        with pytest.raises(InputValidationError, match="Session ID must be provided for session-scoped artifacts"):
            await attempt


@pytest.mark.slow
async def test_concurrent_savers_get_versions_of_their_own(service: BaseArtifactService) -> None:
    """Twelve concurrent saves create twelve versions, each with its own content."""

    async def save(number: int) -> tuple[int, int]:
        part = types.Part.from_text(text=str(number))
        return number, await service.save_artifact(**WHERE, filename="f", artifact=part)

    saved = await asyncio.gather(*(save(number) for number in range(12)))
    assert sorted(version for _, version in saved) == list(range(12))
    for number, version in saved:
        part = await service.load_artifact(**WHERE, filename="f", version=version)
        assert part == types.Part.from_text(text=str(number))


async def test_the_same_save_counts_once_under_one_key(service: BaseArtifactService) -> None:
    """A repeated save returns the version of the first one; other content creates a new version."""
    once: dict[str, Any] = {**WHERE, "filename": "f", "idempotency_key": "call-1"}
    other = types.Part.from_text(text="other")
    assert await service.save_artifact_once(**once, artifact=TEXT) == 0
    assert await service.save_artifact(**WHERE, filename="f", artifact=TEXT) == 1
    assert await service.save_artifact_once(**once, artifact=TEXT) == 0
    assert await service.save_artifact_once(**once, artifact=TEXT, custom_metadata={"a": 1}) == 2
    assert await service.save_artifact_once(**once, artifact=other) == 3
    assert await service.save_artifact_once(**{**once, "idempotency_key": "call-2"}, artifact=TEXT) == 4
    file = types.Part.from_uri(file_uri="gs://bucket/film", mime_type="video/mp4")
    assert [await service.save_artifact_once(**once, artifact=file) for _ in range(2)] == [5, 5]
    assert await service.load_artifact(**WHERE, filename="f") == file


async def test_the_same_save_at_the_same_time_counts_once(service: BaseArtifactService) -> None:
    """Two concurrent attempts of one call create one version."""
    once: dict[str, Any] = {**WHERE, "filename": "f", "artifact": TEXT, "idempotency_key": "call-1"}
    await service.save_artifact(**WHERE, filename="f", artifact=TEXT)
    assert await asyncio.gather(*(service.save_artifact_once(**once) for _ in range(2))) == [1, 1]


def reference(name: str, version: int = 0, *, session: str | None = "s1", user: str = "ann") -> types.Part:
    """Return a Part that refers to another artifact."""
    place = f"/sessions/{session}" if session else ""
    uri = f"artifact://apps/shop/users/{user}{place}/artifacts/{name}/versions/{version}"
    return types.Part.from_uri(file_uri=uri, mime_type="a/b")


async def test_a_reference_loads_its_target(service: BaseArtifactService) -> None:
    """A reference loads the artifact of the session or user; its own type is unknown."""
    await service.save_artifact(**WHERE, filename="real/name", artifact=TEXT)
    await service.save_artifact(**WHERE, filename="user:real", artifact=TEXT)
    await service.save_artifact(**WHERE, filename="alias", artifact=reference("real/name"))
    await service.save_artifact(**WHERE, filename="alias2", artifact=reference("user:real", session=None))
    assert await service.load_artifact(**WHERE, filename="alias") == TEXT
    assert await service.load_artifact(**WHERE, filename="alias2") == TEXT
    about = await service.get_artifact_version(**WHERE, filename="alias")
    assert about is not None
    assert about.mime_type is None


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        (reference("f", user="bob"), "within the same app and user scope"),
        (reference("f", session="s2"), "within the same session scope"),
        (types.Part.from_uri(file_uri="artifact://nonsense", mime_type="a/b"), "Invalid artifact reference URI"),
    ],
    ids=["user", "session", "form"],
)
async def test_a_reference_leads_nowhere_else(service: BaseArtifactService, part: types.Part, problem: str) -> None:
    """A reference to another scope is refused when it is saved."""
    with pytest.raises(InputValidationError, match=problem):
        await service.save_artifact(**WHERE, filename="f", artifact=part)


async def test_references_in_a_circle_end(service: BaseArtifactService) -> None:
    """A circle of references ends with ADK's error."""
    await service.save_artifact(**WHERE, filename="f", artifact=reference("f"))
    with pytest.raises(InputValidationError, match="maximum recursion depth"):
        await service.load_artifact(**WHERE, filename="f")


async def test_all_artifacts_of_a_user_are_deleted(service: BaseArtifactService) -> None:
    """Deletes the artifacts of all sessions and of the user; other users and apps keep theirs."""
    bob, desk = WHERE | {"user_id": "bob"}, WHERE | {"app_name": "desk"}
    for where in (WHERE, WHERE | {"session_id": "s2"}, bob, desk):
        for name in ("f", "user:f"):
            await service.save_artifact(**where, filename=name, artifact=TEXT)
    ann: dict[str, Any] = {"app_name": "shop", "user_id": "ann"}
    assert await service.list_user_apps(user_id="ann") == ["desk", "shop"]
    assert await service.delete_user(**ann, dry_run=True) == 3
    assert await service.list_artifact_keys(**WHERE) == ["f", "user:f"]
    assert await service.delete_user(**ann) == 3
    assert await service.delete_user(**ann) == 0
    assert await service.list_user_apps(user_id="ann") == ["desk"]
    for where, names in ((WHERE, []), (bob, ["f", "user:f"]), (desk, ["f", "user:f"])):
        assert await service.list_artifact_keys(**where) == names
