"""A worker process reads the configuration of identities."""

from pathlib import Path

from tests.programs import logged, run
from waystation.approvers.identity import write_examples


def test_a_worker_validates_its_configuration_before_it_serves(tmp_path: Path) -> None:
    """The worker and `waystation worker check` validate the configuration; the option overrides the variable."""
    write_examples(tmp_path)
    mistaken = tmp_path / "mistaken.toml"
    mistaken.write_text("[envelope]\n")
    refused = run("check", "--only", "workflows", WAYSTATION_IDENTITY=str(mistaken))
    assert refused.returncode == 1
    assert "envelope.private_key: is missing" in str(logged(refused))
    good = str(tmp_path / "workers.toml")
    taken = run("check", "--only", "workflows", "--identity", good, WAYSTATION_IDENTITY=str(mistaken))
    assert taken.returncode == 0, taken.stderr
