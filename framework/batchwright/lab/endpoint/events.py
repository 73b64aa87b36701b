"""Server-sent events, the format in which answers are streamed."""

from __future__ import annotations


class EventParser:
    """Cuts a stream of bytes into the data of its events, however they were divided on the way."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that these bytes complete; comments and other fields are left out."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        events: list[bytes] = []
        for line in lines:
            text = line.rstrip(b"\r")
            if text.startswith(b"data:"):
                self._data.append(text[5:].strip())
            elif not text and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events

    def finish(self) -> list[bytes]:
        """The data of an event that the stream's end completes."""
        return self.feed(b"\n\n")
