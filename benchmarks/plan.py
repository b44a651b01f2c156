"""How thoroughly to measure, and where progress goes."""

import sys
from dataclasses import dataclass, field

from benchmarks.quiet import Machine


@dataclass(slots=True)
class Plan:
    """How thoroughly to measure."""

    quick: bool = False
    remarks: list[str] = field(default_factory=list)
    """What a reader of the table should know."""

    @property
    def patience_s(self) -> float:
        """How long to wait, in all, for other programs to be quiet."""
        return 60.0 if self.quick else 300.0

    def tell(self, what: str) -> None:
        """Say what is being measured."""
        print(f"… {what}", file=sys.stderr, flush=True)

    def report(self, machine: Machine) -> None:
        """Remark how much others have disturbed."""
        if machine.repeated or machine.disturbed:
            self.remarks.append(
                f"{machine.repeated} samples were taken again because other programs were at work; "
                f"{machine.disturbed} count although they were."
            )
