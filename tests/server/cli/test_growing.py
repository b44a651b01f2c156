"""`--stream` writes text while the model generates it, and writes each text once, on a server."""

from tests.programs import without_time
from tests.server.cli.conftest import Command
from tests.server.conftest import Serve
from waystation.agents import Agent
from waystation.testing import FunctionModel, says

SAID = "It rains in Bern.\nAnd it will \x1b[2Jrain tomorrow."


async def test_run_with_stream_writes_the_text_once(serve: Serve, waystation: Command) -> None:
    """People get text without control characters, and programs get partial events."""
    model = FunctionModel(lambda _: says(SAID), pace_s=0.05)
    async with serve(Agent(name="speaker", model=model)) as env:
        ran = await waystation(env, "run", "speaker", "go", "--stream")
        assert (ran.code, ran.err) == (0, "")
        assert [without_time(line) for line in ran.out.splitlines()[2:4]] == [
            "speaker: It rains in Bern.",
            "And it will \\x1b[2Jrain tomorrow.",
        ]
        assert ran.out.count("Bern") == 1
        ran = await waystation(
            env,
            "run",
            "speaker",
            "go",
            "--stream",
            "--json",
            "--text-interval",
            "0.1",
            "--id",
            f"j-{env.client.task_queue}",
        )
        events = [record["event"] for record in ran.records if "event" in record]
        partial = [event for event in events if event.get("partial")]
        text = "".join(part["text"] for event in partial if "content" in event for part in event["content"]["parts"])
        assert text != ""
        assert SAID.startswith(text)
        assert [event["author"] for event in events if not event.get("partial")] == ["user", "speaker"]
        after = await waystation(env, "events", f"j-{env.client.task_queue}", "--stream", "--json")
        assert after.records == [event for event in events if not event.get("partial")]
