"""Which sessions the runs of a program share."""

from pathlib import Path

import pytest

from waystation.core import ids
from waystation.sessions import DatabaseSessionService, InMemorySessionService
from waystation.sessions.program_run import ProgramRun


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ProgramRun, "_opened", {})


def open_run(*, ended: bool | None = None, resumes: bool = True) -> ProgramRun:
    """Begin a run and, unless `ended` is None, end it: normally if it is True, otherwise as if it were killed."""
    run = ProgramRun.open("test", resumes=lambda _: resumes)
    if ended is not None:
        if ended:
            run._end()
        assert run._file is not None
        run._file.close()
        run._file = None
        ProgramRun._opened.clear()
    return run


def test_resumed_run_has_the_id_of_the_previous_one() -> None:
    """A run continues the previous one only if it is asked to."""
    first = open_run(ended=False)
    other = open_run(ended=False, resumes=False)
    third = open_run()
    assert not first.is_resumed
    assert other.id != first.id
    assert (third.id, third.is_resumed) == (other.id, True)


@pytest.mark.parametrize("ended", [True, False])
def test_run_knows_whether_the_previous_one_ended(ended: bool) -> None:
    """A run that was killed is interrupted; one that ended is not."""
    open_run(ended=ended)
    assert open_run().was_interrupted is not ended


def test_runs_at_the_same_time_do_not_continue_each_other() -> None:
    """While a run lasts, another run of the program begins anew."""
    first = open_run()
    ProgramRun._opened.clear()
    second = open_run()
    assert second.id != first.id
    assert not second.is_resumed


def test_services_of_one_program_have_sessions_of_their_own() -> None:
    """Two in-memory services do not share sessions, but two services of one database do."""
    first, second = InMemorySessionService(), InMemorySessionService()
    assert first.task_queue("app") != second.task_queue("app")
    assert DatabaseSessionService("sqlite:///a.db").task_queue("app") == DatabaseSessionService(
        db_url="sqlite+aiosqlite:///a.db"
    ).task_queue("app")


def test_database_in_memory_is_not_shared() -> None:
    """A database that nobody else can open names the sessions of one run."""
    url = "sqlite+aiosqlite:///:memory:"
    assert DatabaseSessionService(url).task_queue("app") != DatabaseSessionService(url).task_queue("app")


def test_database_is_required() -> None:
    """The constructor has ADK's rule for its arguments."""
    with pytest.raises(ValueError, match="Exactly one of 'db_url' or 'db_engine'"):
        DatabaseSessionService()


def test_tools_see_the_plain_name_of_the_app() -> None:
    """The tenant of a program is hidden from tools; a customer's tenant is not."""
    assert ids.shown_app(ids.app_key("app", ids.program_tenant("run"))) == "app"
    assert ids.shown_app(ids.app_key("app", "acme")) == "acme~~app"
