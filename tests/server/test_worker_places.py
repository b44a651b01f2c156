"""A worker that cannot write to its stores reports it before anything runs."""

from pathlib import Path

import pytest

from tests.programs import logged, run
from tests.server.processes.workers import AGENTS
from waystation.core.budget import Quotas
from waystation.core.contract import Settings, Stores
from waystation.worker.service_setup import StoreUnusable, check_stores

KINDS = "use a folder, or a URL such as s3://bucket/prefix, gs://bucket/prefix or az://container/prefix."


@pytest.mark.parametrize(
    ("store", "artifacts", "memory", "problem"),
    [
        (
            "{tmp}/f/x",
            "a",
            "m",
            "Large payloads cannot be stored in file://{tmp}/f/x {names}: {tmp}/f is a file; {kinds}",
        ),
        (
            "ftp://h/x",
            "a",
            "m",
            "Large payloads cannot be stored in ftp://h/x {names}: the URL is not supported;",
        ),
        ("://x", "a", "m", "{names}: it is not a valid URL; {kinds}"),
        ("s3:/b", "a", "m", "{names}: 's3:/b' is neither a folder nor a URL; {kinds}"),
        ("s", "{tmp}/f", "m", "Artifacts cannot be stored in file://{tmp}/f (--artifacts): {tmp}/f is a file; {kinds}"),
        ("s", "a", "{tmp}", "Memories cannot be stored in {tmp} (--memory): it is a folder; specify a file."),
        ("s", "a", "{tmp}/f/m", "Memories cannot be stored in {tmp}/f/m (--memory): {tmp}/f is a file;"),
    ],
)
def test_an_unusable_store_is_named(tmp_path: Path, store: str, artifacts: str, memory: str, problem: str) -> None:
    """The message has the setting, the reason and the remedy, and nothing is created."""
    (tmp_path / "f").write_text("")
    places = [place.format(tmp=tmp_path) for place in (store, artifacts, memory)]
    with pytest.raises(StoreUnusable) as refused:
        check_stores(Settings(stores=Stores(payloads=places[0], artifacts=places[1], memory=Path(places[2]))))
    assert problem.format(tmp=tmp_path, names="(--store, WAYSTATION_STORE)", kinds=KINDS) in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_missing_stores_are_accepted(tmp_path: Path) -> None:
    """Missing stores are accepted, because they are created at their first use."""
    for stores in (
        Stores(payloads=tmp_path / "a" / "b", artifacts=f"file://{tmp_path}/c", memory=tmp_path / "d" / "e.db"),
        Stores(payloads="s3://bucket/prefix", artifacts="memory:///", memory=tmp_path / "m.db"),
    ):
        check_stores(Settings(stores=stores, quotas=Quotas(store=str(tmp_path / "q.db"))))
    assert list(tmp_path.iterdir()) == []


def test_an_unusable_quota_store_is_named(tmp_path: Path) -> None:
    """An unusable quota store is reported, because all model calls would be held."""
    with pytest.raises(StoreUnusable, match=r"Quotas cannot be stored in .*: it is a folder; specify a file\."):
        check_stores(Settings(stores=Stores(payloads=tmp_path), quotas=Quotas(store=str(tmp_path))))


@pytest.mark.parametrize("command", [("check",), ("--address", "127.0.0.1:1")], ids=["check", "run"])
def test_an_unusable_store_is_reported_before_anything_runs(tmp_path: Path, command: tuple[str, ...]) -> None:
    """The worker fails at its start instead of at the first large result."""
    (tmp_path / "file").write_text("")
    done = run(*command, "--agents", str(AGENTS), WAYSTATION_STORE=str(tmp_path / "file"))
    [line] = logged(done)
    assert (done.returncode, line["event"]) == (1, "worker.failed")
    assert f"{tmp_path}/file is a file" in line["problem"]


def test_the_locations_of_all_stores_are_listed_without_passwords(tmp_path: Path) -> None:
    """`worker check` shows an operator which stores a worker would use."""
    url = "postgresql://ann:hidden@db.example/agents?password=hidden"
    quotas = tmp_path / "quotas.toml"
    quotas.write_text(f'store = "{url}"')
    stores = (
        "--quotas",
        str(quotas),
        "--store",
        str(tmp_path),
        "--artifacts",
        "s3://bucket/a",
        "--memory",
        url,
        "--credentials",
        url,
    )
    done = run("check", "--agents", str(AGENTS), *stores)
    [line] = [line for line in logged(done) if line["event"] == "agents.valid"]
    assert {name: place for name, place in line.items() if name.endswith("_store")} == {
        "payload_store": tmp_path.as_uri(),
        "artifact_store": "s3://bucket/a",
        "memory_store": "postgresql://db.example/agents",
        "quota_store": "postgresql://db.example/agents",
        "credential_store": "postgresql://db.example/agents",
    }
    assert "hidden" not in done.stderr
