"""Representations of recordings: in terminals through rich, in notebooks as the same in HTML."""

import importlib
import io

from rich.console import Console, RenderableType
from rich.terminal_theme import TerminalTheme

PAGE = 110
"""Width in notebooks, in columns."""
_PRE = "font-family:ui-monospace,Menlo,Consolas,monospace;line-height:1.35;white-space:pre-wrap;margin:0"
# Readable on light and dark pages. Unstyled text has the page's color.
_THEME = TerminalTheme(
    (255, 255, 255),
    (0, 0, 0),
    [
        *[(90, 90, 90), (200, 40, 40), (20, 130, 60), (160, 110, 0)],
        *[(50, 90, 210), (165, 60, 165), (0, 125, 145), (120, 120, 120)],
    ],
)


class Displayable:
    """An object that rich and notebooks can display."""

    def __rich__(self) -> RenderableType:
        # Imported by name, like `lazy_exports`: presentation is a higher layer.
        views = importlib.import_module("waystation.presentation.recording_views")
        rendered: RenderableType = views.render(self)
        return rendered

    def _repr_html_(self) -> str:
        """Return the rich representation as HTML without scripts. Texts of models, tools and users are escaped."""
        console = Console(
            record=True, width=PAGE, file=io.StringIO(), force_jupyter=False, highlight=False, markup=False, emoji=False
        )
        console.print(self.__rich__())
        code = f'<pre style="{_PRE}">{{code}}</pre>'
        return console.export_html(theme=_THEME, inline_styles=True, code_format=code)
