"""A worker process starts only with usable models."""

from pathlib import Path

import pytest

from tests.programs import logged, run
from tests.unit.activities.test_model_names import BARE


@pytest.mark.slow
def test_a_worker_without_usable_models_does_not_start(tmp_path: Path) -> None:
    """The worker reports the problem before it connects; `check` also runs without keys."""
    package = tmp_path / "bare"
    package.mkdir()
    (package / "agent.py").write_text(BARE)
    done = run("--agents", str(tmp_path), "--address", "127.0.0.1:1")
    [line] = logged(done)
    assert (done.returncode, line["event"], line["place"]) == (1, "agent.invalid", str(package / "agent.py"))
    assert line["problem"].startswith("Agent 'bare': ")
    assert "Set GOOGLE_API_KEY" in line["problem"]
    assert run("check", "--agents", str(tmp_path)).returncode == 0
