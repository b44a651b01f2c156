"""The examples of the page about quotas work as the page describes."""

import json
from pathlib import Path

import pytest

from tests.documents import blocks, how_to
from tests.programs import command
from waystation.core.errors import InvalidConfiguration
from waystation.project_file import read_quotas
from waystation.storage import MeteredCall, QuotaStore

PAGE = how_to("limit-rates")
(FILE,) = blocks(PAGE, "toml")
(PROGRAM,) = blocks(PAGE, "python")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the quota file of the page, with a store in a temporary folder."""
    file = tmp_path / "quotas.toml"
    file.write_text(FILE.replace(".waystation/quotas.db", str(tmp_path / "quotas.db")))
    return file


def test_the_file_has_the_quotas_that_the_page_describes(file: Path) -> None:
    """Acme has a larger budget than the other tenants, and each user a daily one."""
    quotas = read_quotas(file)
    assert quotas is not None
    assert {budget.max_cost for budget in quotas.find_budgets("acme", "ann")} == {2_000, 2}
    assert {budget.max_cost for budget in quotas.find_budgets("globex", "ann")} == {100, 2}
    limit = quotas.find_limit("gemini-3.5-flash-lite")
    assert limit is not None
    assert limit.tokens_per_minute == 1_000_000


def test_the_program_has_the_same_kinds_of_quotas() -> None:
    """The classes of quotas that programs use are public."""
    names: dict[str, object] = {}
    exec(PROGRAM, names)
    assert "requests_per_minute=300" in repr(names["settings"])


async def test_the_command_lists_the_usage(file: Path, tmp_path: Path) -> None:
    """Users are listed below their tenant, and the JSON has exact amounts."""
    store = QuotaStore(tmp_path / "quotas.db")
    for tenant, user in (("acme", "ann"), ("acme", "bob"), ("", "eve")):
        call = MeteredCall(id=user, sender="", tenant=tenant, user=user, tokens=1_500, cost=0.25, counts=True)
        await store.reserve(call)
    lines = (await command("budget", "--quotas", str(file), "--tenant", "acme")).out.splitlines()
    assert [line[12:] for line in lines[:2]] == [
        "acme: cost 0.5000, 3,000 tokens, 2 calls",
        "acme / ann: cost 0.2500, 1,500 tokens, 1 calls",
    ]
    records = (await command("budget", "--quotas", str(file), "--json")).out.splitlines()
    assert {json.loads(line)["user"] for line in records} == {None, "ann", "bob", "eve"}
    assert "No quota file is given." in (await command("budget")).err


def test_an_unknown_key_in_the_file_is_refused(file: Path) -> None:
    """The error names the place, but no values."""
    file.write_text(FILE.replace("requests_per_minute", "rpm"))
    with pytest.raises(InvalidConfiguration, match=r"limits\.0\.rpm"):
        read_quotas(file)
