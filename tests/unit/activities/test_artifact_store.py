"""The object store has safe paths and supports concurrent processes."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.paths import ROOT
from tests.tiers import drawn_examples
from tests.unit.activities.object_server import object_server
from waystation.artifacts.object_store_artifact_service import ObjectStoreArtifactService
from waystation.core.errors import InputValidationError, StoreFailed

WHERE: dict[str, Any] = {"app_name": "shop", "user_id": "ann", "session_id": "s1"}
HOSTILE = [
    "..",
    ".",
    "",
    "/",
    "//",
    "../../etc/passwd",
    "/etc/passwd",
    "a/../../b",
    "a\\..\\b",
    "C:\\x",
    "a\0b",
    "%2e%2e%2f",
    "=2E",
    "=",
    "==",
    "user:",
    "user:user:x",
    "users",
    "0.json",
    "data-1",
    "sessions",
    "files",
    ".hidden",
    "dot.",
    "~",
    "a b\n",
    "\u202egnp.exe",
    "é",
    "e\u0301",
    "\U0001f600" * 1_000,
    "x" * 1_000,
    "x" * 999 + "y",
    "a" * 120,
    "a" * 121,
]
names = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    st.text("./\\=%~:\0 a", max_size=12),
)


def folder_of(path: Path) -> ObjectStoreArtifactService:
    """Return a service over a folder."""
    return ObjectStoreArtifactService(path / "artifacts")


def files_below(path: Path) -> list[Path]:
    """Return all files and links below a folder."""
    return sorted(found for found in path.rglob("*") if not found.is_dir())


@settings(max_examples=drawn_examples(60), deadline=None)
@given(saved=st.lists(st.tuples(names, names, names, names), min_size=1, max_size=5))
def test_hostile_names_stay_apart_and_inside(saved: list[tuple[str, str, str, str]]) -> None:
    """Each app, user and session reads what it saved under any name, and lists the name unchanged."""

    async def story(inside: Path) -> None:
        service = folder_of(inside)
        expected: dict[tuple[str, str, str | None, str], list[int]] = {}
        for number, (app, user, session, name) in enumerate(saved):
            where: dict[str, Any] = {"app_name": app, "user_id": user, "session_id": session}
            versions = expected.setdefault((app, user, None if name.startswith("user:") else session, name), [])
            part = types.Part.from_text(text=str(number))
            assert await service.save_artifact(**where, filename=name, artifact=part) == len(versions)
            versions.append(number)
        for app, user, session, name in saved:
            where = {"app_name": app, "user_id": user, "session_id": session}
            latest = expected[app, user, None if name.startswith("user:") else session, name][-1]
            assert await service.load_artifact(**where, filename=name) == types.Part.from_text(text=str(latest))
            scopes = {(app, user, None), (app, user, session or None)}
            assert await service.list_artifact_keys(**where) == sorted(key[3] for key in expected if key[:3] in scopes)

    with tempfile.TemporaryDirectory() as outside:
        inside = Path(outside, "a", "b", "c")
        inside.mkdir(parents=True)
        asyncio.run(story(inside))
        files = files_below(Path(outside))
        assert files
        assert all(path.is_relative_to(inside / "artifacts") for path in files)
        assert max(len(str(path.relative_to(inside / "artifacts"))) for path in files) < 900


async def test_a_name_that_is_not_unicode_is_refused(tmp_path: Path) -> None:
    """A name that cannot be recorded is refused."""
    with pytest.raises(InputValidationError, match="lone surrogate"):
        await folder_of(tmp_path).save_artifact(**WHERE, filename="\ud800", artifact=types.Part(text="x"))


async def test_the_folder_is_made_when_it_is_needed(tmp_path: Path) -> None:
    """A worker that saves nothing creates no folder."""
    service = folder_of(tmp_path)
    assert files_below(tmp_path) == []
    await service.save_artifact(**WHERE, filename="f", artifact=types.Part(text="x"))
    assert {path.relative_to(tmp_path).parts[0] for path in files_below(tmp_path)} == {"artifacts"}


async def test_the_canonical_uri_is_a_file_with_the_content(tmp_path: Path) -> None:
    """The URI leads to a file with the content and the suffix of the name."""
    service = folder_of(tmp_path)
    part = types.Part.from_bytes(data=b"%PDF", mime_type="application/pdf")
    await service.save_artifact(**WHERE, filename="Bericht für Ann.pdf", artifact=part)
    about = await service.get_artifact_version(**WHERE, filename="Bericht für Ann.pdf")
    assert about is not None
    (file,) = (path for path in files_below(tmp_path) if path.suffix == ".pdf")
    assert str(file) == unquote(urlsplit(about.canonical_uri).path)
    assert file.read_bytes() == b"%PDF"


async def test_artifacts_outlive_the_process(tmp_path: Path) -> None:
    """Another process loads the artifact; the folder can also be given as a URL."""
    await folder_of(tmp_path).save_artifact(**WHERE, filename="f", artifact=types.Part(text="x"))
    url = (tmp_path / "artifacts").as_uri()
    assert await ObjectStoreArtifactService(url).load_artifact(**WHERE, filename="f") == types.Part(text="x")


@pytest.mark.slow
def test_processes_that_save_at_the_same_time_get_versions_of_their_own(tmp_path: Path) -> None:
    """Two processes with twenty concurrent saves each create forty versions."""
    code = """
