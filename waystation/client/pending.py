"""What a workflow's memo and search attributes say of the calls that wait for a person."""

from collections.abc import Mapping
from typing import Any

from temporalio.common import TypedSearchAttributes

from waystation.client.search_attributes import AGENT, PENDING
from waystation.core.answer import PendingCall
from waystation.core.wire import MEMO_PENDING


def pending_calls(memo: Mapping[str, Any], attributes: TypedSearchAttributes) -> list[PendingCall]:
    """Return what waits: what the memo describes, and, where search attributes exist, they still list."""
    described = [PendingCall.model_validate(call) for call in memo.get(MEMO_PENDING) or ()]
    if attributes.get(AGENT) is None:
        return described
    listed = attributes.get(PENDING) or ()
    return [call for call in described if call.function_call_id in listed]
