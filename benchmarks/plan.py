"""How many samples to take, and the output of progress."""

import sys
from dataclasses import dataclass, field

from benchmarks.quiet import Machine


@dataclass(slots=True)
class Plan:
    """The number of samples, and remarks on them."""

    quick: bool = False
    remarks: list[str] = field(default_factory=list)
    """Notes printed below the table."""

    @property
    def patience_s(self) -> float:
        """How long to wait, in all, until other programs are idle."""
        return 60.0 if self.quick else 300.0

    def report_progress(self, text: str) -> None:
        """Print what is being measured."""
        print(f"… {text}", file=sys.stderr, flush=True)

    def note_disturbances(self, machine: Machine) -> None:
        """Add a remark if other programs were active."""
        if machine.repeated or machine.disturbed:
            self.remarks.append(
                f"{machine.repeated} samples were repeated because other programs were active; "
                f"{machine.disturbed} count although they were active."
            )