import asyncio, json, sys
from google.genai.types import Part
from waystation.artifacts import ObjectStoreArtifactService
service = ObjectStoreArtifactService(sys.argv[1])
where = {"app_name": "shop", "user_id": "ann", "session_id": "s1", "filename": "f"}
async def main():
    print("ready", flush=True)
    sys.stdin.readline()
    return await asyncio.gather(*(service.save_artifact(**where, artifact=Part(text="x")) for _ in range(20)))
print(json.dumps(asyncio.run(main())))
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    pipe = subprocess.PIPE
    savers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) for _ in range(2)]
    for saver in savers:
        assert saver.stdout is not None
        assert saver.stdout.readline() == "ready\n"
    versions = []
    for saver in savers:
        assert saver.stdin is not None
        saver.stdin.write("go\n")
        saver.stdin.flush()
    for saver in savers:
        versions += json.loads(saver.communicate()[0])
    assert sorted(versions) == list(range(40))


async def test_a_content_without_its_record_is_not_a_version(tmp_path: Path) -> None:
    """Content of a killed process has no record, so it is not a version; the next save of the call completes it."""
    service = folder_of(tmp_path)
    once: dict[str, Any] = {**WHERE, "filename": "f", "artifact": types.Part(text="x"), "idempotency_key": "call"}
    await service.save_artifact_once(**once)
    (record,) = (path for path in files_below(tmp_path) if path.name == "0.json")
    record.unlink()
    assert await service.list_artifact_keys(**WHERE) == []
    assert await service.load_artifact(**WHERE, filename="f") is None
    assert await service.save_artifact_once(**once) == 0
    assert await service.load_artifact(**WHERE, filename="f") == types.Part(text="x")


async def test_deletion_leaves_no_content_behind(tmp_path: Path) -> None:
    """Deletion removes old content without a record, but not content of a running save."""
    service = folder_of(tmp_path)
    for _ in range(3):
        await service.save_artifact(**WHERE, filename="f", artifact=types.Part(text="x"))
    (folder,) = {path.parent for path in files_below(tmp_path)}
    for name, written_at in (("data-old", 0.0), ("data-new", time.time())):
        (folder / name).write_text("secret")
        os.utime(folder / name, (written_at, written_at))
    await service.delete_artifact(**WHERE, filename="f")
    assert [path.name for path in files_below(tmp_path)] == ["data-new"]


async def test_a_lost_response_makes_no_second_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a response is lost and the client retries, the save recognizes its own version."""
    with object_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        service = ObjectStoreArtifactService("s3://bucket")
        server.lose_answers_to = "/0.json"
        assert await service.save_artifact(**WHERE, filename="f", artifact=types.Part(text="x")) == 0
        assert server.lose_answers_to == ""
        assert await service.list_versions(**WHERE, filename="f") == [0]
        about = await service.get_artifact_version(**WHERE, filename="f")
        assert about is not None
        assert about.canonical_uri.startswith("s3://bucket/shop/users/ann/sessions/s1/f/data-")


@pytest.mark.parametrize("url", ["ftp://key:hidden@host/x", "az://container/x", "s3:///"])
def test_a_url_that_cannot_work_is_refused_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unusable URL fails when the service is created, and the error contains no password."""
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StoreFailed) as caught:
        ObjectStoreArtifactService(url)
    assert "hidden" not in str(caught.value)


async def test_a_store_that_fails_says_where(tmp_path: Path) -> None:
    """The error names the store in one line."""
    (tmp_path / "artifacts").write_text("a file where the folder should be")
    with pytest.raises(StoreFailed, match=r"The store at file://.*/artifacts failed: ") as caught:
        await folder_of(tmp_path).save_artifact(**WHERE, filename="f", artifact=types.Part(text="x"))
    assert "\n" not in str(caught.value)
