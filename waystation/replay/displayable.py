"""Display recordings with rich in terminals, and as the equivalent HTML in notebooks."""

import io
from abc import ABC, abstractmethod

from rich.console import Console, RenderableType
from rich.terminal_theme import TerminalTheme

PAGE = 110
"""Width of the output in notebooks, in columns."""
_PRE = "font-family:ui-monospace,Menlo,Consolas,monospace;line-height:1.35;white-space:pre-wrap;margin:0"
# These colors are readable on light and dark pages. Unstyled text uses the page's own color.
_THEME = TerminalTheme(
    (255, 255, 255),
    (0, 0, 0),
    [
        *[(90, 90, 90), (200, 40, 40), (20, 130, 60), (160, 110, 0)],
        *[(50, 90, 210), (165, 60, 165), (0, 125, 145), (120, 120, 120)],
    ],
)


class Displayable(ABC):
    """An object that rich and notebooks can display."""

    @abstractmethod
    def __rich__(self) -> RenderableType:
        """Return the view of the object."""

    def _repr_html_(self) -> str:
        """Return the rich representation as HTML without scripts. Text from models, tools and users is escaped."""
        console = Console(
            record=True, width=PAGE, file=io.StringIO(), force_jupyter=False, highlight=False, markup=False, emoji=False
        )
        console.print(self.__rich__())
        code = f'<pre style="{_PRE}">{{code}}</pre>'
        return console.export_html(theme=_THEME, inline_styles=True, code_format=code)
