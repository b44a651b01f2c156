"""How a fork begins: an activity reads what it takes over of another invocation, and a further run has it."""

from temporalio import workflow
from temporalio.exceptions import ActivityError
from temporalio.workflow import ActivityCancellationType

from waystation.core import ids
from waystation.core.continued import Carried
from waystation.core.entry import AnswerIgnored, Failure, ForkRefused
from waystation.core.fork import TAKE_OVER_ACTIVITY, TakenOver
from waystation.core.log import MAX_IGNORED_EVENTS, Log
from waystation.core.model_call import Position
from waystation.core.payload import decode
from waystation.core.segment import to_json
from waystation.core.snapshot import Snapshot
from waystation.core.wire import MEMO_FORK, InvocationInput
from waystation.workflows.engine_activity import execute_engine_activity, settings
from waystation.workflows.ports import failure_of, raw


async def take_over(log: Log, position: Position) -> ForkRefused:
    """Go on in another run, with what is taken over; return only when there is nothing to be had.

    What strangers have sent meanwhile is in the log, and nothing else; as much of it as is shown is taken along.
    """
    try:
        result = await execute_engine_activity(
            TAKE_OVER_ACTIVITY,
            position.encode(),
            settings().take_over,
            activity_id=ids.FORK,
            cancellation=ActivityCancellationType.ABANDON,
            summary="reads what this fork takes over",
        )
        taken = TakenOver.model_validate(decode(result))
        started = InvocationInput.model_validate(taken.input)
    except ActivityError as error:
        return ForkRefused(failure_of(error))
    except ValueError:
        return ForkRefused(Failure(kind="error", error_type="EngineFault"))
    info = workflow.info()
    own = taken.snapshot.restored(info.workflow_id, started)
    sent = [entry for entry in log.entries if isinstance(entry.body, AnswerIgnored)]
    for number, entry in enumerate(sent[:MAX_IGNORED_EVENTS], taken.signals + 1):
        own.append(ids.ignored(ids.signalled(number)), entry.time, entry.body)
    carried = Carried(
        run_id=info.run_id,
        snapshot=Snapshot.of(own),
        signals=taken.signals + len(sent),
        updates=taken.updates,
        segments=taken.segments,
        tail=(*taken.tail, *to_json(own.entries)),
        search_attributes=taken.search_attributes,
        forked=True,
    )
    workflow.continue_as_new(raw(carried.input(started)), memo={MEMO_FORK: started.fork.memo()} if started.fork else {})
