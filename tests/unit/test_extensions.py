"""Entry points of other packages."""

import sys
from functools import partial
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from waystation import extensions
from waystation.agents import LlmAgent
from waystation.extensions import (
    ADAPTERS,
    ExtensionFailed,
    find_adapter,
    find_adapters,
    find_extensions,
    load_extension,
)

GROUP = "waystation.tests"


def install(folder: Path, package: str, entry_points: str) -> None:
    """Install the metadata of a package that has only entry points."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of installed packages."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_extensions_of_a_group_are_found_by_name(site: Path) -> None:
    """An entry point is not loaded until it is used."""
    install(site, "acme", f"[{GROUP}]\nslack = acme_missing:Channel\n")
    assert find_extensions(GROUP)["slack"].value == "acme_missing:Channel"


def test_packages_that_are_installed_later_are_found(site: Path) -> None:
    """Nothing is cached, so a new package is found at once."""
    assert find_extensions(GROUP) == {}
    install(site, "acme", f"[{GROUP}]\nslack = json:dumps\n")
    assert load_extension(find_extensions(GROUP)["slack"])(1) == "1"


def test_two_packages_with_the_same_name_are_refused(site: Path) -> None:
    """Two packages with one name are refused, because the order of the import path would decide."""
    install(site, "acme", f"[{GROUP}]\nslack = json:dumps\n")
    install(site, "other", f"[{GROUP}]\nslack = json:loads\n")
    with pytest.raises(ExtensionFailed, match=r"'(acme|other)' and '(acme|other)' both provide 'slack'.*Uninstall one"):
        find_extensions(GROUP)


def test_an_extension_that_cannot_be_loaded_names_package_group_and_cause(site: Path) -> None:
    """The error names the package, so that the user knows what to repair."""
    install(site, "acme", f"[{GROUP}]\nslack = acme_missing:Channel\n")
    with pytest.raises(ExtensionFailed, match=r"'acme' provides 'slack' in the group 'waystation\.tests'.*missing"):
        load_extension(find_extensions(GROUP)["slack"])


def test_an_extension_whose_extra_is_not_installed_names_the_extra(site: Path) -> None:
    """The name of an extra may have a hyphen, as the one for AG-UI has."""
    install(site, "acme", f"[{GROUP}]\nag-ui = acme_missing [ag-ui]\n")
    with pytest.raises(ExtensionFailed, match=r"^'ag-ui' needs the package 'acme_missing'.*install 'acme\[ag-ui\]'$"):
        load_extension(find_extensions(GROUP)["ag-ui"])


def test_a_source_tree_needs_no_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry points of a source tree come from its files, because installed metadata may be older."""
    monkeypatch.setattr(metadata, "entry_points", lambda **_: ())
    assert find_extensions(ADAPTERS)["google.adk"].value == "waystation.adk"


def test_only_objects_of_other_packages_cost_a_look_at_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects of Waystation itself need no look at the metadata, which would slow down each worker's start."""
    monkeypatch.setattr(extensions, "find_extensions", lambda group: pytest.fail(f"read {group}"))
    assert find_adapters([None, len, test_a_source_tree_needs_no_metadata, LlmAgent(name="clerk")]) == []


def test_the_adapter_is_named_after_the_package_of_the_objects(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter is also used for classes that derive from those of the package."""
    adapter = ModuleType("acme_adapter")
    monkeypatch.setitem(sys.modules, "acme_adapter", adapter)
    install(site, "acme", f"[{ADAPTERS}]\nacme.agents = acme_adapter\n")
    base = type("Base", (), {"__module__": "acme.agents.base"})
    derived = type("Derived", (base,), {"__module__": "of_user"})
    lookalike = type("Lookalike", (), {"__module__": "acme.agents_of_others"})
    assert find_adapters([derived(), base(), lookalike()]) == [adapter]
    assert [find_adapter(value) for value in (lookalike(), partial(len), SimpleNamespace())] == [None, None, None]
