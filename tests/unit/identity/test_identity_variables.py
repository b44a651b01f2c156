"""Each kind of program reads its identity file from its own variable."""

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from waystation.core.approval import IDENTITY_ENV
from waystation.project_file import WEB_IDENTITY_ENV, find_identity_file


@pytest.mark.parametrize(
    ("variables", "file", "warns"),
    [
        ({}, None, False),
        ({WEB_IDENTITY_ENV: "web.toml", IDENTITY_ENV: "workers.toml"}, Path("web.toml"), False),
        ({IDENTITY_ENV: "old.toml"}, Path("old.toml"), True),
    ],
)
def test_the_variable_of_workers_is_a_fallback_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
    logs: list[MutableMapping[str, Any]],
    variables: dict[str, str],
    file: Path | None,
    warns: bool,
) -> None:
    """The warning names the variable to set."""
    for name in (WEB_IDENTITY_ENV, IDENTITY_ENV):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert find_identity_file(WEB_IDENTITY_ENV) == file
    assert [WEB_IDENTITY_ENV in entry["problem"] for entry in logs] == [True] * warns
