"""The command `waystation policy test`: try policies on recorded calls before they count."""

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated
from xml.etree import ElementTree

import typer

from waystation.apps.registry import discover
from waystation.cli.command_context import (
    AsJson,
    CommandContext,
    CommandProblem,
    Exit,
    translate_file_errors,
)
from waystation.cli.command_execution import AsyncCommand, create_command_group
from waystation.cli.history_sources import HistorySources, OnlyAgent, ReadLimit, Since, Until, read_logs
from waystation.cli.output import Output
from waystation.presentation import terminal
from waystation.presentation.text_safety import format_duration
from waystation.replay.history_logs import UnreadableHistory
from waystation.replay.policy_suggestions import MIN_SUPPORT, Suggestion, SuggestionMaker
from waystation.replay.policy_trial import LIMIT_S, OBJECTIONS, PolicyTrial, RuleReport, TrialReport

policy = create_command_group("Try approval policies on recorded calls before they count.")


@policy.command("test", cls=AsyncCommand)
async def try_policies(
    ctx: CommandContext,
    agents: Annotated[list[Path], typer.Option("--agents", metavar="DIR", help="Folder with the agents to try.")],
    sources: HistorySources = None,
    agent: OnlyAgent = None,
    since: Since = None,
    until: Until = None,
    limit: ReadLimit = None,
    bound: Annotated[
        float, typer.Option("--bound", metavar="SECONDS", min=0.01, help="How long the rules may take for one call.")
    ] = LIMIT_S,
    suggest: Annotated[
        bool, typer.Option("--suggest", help="Also list which calls people always approved. Nothing is applied.")
    ] = False,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the result as JUnit XML.")] = None,
    json: AsJson = False,
) -> Exit:
    """Compare what the policies in this checkout would ask with what people were asked, and what they decided.

    No model and no tool is called. Functions in rules run on this machine, with the recorded arguments. Exit code 1
    means that calls that people rejected or edited, or that nobody answered, would now run without asking, that a rule
    failed, or that something could not be tried.
    """
    registry, problems = discover(agents)
    if problems:
        raise CommandProblem(Exit.USAGE, "\n".join(map(str, problems)))
    report, trial, maker = TrialReport(), PolicyTrial(registry, limit_s=bound), SuggestionMaker()
    async with aclosing(await read_logs(ctx, sources, agent=agent, since=since, until=until, limit=limit)) as logs:
        async for log in logs:
            if isinstance(log, UnreadableHistory):
                report.add_unreadable(log)
                continue
            report.histories += 1
            async for call in trial.try_log(log):
                report.add(call)
                maker.add(call)
    if junit is not None:
        with translate_file_errors(junit, "written"):
            junit.write_bytes(format_junit(report))
    suggestions = maker.suggest() if suggest else []
    if json:
        ctx.out.record({**report.to_json(), "suggestions": [asdict(each) for each in suggestions]})
    else:
        _write_report(ctx.out, report)
        for each in suggestions:
            ctx.out.line(terminal.escape(_format_suggestion(each)))
        if suggest and not suggestions:
            ctx.out.line(f"No tool has {MIN_SUPPORT} decided calls that people nearly always approved unchanged.")
    return Exit.OK if report.passes else Exit.FAILED


def _format_suggestion(each: Suggestion) -> str:
    low, high = each.interval
    exceptions = f" It would have let through: {', '.join(each.exceptions)}." if each.exceptions else ""
    return (
        f"{each.agent}: `{each.tool}` could ask {each.condition}: people approved {each.approved} of the {each.calls} "
        f"calls that would then run ({low:.1%} to {high:.1%}).{exceptions}"
    )


def format_junit(report: TrialReport) -> bytes:
    """Return a report as JUnit XML, with a test case for each rule and one for what is let through."""
    suite = ElementTree.Element("testsuite", name="waystation policy test")
    failed = 0
    cases = [*report.rules.items(), ("calls that run without asking", report.let_through)]
    for name, rule in cases:
        case = ElementTree.SubElement(suite, "testcase", classname="policies", name=name)
        objected = sum(rule.decisions[each] for each in OBJECTIONS) if rule is report.let_through else 0
        if rule.failures or objected:
            failed += 1
            text = f"{dict(rule.failures)}" if rule.failures else f"{objected} of {rule.calls}: {', '.join(rule.links)}"
            ElementTree.SubElement(case, "failure", message=text)
    for reason, count in (*report.unreadable.items(), *report.untried.items()):
        case = ElementTree.SubElement(suite, "testcase", classname="untried", name=reason)
        ElementTree.SubElement(case, "failure", message=f"{count} times")
        failed += 1
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(failed))
    return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True))


def _write_report(out: Output, report: TrialReport) -> None:
    out.line(
        f"{report.calls:,} calls in {report.histories:,} invocations; people were asked about {report.asked:,} of "
        f"them, and would now be asked about {report.asks:,}."
    )
    for name, rule in report.rules.items():
        _write_rule(out, name, f"asks about {rule.calls:,} calls", rule)
    for name, rule in report.shadows.items():
        _write_rule(out, name, f"in shadow mode: would ask about {rule.calls:,} calls", rule)
    if report.let_through.calls:
        text = f"{report.let_through.calls:,} calls that people were asked about would run"
        _write_rule(out, "no rule asks", text, report.let_through)
    for problem in report.problems[:3]:
        out.line(terminal.escape(problem), style="red")
    for what, reasons in (("histories could not be read", report.unreadable), ("calls were not tried", report.untried)):
        for reason, count in reasons.items():
            out.line(f"{count:,} {what}: {terminal.escape(reason)}", style="red")


def _write_rule(out: Output, name: str, text: str, rule: RuleReport) -> None:
    new = f"; {rule.new:,} of them ran without a question" if rule.new else ""
    others = f"; {rule.elsewhere:,} were for other people" if rule.elsewhere else ""
    decided = [f"{count:,} {DECIDED.get(action, action)}" for action, count in rule.decisions.most_common()]
    wait_s = rule.to_json()["median_wait_s"]
    facts = {
        "calls": f"{text}{new}{others}",
        "people": ", ".join(decided) + (f"; median wait {format_duration(wait_s)}" if wait_s is not None else ""),
        "failed": ", ".join(f"{kind}: {count:,} times" for kind, count in rule.failures.items()),
        "see": ", ".join(rule.links[:3]),
    }
    out.line()
    out.line(terminal.escape(name), style="bold")
    out.facts([(label, terminal.escape(value)) for label, value in facts.items() if value])


DECIDED: Mapping[str, str] = {
    "approve": "approved",
    "reject": "rejected",
    "edit": "edited",
    "respond": "answered",
    "waive": "waived",
    "cancel": "closed",
    "open": "still open",
}
"""How the report names decisions. Others have their own name."""
