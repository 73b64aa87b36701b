"""Reading a page as a browser or a screen reader would, without one."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Elements of a page, its ids, its references and its words.

    Attributes:
        elements: name and attributes of each, in order.
        text: words outside of styles.
        unclosed: elements that were not closed where they had to be.
    """

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.unclosed: list[str] = []
        self._words: list[str] = []
        self._open: list[str] = []
        self.feed(source)
        self.close()
        self.unclosed += self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.unclosed.append(tag)

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self._words.append(data)

    @property
    def text(self) -> str:
        """All words, with one blank between them."""
        return " ".join(" ".join(self._words).split())

    def all(self, tag: str) -> list[dict[str, str]]:
        """Attributes of all elements of a name."""
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def ids(self) -> list[str]:
        """All ids, with repetitions."""
        return [attributes["id"] for _, attributes in self.elements if "id" in attributes]
