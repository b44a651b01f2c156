"""The page that lists ADK's names, compared with google-adk."""

from docs.adk_names import PAGE, format_page, list_adk_names
from verification.differential.conftest import PYTHON
from waystation.adk_names import read_rules

(FOLDER,) = PYTHON.parents[1].glob("lib/python3*/site-packages/google/adk")


def test_the_page_lists_the_names_of_google_adk() -> None:
    """The page matches google-adk. Run `python -m docs.adk_names` after a change of google-adk or `adk_names.toml`."""
    assert format_page(FOLDER) == PAGE.read_text(encoding="utf-8")


def test_every_area_has_names_of_google_adk() -> None:
    """Every path of a rule matches a name of ADK."""
    names = [
        f"{module}.{name}".removeprefix("google.adk.")
        for module, listed in list_adk_names(FOLDER).items()
        for name in listed
    ]
    paths = [path for area in read_rules()["areas"].values() for path in area["paths"]]
    assert [path for path in paths if not any(f"{name}.".startswith(f"{path}.") for name in names)] == []
