"""What is read from recordings can be printed: in a terminal through rich, in a notebook as the same in HTML."""

import importlib
import io

from rich.console import Console, RenderableType
from rich.terminal_theme import TerminalTheme

PAGE = 110
"""Columns in a notebook."""
_PRE = "font-family:ui-monospace,Menlo,Consolas,monospace;line-height:1.35;white-space:pre-wrap;margin:0"
# Readable on a light page and on a dark one; what has no style has the page's own colour.
_THEME = TerminalTheme(
    (255, 255, 255),
    (0, 0, 0),
    [
        *[(90, 90, 90), (200, 40, 40), (20, 130, 60), (160, 110, 0)],
        *[(50, 90, 210), (165, 60, 165), (0, 125, 145), (120, 120, 120)],
    ],
)


class Displayable:
    """Something with a representation in rich, from which that of notebooks is made."""

    def __rich__(self) -> RenderableType:
        # By name, like `lazy_exports`: presentation is the layer above, and loads when something is displayed.
        views = importlib.import_module("waystation.presentation.recording_views")
        rendered: RenderableType = views.render(self)
        return rendered

    def _repr_html_(self) -> str:
        """Return the same as HTML without scripts; texts of models, tools and users are escaped."""
        console = Console(
            record=True, width=PAGE, file=io.StringIO(), force_jupyter=False, highlight=False, markup=False, emoji=False
        )
        console.print(self.__rich__())
        code = f'<pre style="{_PRE}">{{code}}</pre>'
        return console.export_html(theme=_THEME, inline_styles=True, code_format=code)
