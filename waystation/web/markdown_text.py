"""Messages of models as HTML. Models write Markdown, and their text is hostile, so only harmless parts are rendered."""

from functools import lru_cache

from markdown_it import MarkdownIt
from markupsafe import Markup

from waystation.presentation.text_safety import escape, is_invisible

MAX_CHARS = 8_000
"""Maximum length of a text to render. A longer one is shown as plain text."""
MAX_NESTING = 20
"""How deeply lists and quotations may be nested in a text to render. The renderer would drop what is nested deeper."""
# HTML and references to characters stay text. Links and images would hide their addresses, and an image could send what
# its address contains to another site.
_RENDERER = (
    MarkdownIt("commonmark", {"html": False, "maxNesting": MAX_NESTING})
    .enable(["table", "strikethrough"])
    .disable(["html_block", "html_inline", "entity", "link", "image", "autolink", "reference"])
)


@lru_cache(maxsize=500)
def render_markdown(text: str) -> Markup | None:
    """Return the HTML of a message with invisible characters escaped, or None if it must be shown as plain text."""
    if len(text) > MAX_CHARS:
        return None
    visible = "".join(escape(char) if is_invisible(char) else char for char in text.replace("\t", "    "))
    tokens = _RENDERER.parse(visible)
    if any(token.level >= MAX_NESTING - 1 for token in tokens):
        return None
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):  # the page has an outline of its own
            token.tag = "p"
            token.attrs = {"class": "heading"} if token.nesting > 0 else {}
    return Markup(_RENDERER.renderer.render(tokens, _RENDERER.options, {}))  # the renderer escapes text
