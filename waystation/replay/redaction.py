"""Histories to be kept where others read them: what a rule hides is hidden wherever it stands.

Events, ids, times, numbers, the types and lengths of values, and how the steps follow upon each other stay; so the
history replays and reads as before. What is kept beside it, in a store or behind a codec, is put into it.
"""

from collections.abc import Iterable, Iterator
from urllib.parse import unquote

from temporalio.converter import DataConverter

from waystation.core.call import CallState
from waystation.core.entry import AnswerIgnored
from waystation.core.errors import WaystationError
from waystation.core.log import Log
from waystation.core.payload import digest
from waystation.core.policy import ApprovalPolicy, call_digest
from waystation.core.wire import WORKFLOW
from waystation.history import SavedHistory, carried_log, check_readable, decode_histories, log_of, type_of
from waystation.replay.redacted_history import HistoryRedactor
from waystation.replay.redacted_types import TypedRedactor
from waystation.replay.redacting import Redactor, Rules
from waystation.replay.replayer import divergence_of
from waystation.storage.driver import shortened

_NAMED = ("session", "user")
"""What the ids of workflows begin with that are made of the names of users."""


class NotRedacted(WaystationError):
    """What would be left is not the same invocation any more."""


async def redact(
    saved: SavedHistory, rules: Iterable[str], *, converter: DataConverter = DataConverter.default
) -> SavedHistory:
    """Return histories in which rules hide what they name, those of called agents included.

    Args:
        saved: As the server has them.
        rules: `secrets`, `text`, `field:NAME`; see `Rules`.
        converter: Opens payloads that are kept beside the history, or that a codec encoded.

    Raises:
        InvalidRule: One is none.
        NotRedacted: The invocation would read otherwise, such as without what is kept beside the history.
        ForeignHistory: A history is not ours, or is damaged.
    """
    opened = await _opened(saved, converter)
    if short := shortened(converter):
        raise NotRedacted(
            f"{len(short)} large values cannot be had, and with their short forms the invocation would read otherwise; "
            f"--store says where workers keep them. {next(iter(short.values()))}"
        )
    redactor = Redactor(Rules.of(rules))
    for each in _all(opened):
        kind, *names = each.histories[0].workflow_id.split("/")
        if kind in _NAMED:
            redactor.in_ids.update(map(unquote, names))
    _redacted(opened, redactor)  # to learn what is hidden, and so has to be hidden in other texts, too
    redactor.look_for_hidden()
    for each in _all(opened):
        _learn_digests(each, redactor)
    for before, after in zip(_all(opened), _all(_redacted(opened, redactor)), strict=True):
        _learn_derived(before, after, redactor)
    result = _redacted(opened, redactor)
    for before, after in zip(_all(opened), _all(result), strict=True):
        _check(before, after)
        await _check_replay(before, after)
    return result


async def _opened(saved: SavedHistory, converter: DataConverter) -> SavedHistory:
    histories = await decode_histories(saved.histories, converter)
    check_readable(histories, f"The history of {histories[0].workflow_id!r}")
    return SavedHistory(histories, [await _opened(each, converter) for each in saved.called])


def _all(saved: SavedHistory) -> Iterator[SavedHistory]:
    yield saved
    for each in saved.called:
        yield from _all(each)


def _redacted(saved: SavedHistory, redactor: Redactor) -> SavedHistory:
    histories = [HistoryRedactor(redactor).of(history) for history in saved.histories]
    return SavedHistory(histories, [_redacted(each, redactor) for each in saved.called])


def _log(saved: SavedHistory) -> Log | None:
    return log_of(saved.histories) if type_of(saved.histories[0]) == WORKFLOW else None


def _learn_digests(saved: SavedHistory, redactor: Redactor) -> None:
    """Learn what the digests of calls become when their arguments, and the people of their policies, do."""
    if (log := _log(saved)) is None:
        return
    typed, following = TypedRedactor(redactor), Log(log.invocation_id)
    if log.entries_before:
        following = carried_log(saved.histories)
    for entry in log.entries:
        following.append(entry.ref, entry.time, entry.body)
        for call in following.calls.values():
            if call.ever_waits or call.declared is not None:
                _learn_call(call, redactor, typed)


def _learn_call(call: CallState, redactor: Redactor, typed: TypedRedactor) -> None:
    policy = call.policy
    hidden = ApprovalPolicy.model_validate(typed.of(ApprovalPolicy, policy.record())) if policy else None
    for args in (call.args, call.shown):
        if args is not None and call.known_digest is None:
            before = call_digest(call.agent, call.name, args, declared=call.declared, policy=policy)
            if before not in redactor.digests:
                shown = args if call.asked == "budget" else redactor.free(args, ("args",))
                after = call_digest(call.agent, call.name, shown, declared=call.declared, policy=hidden)
                redactor.digests[before] = after
    if policy and hidden:
        bound = digest({"schema": call.declared, "policy": policy.record()})
        redactor.digests[bound] = digest({"schema": call.declared, "policy": hidden.record()})


def _learn_derived(before: SavedHistory, after: SavedHistory, redactor: Redactor) -> None:
    """Learn which texts the engine makes now of what was recorded."""
    logs = _log(before), _log(after)
    texts = [[log.failure.message if log.failure else "", log.result().reason or ""] for log in logs if log]
    for said, says in zip(*texts, strict=True) if texts else ():
        if said:
            redactor.derived[said] = says
    one, other = logs
    for was, entry in zip(one.entries if one else (), other.entries if other else (), strict=False):
        if isinstance(was.body, AnswerIgnored) and isinstance(entry.body, AnswerIgnored):
            redactor.derived[was.body.message] = entry.body.message  # it names who was refused, and who is asked


def _check(before: SavedHistory, after: SavedHistory) -> None:
    """Look whether both tell of the same invocation.

    Raises:
        NotRedacted: They do not.
    """
    one, other = _log(before), _log(after)
    if one is None or other is None:
        return
    for number, (left, right) in enumerate(zip(_told(one), _told(other), strict=False), 1):
        if left != right:
            raise NotRedacted(
                f"Redacted by these rules, {one.invocation_id!r} would go on otherwise at entry {number}: {right} "
                f"instead of {left}. Report this; other rules may do."
            )
    if len(one.entries) != len(other.entries) or list(one.calls) != list(other.calls):
        raise NotRedacted(f"Redacted by these rules, {one.invocation_id!r} would end otherwise. Report this.")


async def _check_replay(before: SavedHistory, after: SavedHistory) -> None:
    """Look whether histories that replay do so still.

    Raises:
        NotRedacted: They do not.
    """
    for one, other in zip(before.histories, after.histories, strict=True):
        found = await divergence_of(other)
        if found and await divergence_of(one) is None:
            raise NotRedacted(f"Redacted by these rules, {one.workflow_id!r} would not replay: {found}. Report this.")


def _told(log: Log) -> list[tuple[str, str]]:
    return [(entry.ref, type(entry.body).__name__) for entry in log.entries]
