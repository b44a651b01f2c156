"""`waystation run --budget`, and the answers to an agent that needs a larger budget."""

import pytest

from tests.programs import command


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--budget", "token=5"], "'token=5' is not a limit"),
        (["--budget", "tokens=many"], "'tokens=many' is not a valid limit; tokens takes a whole number, 1 or more"),
        (["--budget", "tokens=0"], "'tokens=0' is not a valid limit"),
        (["--budget", "tool_calls=-1"], "tool_calls takes a whole number, 0 or more"),
        (["--budget", "seconds=nan"], "seconds takes a number above 0"),
        (["--budget", "model_calls=0"], "'model_calls=0' is not a valid limit"),
        (["--prices", "nowhere.json"], "nowhere.json"),
        (["--on-exhausted", "panic"], "panic"),
    ],
)
async def test_an_invalid_budget_is_refused_before_anything_starts(options: list[str], problem: str) -> None:
    """An invalid limit is a usage error that names the value."""
    ran = await command("run", "clerk", "go", *options)
    assert ran.code == 2
    assert problem in " ".join(ran.err.replace("│", " ").split())
