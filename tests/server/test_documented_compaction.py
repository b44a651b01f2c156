"""The code of the page on summaries works unchanged."""

from pathlib import Path
from typing import Any

from tests.documents import blocks, how_to
from tests.server.conftest import Serve
from tests.steps import run
from waystation.apps import App, BaseEventsSummarizer, EventsCompactionConfig
from waystation.apps.registry import discover
from waystation.core.contract import text_of
from waystation.testing import ScriptedModel, calls, says

BLOCKS = blocks(how_to("summarize-conversations"), "python")


def defined(block: int) -> dict[str, Any]:
    """Return the names that a block defines."""
    names: dict[str, Any] = {}
    exec(BLOCKS[block], names)
    return names


def test_the_package_has_no_mistakes(tmp_path: Path) -> None:
    """`waystation worker check` accepts the package, and its settings reach the worker."""
    package = tmp_path / "archive_guide"
    package.mkdir()
    (package / "agent.py").write_text(BLOCKS[0])
    registry, problems = discover([tmp_path])
    assert [str(problem) for problem in problems] == []
    compaction = registry.roots["archivist"].compaction
    assert compaction
    assert compaction.token_threshold == 20_000


def test_the_settings_by_invocations_are_accepted() -> None:
    """The pair of settings is valid."""
    assert defined(1)["config"].compaction_interval == 5


async def test_the_summarizer_summarizes(serve: Serve) -> None:
    """The summary replaces older events when the threshold is reached."""
    app: App = defined(0)["app"]
    titles: BaseEventsSummarizer = defined(2)["Titles"]()
    settings = EventsCompactionConfig(summarizer=titles, token_threshold=3_000, event_retention_size=1)
    model = ScriptedModel(
        *[calls(("read_page", {"number": n}), text=f"Page {n}.\nSoon.") for n in (1, 2, 3)], says("done")
    )
    assert (
        await run(
            serve(app.model_copy(update={"events_compaction_config": settings}), model=model), "archivist", "read all"
        )
    ).text == "done"
    assert text_of(model.requests[-1].contents[0]) == "read all\nPage 1.\nPage 2."
