"""`waystation debug --pdb`: Python's debugger in the workflow code. Apart, because it loads the workflows."""

from waystation.cli.exits import Exit, Problem
from waystation.cli.output import Output
from waystation.presentation import terminal
from waystation.replay.recording import Moment
from waystation.replay.workflow_debugger import WorkflowDebugger, break_at


async def stop_at(moment: Moment, out: Output) -> Exit:
    """Replay up to a moment, stop there, and replay the rest once the debugger is left.

    Raises:
        Problem: Values are missing without which the code would go other ways.
        NothingToBreakAt: There is nothing at that moment.
    """
    if lacking := moment.recording.lacking:
        text = (
            f"{len(lacking)} large values cannot be had, and the code may need them; --store says where they are kept."
        )
        raise Problem(Exit.USAGE, text)

    def begin() -> WorkflowDebugger:
        out.remark(f"Just before event {moment.number} of {terminal.safe(moment.recording.id)}; q replays the rest.")
        return WorkflowDebugger()

    problem = await break_at(moment, begin)
    if problem:
        out.line(f"It does not replay: {terminal.safe(problem)}", style="red")
        return Exit.FAILED
    return Exit.OK
