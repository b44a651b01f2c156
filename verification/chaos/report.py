"""Check histories and the ledger after a run of chaos, and print the figures."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from temporalio.client import WorkflowExecutionStatus

from tests.server.processes.ledger import Ledger
from verification.chaos.answering import Outcome
from verification.chaos.chaos_plan import SendAnswer
from waystation.client.agent_client import Invocation
from waystation.core.errors import NotReplayable
from waystation.core.log import AnswerCounted, AnswerIgnored, Held, Log
from waystation.testing import Replays, assert_invocation_holds

STEP_LIMIT_S = 240.0
"""The time limit of one step, without the pauses before it."""


@dataclass(kw_only=True)
class Figures:
    """The figures of a run. Every figure from `steps_hung` on must be 0."""

    workers_killed: int = 0
    workers_stopped: int = 0
    workers_blocked: int = 0
    servers_killed: int = 0
    servers_stopped: int = 0
    invocations: int = 0
    answers_sent: int = 0
    answers_accepted: int = 0
    answers_refused: int = 0
    kills_in_outages: int = 0
    answers_in_outages: int = 0
    effects: int = 0
    calls_held: int = 0
    steps_hung: int = 0
    """Steps that did not finish in time. After the first one, no further faults are caused."""
    answers_lost: int = 0
    """Answers that were acknowledged but are not in the history, or that have no outcome."""
    answers_counted_twice: int = 0
    effects_doubled: int = 0
    effects_lost: int = 0
    """Approved payments that neither began nor were reported as unknown, and reported ones without a ledger entry."""
    effects_not_approved: int = 0
    invocations_stuck: int = 0
    invocations_failed: int = 0
    histories_not_replaying: int = 0
    projections_different: int = 0
    workers_failed: int = 0

    details: list[str] = field(default_factory=list)
    """Further information on problems, one line each."""

    @property
    def problems(self) -> dict[str, int]:
        """The figures that must be 0 but are not."""
        names = list(counts_of(self))
        checked = names[names.index("steps_hung") :]
        return {name: value for name in checked if (value := getattr(self, name))}


@contextlib.asynccontextmanager
async def counted_if_hung(figures: Figures, what: object, limit_s: float = STEP_LIMIT_S) -> AsyncIterator[None]:
    """Cancel the block and count it if it takes longer than the limit."""
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        figures.steps_hung += 1
        figures.details.append(f"Not finished within {limit_s:g} s: {what}")


def counts_of(figures: Figures) -> dict[str, int]:
    """Return the figures by name, without the details."""
    return {field.name: getattr(figures, field.name) for field in fields(figures) if field.name != "details"}


def format_table(figures: Mapping[int, Figures]) -> str:
    """Return a table in Markdown with a column for each seed and one for their sum."""
    columns = [counts_of(each) for each in figures.values()]
    header = ["", *(f"seed {seed}" for seed in figures), "sum"]
    rows = [
        [name.replace("_", " "), *(str(column[name]) for column in columns), str(sum(each[name] for each in columns))]
        for name in columns[0]
    ]
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


async def check_invocation(invocation: Invocation, figures: Figures) -> Log:
    """Replay an invocation, compare its projection with its workflow, and return its log."""
    description = await invocation.handle.describe()
    status = description.status
    figures.invocations += 1
    figures.invocations_stuck += status is WorkflowExecutionStatus.RUNNING
    figures.invocations_failed += status not in (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.COMPLETED)
    if status is not WorkflowExecutionStatus.COMPLETED:
        figures.details.append(f"{invocation.id}: {status.name if status else 'unknown'}")
        figures.details.append(str(description.raw_description))
    try:
        await assert_invocation_holds(invocation, replays=Replays.PRODUCTION)
    except NotReplayable as error:
        figures.histories_not_replaying += 1
        figures.details.append(f"{invocation.id}: {error}")
    except AssertionError as error:
        figures.projections_different += 1
        figures.details.append(f"{invocation.id}: {error}")
    log = await invocation.log()
    figures.calls_held += sum(isinstance(entry.body, Held) for entry in log.entries)
    return log


def check_answers(log: Log, sent: Iterable[tuple[SendAnswer, Outcome]], figures: Figures) -> dict[str, AnswerCounted]:
    """Compare the answers to one invocation with its log. Return the answer that counted for each approval ID."""
    counted = [entry.body for entry in log.entries if isinstance(entry.body, AnswerCounted)]
    ignored = {entry.body.by for entry in log.entries if isinstance(entry.body, AnswerIgnored)}
    tags = {body.answer.comment for body in counted}
    for answer, outcome in sent:
        figures.answers_sent += 1
        if answer.tag in tags:
            figures.answers_accepted += 1
        elif outcome == "refused" or (outcome == "sent" and answer.tag in ignored):
            figures.answers_refused += 1
        else:
            figures.answers_lost += 1
            figures.details.append(f"{log.invocation_id}: {answer} was lost; its outcome is {outcome!r}")
    times = Counter(body.function_call_id for body in counted)
    figures.answers_counted_twice += sum(count - 1 for count in times.values())
    return {f"{log.invocation_id}/{body.function_call_id}": body for body in counted}


def check_effects(ledger: Ledger, approved: Mapping[str, bool], logs: Sequence[Log], figures: Figures) -> None:
    """Compare the ledger with the answers (whether each key was approved) and with what models received."""
    begun = Counter(line["key"] for line in ledger.lines("paying"))
    paid = Counter(line["key"] for line in ledger.lines("paid"))
    figures.effects += begun.total()
    figures.effects_doubled += sum(count - 1 for count in begun.values())
    figures.effects_not_approved += sum(not approved.get(key, False) for key in begun)
    responses = {
        f"{log.invocation_id}/{call.id}": call.response or {} for log in logs for call in log.state.calls.values()
    }
    unknown = {key for key, response in responses.items() if response.get("error_type") == "OutcomeUnknown"}
    never_begun = {key for key, is_approved in approved.items() if is_approved and not begun[key]} - unknown
    never_paid = {key for key, response in responses.items() if "paid" in response and not paid[key]}
    lost = sorted(never_begun | never_paid)
    figures.effects_lost += len(lost)
    figures.details += [f"{key}: the payment was lost; the response is {responses.get(key)}" for key in lost]
