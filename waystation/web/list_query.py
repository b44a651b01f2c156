"""The filters, the order and the page of a list, as in the address of its page."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from typing import Any, ClassVar, Self, TypeVar
from urllib.parse import urlencode

from waystation.web.http_responses import RequestRefused

T = TypeVar("T")

MAX_FILTER_CHARS = 300


@dataclass(frozen=True, kw_only=True)
class ListQuery:
    """The filters, the order and the page of a list. Each list adds its own filters."""

    q: str = ""
    """The words of the search."""
    sort: str = ""
    page: int = 1

    choices: ClassVar[Mapping[str, Collection[str]]]
    """The values of the filters that have only some. Other values are refused or, if `ignores_unknown`, ignored."""
    ignores_unknown: ClassVar[bool] = False
    quoted: ClassVar[Collection[str]] = ()
    """The filters that are sent to the server in quotation marks, and cannot contain any."""
    not_filters: ClassVar[Collection[str]] = ("sort", "page")
    """The parameters that leave nothing out of the list."""

    @classmethod
    def parse(cls, params: Mapping[str, str], *, strict: bool = False) -> Self:
        """Parse the parameters of an address. If `strict`, nothing unknown is ignored.

        Raises:
            Refused: A parameter has an unknown value or, if `strict`, an unknown name.
        """
        if strict and (unknown := params.keys() - asdict(cls()).keys()):
            raise _refuse(f"{min(unknown)[:40]!r} is not a parameter of this list. Use: {', '.join(asdict(cls()))}.")
        texts = {name: params.get(name, "").strip()[:MAX_FILTER_CHARS] for name in asdict(cls())}
        page = texts.pop("page") or "1"
        for name, values in cls.choices.items():
            if texts[name] and texts[name] not in values:
                if strict or not cls.ignores_unknown:
                    raise _refuse(f"{name} is {texts[name][:40]!r}. Use one of: {', '.join(filter(None, values))}.")
                texts[name] = ""
        if not (page.isascii() and page.isdecimal() and 0 < int(page[:9]) < 10**6):
            raise _refuse(f"page is {page[:40]!r}, which is not a page.")
        return cls(page=int(page), **{name: text for name, text in texts.items() if text})

    @classmethod
    def parse_or_default(cls, params: Mapping[str, str]) -> Self:
        """Parse the parameters of an address, or return the unfiltered list if they are invalid."""
        try:
            return cls.parse(params)
        except RequestRefused:
            return cls()

    def encode(self, **changes: Any) -> str:
        """Return the parameters of an address with other values. A change other than the page shows the first page."""
        values, defaults = asdict(replace(self, **({"page": 1, **changes} if changes else {}))), asdict(type(self)())
        filters = [name for name in values if name not in ("sort", "page")]
        return urlencode({name: values[name] for name in (*filters, "sort", "page") if values[name] != defaults[name]})

    @property
    def is_filtered(self) -> bool:
        """Whether something is left out."""
        return any(value for name, value in asdict(self).items() if name not in self.not_filters)

    def cut(self, items: Sequence[T], size: int) -> tuple[Sequence[T], int, int]:
        """Return the items of the page, its number, and the number of pages. A later page than the last is the last."""
        pages = max(1, -(-len(items) // size))
        page = min(self.page, pages)
        return items[(page - 1) * size : page * size], page, pages


def _refuse(text: str) -> RequestRefused:
    return RequestRefused(HTTPStatus.BAD_REQUEST, "InvalidRequest", text)
