"""Reads pages that must need nothing beside them."""

from html.parser import HTMLParser


class ReadPage(HTMLParser):
    """What a page holds; fails on an id twice, a tag that is not closed and what it would load."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.dots: list[str] = []
        self.words = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = {name: value or "" for name, value in attrs}
        assert tag not in {"script", "link", "img", "iframe"}
        assert "src" not in own
        assert own.get("href", "#").startswith("#")
        if "id" in own:
            assert own["id"] not in self.ids
            self.ids.add(own["id"])
        if tag == "a":
            self.links.append(own["href"])
        if tag == "use":
            self.dots.append(own["style"])
        if tag not in {"meta", "br"}:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += f"{data} "
