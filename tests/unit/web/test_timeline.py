"""The timeline of an invocation."""

import pytest

from waystation.presentation import timeline
from waystation.presentation.timeline import Scale

WEEKS = 3 * 7 * 86_400.0


def test_a_wait_of_weeks_leaves_short_steps_visible() -> None:
    """A long wait is cut and labeled with its length, while everything else keeps one scale."""
    scale = Scale([0.0, 2.0, 6.0, 6.0 + WEEKS, 8.0 + WEEKS])
    (cut,) = scale.breaks
    assert (round(cut.x, 1), round(cut.width, 1), cut.seconds) == (68.2, 9.0, WEEKS)
    assert scale.at(2.0) == pytest.approx(2 * scale.at(6.0) / 6)
    assert 100 - scale.at(6.0 + WEEKS) == pytest.approx(scale.at(2.0))
    assert scale.at(8.0 + WEEKS) == pytest.approx(100)


@pytest.mark.parametrize(
    ("lengths", "cut"),
    [
        ([], []),
        ([5], []),
        ([0, 5], []),
        ([2, 2, 5], []),
        ([1, 1, 7], [7]),
        ([2, WEEKS, 3, WEEKS / 2], [WEEKS, WEEKS / 2]),
        ([1, 3, 12, 48], []),
    ],
)
def test_only_much_longer_stretches_are_cut(lengths: list[float], cut: list[float]) -> None:
    """Stretches that fit one scale are not cut."""
    times = [sum(lengths[:count]) for count in range(len(lengths) + 1)]
    scale = Scale(times)
    assert [pytest.approx(each.seconds) for each in scale.breaks] == cut
    assert scale.at(times[-1]) == pytest.approx(100 if sum(lengths) else 0)


@pytest.mark.parametrize(("seconds", "ruler"), [(8.0, 2.0), (0.03, 0.005), (90_000.0, 20_000.0)])
def test_the_ruler_is_a_round_number_of_seconds(seconds: float, ruler: float) -> None:
    """The ruler takes at most a quarter of the width."""
    length, width = Scale([0.0, seconds]).ruler
    assert length == pytest.approx(ruler)
    assert 10 <= width <= 25


async def test_many_breaks_share_half_of_the_width() -> None:
    """Many waits leave room for the other steps."""
    times = [0.0]
    for number in range(20):
        times += [times[-1] + 1, times[-1] + 1 + WEEKS * (number + 1)]
    scale = Scale(times)
    assert len(scale.breaks) == 20
    assert sum(each.width for each in scale.breaks) == pytest.approx(timeline.BREAKS)
