"""The servers that tests start run wherever the repository is."""

from pathlib import Path

import psycopg
import pytest

from tests import store_servers


def test_postgresql_runs_from_a_folder_that_only_its_owner_can_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The home of root is such a folder, and PostgreSQL does not run as root. Any letters may be in the path."""
    home = tmp_path / "größe 大"
    home.mkdir(mode=0o700)
    programs = store_servers.copy_programs(home)
    monkeypatch.setattr(store_servers, "postgres_programs", lambda: programs)
    monkeypatch.setattr("tempfile.tempdir", str(home))
    with store_servers.postgres_server() as url, psycopg.connect(f"{url}postgres") as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
