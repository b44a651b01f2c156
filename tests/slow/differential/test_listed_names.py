"""The page that lists ADK's names, compared with google-adk."""

from docs.adk_names import PAGE, format_page
from tests.slow.differential.conftest import PYTHON


def test_the_page_lists_the_names_of_google_adk() -> None:
    """Run `python -m docs.adk_names` if google-adk or a rule in `adk_names.toml` has changed."""
    (folder,) = PYTHON.parents[1].glob("lib/python3*/site-packages/google/adk")
    assert format_page(folder) == PAGE.read_text(encoding="utf-8")
