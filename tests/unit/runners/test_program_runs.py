"""The sessions that runs of a program share."""

from pathlib import Path

import pytest

from waystation.core import ids
from waystation.sessions import DatabaseSessionService, InMemorySessionService
from waystation.sessions.program_run import ProgramRun


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ProgramRun, "_opened", {})


def open_run() -> ProgramRun:
    """Begin a run."""
    return ProgramRun.open("test")


def end(run: ProgramRun) -> ProgramRun:
    """End a run as its process does."""
    run._file.end()
    return kill(run)


def kill(run: ProgramRun) -> ProgramRun:
    """End a run as if its process were killed."""
    assert run._lock is not None
    run._lock.close()
    run._lock = None
    ProgramRun._opened.clear()
    return run


def test_a_run_starts_over_unless_it_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run has the ID of the previous one only with WAYSTATION_RESUME=1."""
    first = kill(open_run())
    other = kill(open_run())
    monkeypatch.setenv("WAYSTATION_RESUME", "1")
    third = open_run()
    assert not first.is_resumed
    assert other.id != first.id
    assert (third.id, third.is_resumed) == (other.id, True)


def test_a_killed_run_was_interrupted() -> None:
    """A run knows whether the previous one was killed or ended."""
    end(open_run())
    second = kill(open_run())
    third = open_run()
    assert (second.was_interrupted, third.was_interrupted, third.was_stopped) == (False, True, False)


@pytest.mark.parametrize(
    ("error", "is_stopped"), [(KeyboardInterrupt(), True), (EOFError(), True), (ValueError(), False)], ids=repr
)
def test_a_run_knows_whether_a_person_stopped_the_previous_one(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, is_stopped: bool
) -> None:
    """Ctrl-C and the end of the input count as stopped by a person; other errors are failures."""
    monkeypatch.setattr("sys.last_value", error, raising=False)
    end(open_run())
    run = open_run()
    assert (run.was_interrupted, run.was_stopped) == (True, is_stopped)


def test_file_of_a_run_is_never_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is killed while it writes its file leaves the previous content."""
    first = open_run()

    def fail(*_: object, **__: object) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", fail)
        with pytest.raises(OSError, match="killed"):
            first._file.end()
    kill(first)
    monkeypatch.setenv("WAYSTATION_RESUME", "1")
    second = open_run()
    assert (second.id, second.was_interrupted) == (first.id, True)


def test_resumed_run_knows_the_sessions_that_the_previous_one_created(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that the previous run found instead of creating them do not count."""
    first = open_run()
    first.note_session("own\nsession")
    first.note_session("found")
    first.forget_session("found")
    kill(first)
    monkeypatch.setenv("WAYSTATION_RESUME", "1")
    second = open_run()
    assert second.has_noted_session("own\nsession")
    assert not second.has_noted_session("found")


def test_services_continue_the_same_run_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that the killed run had not used does not continue the run in which it was used last."""
    older = ProgramRun.open("first"), ProgramRun.open("second")
    end(older[0])
    killed = kill(ProgramRun.open("first"))
    monkeypatch.setenv("WAYSTATION_RESUME", "1")
    first, second = ProgramRun.open("first"), ProgramRun.open("second")
    assert first.id == killed.id
    assert (second.is_resumed, second.id) == (True, killed.id.replace("first", "second"))
    assert second.id != older[1].id


@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_run_is_finished_if_it_ended_and_nothing_waits(is_waiting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished run is not continued, even if the program was killed before it wrote its own identity."""
    first = open_run()
    first.note_invocation("session/1", has_ended=False)
    first.note_invocation("session/1", has_ended=not is_waiting)
    end(first)
    monkeypatch.setenv("WAYSTATION_RESUME", "1")
    assert (open_run().id == first.id) is is_waiting


def test_simultaneous_runs_do_not_continue_each_other() -> None:
    """While a run lasts, another run of the program starts over."""
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
    """A database in memory names the sessions of one run."""
    url = "sqlite+aiosqlite:///:memory:"
    assert DatabaseSessionService(url).task_queue("app") != DatabaseSessionService(url).task_queue("app")


def test_database_is_required() -> None:
    """The database is a required argument, as in ADK."""
    with pytest.raises(ValueError, match="Exactly one of 'db_url' or 'db_engine'"):
        DatabaseSessionService()


def test_tools_see_the_plain_name_of_the_app() -> None:
    """The tenant of a program is hidden from tools; a customer's tenant is not."""
    assert ids.shown_app(ids.app_key("app", ids.program_tenant("run"))) == "app"
    assert ids.shown_app(ids.app_key("app", "acme")) == "acme~~app"
