"""Times on pages have their zone for readers and are UTC for programs."""

import re

from tests.agents import Till
from tests.conftest import SetZone
from tests.server.conftest import Serve
from tests.server.web.desk import begun, payer
from tests.server.web.sites import page_of, path_of, site
from tests.steps import reject_and_finish
from waystation.presentation.html import format_moment, get_zone


def test_a_moment_has_the_zone_of_its_date(set_zone: SetZone) -> None:
    """Summer and winter have different zones, and programs read UTC."""
    set_zone("Europe/Berlin")
    assert format_moment(1_753_000_000) == '<time datetime="2025-07-20T08:26:40+00:00">2025-07-20 10:26:40 CEST</time>'
    assert format_moment(1_737_000_000) == '<time datetime="2025-01-16T04:00:00+00:00">2025-01-16 05:00:00 CET</time>'
    assert get_zone() in ("CET", "CEST")


async def test_every_time_on_every_page_has_a_zone(serve: Serve, set_zone: SetZone) -> None:
    """Lists, histories, tables, facts and decisions show the zone."""
    set_zone("TST-2")
    async with serve(payer(Till(), {"amount": 5})) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        await reject_and_finish(invocation)
        whole = page_of(invocation)
        for path in (path_of(id), whole, f"{whole}/timeline", f"{whole}/rows?start=0"):
            page = re.sub(r'datetime="[^"]*\+00:00"', "", (await me.page(path)).text)
            times = re.findall(r"\d\d:\d\d:\d\d(?!Z)(.{4})", page)  # IDs of scheduled invocations end with Z
            assert times, path
            assert {each.strip(" .<") for each in times} == {"TST"}, path
            assert page.count("<time ") == len(times), path
