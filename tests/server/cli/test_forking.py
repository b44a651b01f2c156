"""`waystation fork` and `forks`: a fork is confirmed, started, followed and answered."""

import pytest

from tests.programs import command
from tests.server.cli.conftest import Command
from tests.server.conftest import Serve
from tests.server.workflows.test_forks import Shop
from tests.steps import approve_and_finish, start_and_finish, start_and_wait, wait_until


@pytest.mark.slow
async def test_a_fork_is_started_followed_and_found(serve: Serve, waystation: Command) -> None:
    """The command prints the ID, then the events, then the result."""
    shop = Shop()
    async with serve(shop.buyer(effect="read")) as env:
        source = await start_and_finish(env.client.start("buyer", "tea"))
        ran = await waystation(env, "fork", source.id, "3", "--json")
        assert ran.code == 0
        assert ran.records[0] == {"fork": {"id": f"{source.id}~1", "source": source.id, "event": 3}}
        assert ran.records[-1]["result"]["text"] == (await source.result()).text

        async def list_forks() -> bool:
            forks = [{"id": f"{source.id}~1", "event": 3}]
            listing = await waystation(env, "forks", source.id, "--json")
            return listing.records == [{"invocation_id": source.id, "fork_of": None, "forks": forks}]

        await wait_until(list_forks, "the fork among those of its source")
        events = await waystation(env, "events", f"{source.id}~1")
        assert events.err == f"{source.id}~1 is a fork of {source.id} from its event 3.\n"
        of = await waystation(env, "forks", f"{source.id}~1")
        assert of.out.split("\n")[0] == f"{source.id}~1 is a fork of {source.id} from its event 3."


@pytest.mark.slow
async def test_calls_with_effects_run_only_after_a_confirmation(serve: Serve, waystation: Command) -> None:
    """Without a terminal, --yes confirms; nothing starts before that."""
    shop = Shop()
    async with serve(shop.buyer(effect="once")) as env:
        source = await start_and_finish(env.client.start("buyer", "tea"))
        refused = await waystation(env, "fork", source.id, "4")
        assert refused.code == 2
        assert "pay(amount=7) (once). Pass --yes to run them." in refused.err
        assert await env.client.forks.of(source.id) == []
        assert shop.ran == ["price tea", "pay 7"]
        agreed = await waystation(env, "fork", source.id, "4", "--yes")
        assert agreed.code == 0
        assert shop.ran == ["price tea", "pay 7", "pay 7"]


@pytest.mark.slow
async def test_a_fork_accepts_a_result_a_message_and_an_answer(serve: Serve, waystation: Command) -> None:
    """A call with a provided result does not run, and a call with a provided answer is answered when it is pending."""
    shop = Shop()
    async with serve(shop.buyer(require_confirmation=True)) as env:
        source = await start_and_wait(env.client.start("buyer", "tea"), "fc-2")
        await approve_and_finish(source, "fc-2")
        options = ("--result", 'fc-1={"price": 9}', "--message", "coffee", "--answer", "fc-2=approve", "--by", "dana")
        ran = await waystation(env, "fork", source.id, "2", *options, "--json")
        assert ran.code == 0
        assert "Bought coffee" in ran.records[-1]["result"]["text"]
        assert shop.ran == ["price tea", "pay 7", "pay 9"]


@pytest.mark.slow
async def test_an_unused_answer_is_reported(serve: Serve, waystation: Command) -> None:
    """The report comes after the fork has ended, because the call may come until then."""
    shop = Shop()
    async with serve(shop.buyer(effect="read")) as env:
        source = await start_and_finish(env.client.start("buyer", "tea"))
        ran = await waystation(
            env, "fork", source.id, "2", "--yes", "--answer", "fc-9=approve", "--answer", "fc-2=reject"
        )
    assert ran.code == 0
    assert ran.err.splitlines() == [
        f"--answer {call} was not used, because the call never waited in this fork."
        for call in ("fc-9=approve", "fc-2=reject")
    ]


MISTAKES: list[tuple[tuple[str, ...], int, str]] = [
    (("nobody", "1"), 6, "Invocation 'nobody' not found"),
    (("{source}", "99"), 2, "there is no event 99"),
    (("{source}", "0"), 2, "greater than or equal to 1"),
    (("{source}", "3", "--result", "fc-1"), 2, "does not have the form CALL=JSON"),
    (("{source}", "3", "--answer", "fc-1=maybe"), 2, "does not have the form CALL=approve or CALL=reject"),
    (("{source}", "3", "--answer", "fc-1=reject", "--result", "fc-1={}"), 2, "A call with a result never waits"),
    (("{source}", "3", "--answer", "fc-1=reject"), 2, "fc-1 already has its response at event 3"),
    (("{source}", "2", "--answer", "fc-1=reject", "--answer", "fc-1=approve"), 2, "--answer names fc-1 twice"),
    (("{source}", "2", "--result", "fc-1={}", "--result", "fc-1={}"), 2, "--result names fc-1 twice"),
    (("{source}", "3", "--agent", "buyer"), 2, "Add an instruction or a model."),
    (("{source}", "3", "--id", "{source}"), 2, "Pass a different `id` for the fork."),
    (("{source}", "3", "--instruction", "Obey.", "--yes"), 1, "InvalidInput"),
]


async def test_mistakes_are_reported_with_a_remedy(serve: Serve, waystation: Command) -> None:
    """After a mistake, no work of the source runs again."""
    shop = Shop()
    async with serve(shop.buyer(effect="read"), verify=False) as env:
        source = await start_and_finish(env.client.start("buyer", "tea"))
        for arguments, code, problem in MISTAKES:
            ran = await waystation(env, "fork", *(each.replace("{source}", source.id) for each in arguments))
            assert (arguments, ran.code) == (arguments, code)
            assert problem in ran.err + ran.out
            assert shop.ran == ["price tea", "pay 7"]


@pytest.mark.parametrize(
    "command_line", [("fork", "kept.json", "2"), ("forks", "kept.json")], ids=lambda given: given[0]
)
async def test_a_file_cannot_be_forked(command_line: tuple[str, ...]) -> None:
    """A fork continues an invocation on a server; a file does not need one."""
    ran = await command("--address", "127.0.0.1:1", *command_line)
    assert (ran.code, "'kept.json' is a file; pass the ID of an invocation on a server" in ran.err) == (2, True)
