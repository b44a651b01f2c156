"""How figures, times, failures and notes read in a report."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from temporalio.client import WorkflowHistory

from waystation.core.call import CallState
from waystation.core.event import Event
from waystation.core.payload import JsonObject
from waystation.core.wire import DEFAULT_USER
from waystation.presentation import terminal, text_safety
from waystation.presentation.call_history import by
from waystation.presentation.report.run_summary import ModelCall

if TYPE_CHECKING:
    from waystation.presentation.report.invocation_report import Report


def facts(report: "Report") -> list[tuple[str, str]]:
    """Return the figures of an invocation, each with a label."""
    recording, log = report.recording, report.recording.log
    given, spent = log.input, log.spent
    fork = given.fork if given else None
    end = report.ended or report.now
    found = [
        ("began", moment(report.began)),
        ("took" if report.ended else "so far", text_safety.duration(end - report.began)),
        ("at work", text_safety.duration(spent.working_s)),
        ("waited for people", text_safety.duration(report.waited_s) if report.asked else ""),
        ("model calls", f"{len(report.telling.models):,}" if report.telling.models else ""),
        ("tool calls", f"{spent.tool_calls:,}" if spent.tool_calls else ""),
        ("tokens", f"{spent.total_tokens:,}" if spent.total_tokens else ""),
        ("cost", cost(report) if spent.total_tokens else ""),
        ("called agents", f"{len(_called_agents(report)):,}" if _called_agents(report) else ""),
        ("user", text_safety.line(given.user_id) if given and given.user_id != DEFAULT_USER else ""),
        ("session", text_safety.line(given.session_id or "") if given else ""),
        ("history", _history(recording.histories)),
        ("goes on from", f"{text_safety.line(fork.invocation_id)}, event {fork.event}" if fork else ""),
    ]
    return [(label, text) for label, text in found if text]


def _called_agents(report: "Report") -> list[CallState]:
    return [call for call in report.recording.log.calls.values() if call.call.kind == "agent"]


def _history(histories: Sequence[WorkflowHistory]) -> str:
    count = sum(len(each.events) for each in histories)
    return f"{count:,} events" + (f" in {len(histories)} runs" if len(histories) > 1 else "")


def cost(report: "Report") -> str:
    """Return what it cost; nothing when its budget has no prices."""
    given, spent = report.recording.log.input, report.recording.log.spent
    if not (given and given.budget.prices):
        return ""
    unknown = f", without {', '.join(text_safety.line(name) for name in spent.unpriced)}" if spent.unpriced else ""
    return f"{money(spent.cost)}{unknown}"


def money(amount: float) -> str:
    """Return an amount with four digits, however small it is."""
    return format(Decimal(f"{amount:.4g}"), ",f")


def tokens(report: "Report") -> JsonObject | None:
    """Return the tokens of all model calls together; None when none were counted."""
    log = report.recording.log
    if not log.usage.total:
        return None
    return {"total": f"{log.usage.total:,}", "usage": usage(log.usage.model_dump()), "cost": cost(report)}


def usage(counts: JsonObject) -> str:
    """Return which tokens there were."""
    reads = {
        "prompt_tokens": "prompt",
        "cached_tokens": "of it cached",
        "output_tokens": "output",
        "thoughts_tokens": "thoughts",
    }
    return ", ".join(f"{text} {counts[name]:,}" for name, text in reads.items() if counts.get(name))


def problem(call: ModelCall) -> str:
    """Return why a model gave no usable answer."""
    if call.failure:
        return terminal.failure(call.failure)
    reply = call.reply
    return ": ".join(filter(None, (reply.error_code, reply.error_message))) if reply else ""


def noted(notes: JsonObject) -> Iterable[terminal.Line]:
    """Yield what an event notes of which nothing else is said."""
    for name, note in notes.items():
        yield terminal.Line("note", "", f"{terminal.safe(name.replace('_', ' '))}: {terminal.short_json(note)}")


def decision(call: CallState) -> str:
    """Return in a few words what became of a call that people were asked of."""
    if call.answer:
        return f"{terminal.DONE[call.answer.action]}{by(call.answer, call.decided_by)}"
    return "nobody answered in time" if call.expired else ""


def discreet(event: Event) -> Event:
    """Return an event without what its names say is secret."""
    actions = event.actions.model_copy(update={"state_delta": unsecret(event.actions.state_delta)})
    return event.model_copy(update={"content": unsecret(event.content), "actions": actions})


def numbered(call: JsonObject) -> str:
    """Return the id of a call as it stands behind the call."""
    return f" [{text_safety.line(str(call['id']), 40)}]" if call.get("id") else ""


def moment(seconds: float) -> str:
    """Return a time with its zone."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def offset(seconds: float) -> str:
    """Return how long after the beginning something was, to be compared with others."""
    seconds = max(0.0, seconds)
    if seconds < 60:
        return f"+{seconds:.2f} s"
    days, rest = divmod(int(seconds), 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, rest = divmod(rest, 60)
    return "+" + (f"{days} d " if days else "") + (f"{hours}:" if days or hours else "") + f"{minutes:02}:{rest:02}"


def unsecret(value: Any) -> Any:
    """Return a value without what its names say is secret."""
    return terminal.unsecret("", value)


def quiet(content: JsonObject) -> Event:
    """Return an event that says one part."""
    return Event(invocation_id="", author="", content={"parts": [content]})
