"""What a gate finds."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from waystation.core.payload import JsonObject

Verdict: TypeAlias = Literal["replays", "differs", "misfit", "unchecked", "lacking", "vanished"]
"""`differs`: this build would do otherwise than was recorded. `misfit`: the agents at hand cannot go on with it.
`unchecked`: replaying it hung, or took its process down. `lacking`: large values are not in the store. `vanished`: the
server no longer has it."""
BREAKS: frozenset[Verdict] = frozenset({"differs", "misfit", "unchecked", "lacking"})
"""What speaks against a build. What could not be looked at does, too: nobody knows."""
MAX_FINDINGS = 1_000
"""So many are kept, whatever the number of invocations; all are counted."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What is to be known of one workflow that does not simply replay."""

    id: str
    run_id: str
    kind: str
    """The workflow's type."""
    verdict: Verdict
    problem: str
    """A line."""
    divergence: JsonObject | None = None
    """Where this build parts from what was recorded, as `Divergence.to_json` says it."""
    misfits: Sequence[JsonObject] = ()
    """What the agents at hand lack."""

    def to_json(self) -> JsonObject:
        """Return what `--json` writes."""
        found: JsonObject = {
            "id": self.id,
            "run_id": self.run_id,
            "kind": self.kind,
            "verdict": self.verdict,
            "problem": self.problem,
            "divergence": self.divergence,
            "misfits": list(self.misfits),
        }
        return {name: value for name, value in found.items() if value}


@dataclass(kw_only=True)
class GateReport:
    """What came of a gate."""

    tools_checked: bool
    """Whether it was looked at the agents, too."""
    counts: Counter[Verdict] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    """Those that do not simply replay, at most `MAX_FINDINGS`."""
    problems: Sequence[str] = ()
    """Why agents could not be loaded; nothing was replayed then."""
    sampled: int = 0
    """How many of those were closed."""

    @property
    def checked(self) -> int:
        """How many workflows were looked at."""
        return self.counts.total()

    @property
    def passes(self) -> bool:
        """Whether nothing speaks against deploying this build."""
        return not self.problems and not any(self.counts[verdict] for verdict in BREAKS)

    def add(self, verdict: Verdict, finding: Finding | None) -> None:
        """Count one workflow."""
        self.counts[verdict] += 1
        if finding is not None and len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)

    def to_json(self) -> JsonObject:
        """Return what `--json` writes."""
        return {
            "passes": self.passes,
            "checked": self.checked,
            "sampled": self.sampled,
            "counts": dict(self.counts),
            "tools_checked": self.tools_checked,
            "problems": list(self.problems),
            "findings": [finding.to_json() for finding in self.findings],
        }
