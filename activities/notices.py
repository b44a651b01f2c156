"""What people are told of a call: a short text, and the same for programs. It holds nothing secret."""

from dataclasses import dataclass
from datetime import UTC, datetime

from waystation.core import ids, summary
from waystation.core.call import CallState
from waystation.core.log import Log
from waystation.core.notice import NotifyInput, Occasion
from waystation.core.payload import JsonObject

MAX_LINE = 300
_TITLES: dict[Occasion, str] = {
    "asked": "Waits for you",
    "reminder": "Still waits",
    "escalation": "Nobody has answered",
    "decided": "Answered",
    "expired": "Not answered in time",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """What is delivered to one channel."""

    title: str
    text: str
    record: JsonObject
    """What programs are sent; see the contract."""


def notice(log: Log, call: CallState, given: NotifyInput, *, namespace: str, link: str | None, at: float) -> Notice:
    """Return what there is to tell.

    Args:
        log: Of the invocation.
        call: Which waits, or waited.
        given: On which occasion.
        namespace: Of Temporal.
        link: Where the call is shown.
        at: When, in seconds since 1970: it does not change from attempt to attempt.
    """
    asked = summary.call(call.name, call.args)
    requester = (log.input.requester or log.input.user_id) if log.input else ""
    lines = [asked, f"Agent: {_line(call.agent)}, for {_line(requester)}"]
    if call.asks and call.asks.hint and not call.asks.hint.startswith("Please approve or reject the tool call"):
        lines.append(f"Why: {_line(call.asks.hint)}")
    if given.occasion in ("decided", "expired"):
        lines.append(_outcome(call))
    elif given.deadline is not None:
        lines.append(f"Until: {datetime.fromtimestamp(given.deadline, UTC):%Y-%m-%d %H:%M} UTC")
    if given.occasion == "escalation" and call.policy:
        lines.append(f"Asked: {_line(', '.join(call.policy.asked(call.level)))}")
    if link:
        lines.append(link)
    return Notice(
        title=summary.clip(f"{_TITLES[given.occasion]}: {asked}"),
        text="\n".join(lines),
        record=_record(log, call, given, namespace=namespace, link=link, at=at, requester=requester, asked=asked),
    )


def _record(
    log: Log,
    call: CallState,
    given: NotifyInput,
    *,
    namespace: str,
    link: str | None,
    at: float,
    requester: str,
    asked: str,
) -> JsonObject:
    data: JsonObject = {
        "approval_id": ids.approval(log.invocation_id, call.id),
        "namespace": namespace,
        "invocation_id": log.invocation_id,
        "function_call_id": call.id,
        "agent": call.agent,
        "tool": call.name,
        "summary": asked,
        "digest": call.digest,
        "user_id": log.input.user_id if log.input else "",
        "requester": requester,
        "requested_at": given.requested_at,
        "deadline": given.deadline,
        "occasion": given.occasion,
        "number": given.number,
        "link": link,
    }
    if given.occasion == "decided" and call.answer:
        verified = call.decided_by.model_dump(mode="json") if call.decided_by else None
        data["decision"] = {"action": call.answer.action, "by": call.answer.by, "verified": verified}
    stamp = datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
    return {"type": f"waystation.approval.{given.occasion}", "timestamp": stamp, "data": data}


def _outcome(call: CallState) -> str:
    if call.answer is None:
        return "The deadline has passed; it was not approved."
    who = call.decided_by.subject if call.decided_by else call.answer.by
    claimed = "" if call.decided_by or not who else ", as the answer claims"
    return f"Answer: {call.answer.action}, by {_line(who or 'nobody who gave a name')}{claimed}"


def _line(text: str) -> str:
    return summary.clip(text, MAX_LINE)
