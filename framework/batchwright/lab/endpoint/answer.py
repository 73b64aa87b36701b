"""What comes back of one request, chunk by chunk: when each of its tokens was there."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from typing import Any

from batchwright.lab.endpoint.client import said
from batchwright.lab.endpoint.events import EventParser

_DONE = b"[DONE]"


class Answer:
    """The stream of one request.

    A server may put several tokens into a chunk. They were there at one time, and get that time. How many a chunk holds
    is what the server says (a running ``usage``, or ``token_ids``); where it does not, the tokens are spread evenly
    over the chunks, and ``is_spread`` is set.

    Attributes:
        error: what went wrong, in the server's words; None: nothing.
        finish_reason: as the server says it; None: it has not.
        is_done: whether the stream came to its end.
        times_ns: when each token was there; complete after ``finish``.
        chunk_times_ns: when each chunk with tokens in it was there.
        is_spread: whether the number of tokens in each chunk is not known.
        num_prompt_tokens, num_cached_tokens: as the server counted them; None: it does not say.
        says_chunks: whether the server told how many tokens each chunk holds.
        text: what was answered.
    """

    def __init__(self, most: int | None) -> None:
        """Takes how many tokens were asked for."""
        self._most = most
        self._events = EventParser()
        self._counts: list[int | None] = []
        self._known = 0  # tokens in all of them, one where nobody knows
        self._num_said: int | None = None
        self._text: list[str] = []
        self.error: str | None = None
        self.finish_reason: str | None = None
        self.is_done = False
        self.times_ns: array[int] = array("q")
        self.chunk_times_ns: array[int] = array("q")
        self.is_spread = False
        self.num_prompt_tokens: int | None = None
        self.num_cached_tokens: int | None = None
        self.says_chunks = False

    @property
    def num_tokens(self) -> int:
        """Output tokens so far; after ``finish``, all."""
        return len(self.times_ns) or self._known

    @property
    def text(self) -> str:
        """What was answered so far."""
        return "".join(self._text)

    def feed(self, data: bytes, now_ns: int) -> None:
        """These bytes were there at that time."""
        for event in self._events.feed(data):
            self._take(event, now_ns)

    def finish(self) -> None:
        """No more bytes come."""
        last = self.chunk_times_ns[-1] if self.chunk_times_ns else 0
        for event in self._events.finish():
            self._take(event, last)
        self._spread()

    def _take(self, event: bytes, now_ns: int) -> None:
        if event == _DONE:
            self.is_done = True
            return
        try:
            value = json.loads(event)
        except ValueError:
            self.error = self.error or f"the stream holds what is no JSON: {event[:100]!r}"
            return
        if not isinstance(value, Mapping):
            self.error = self.error or f"the stream holds {value!r}, which is no chunk"
            return
        if value.get("error"):
            self.error = self.error or said(value)
            return
        choices = value.get("choices")
        usage = value.get("usage")
        total = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
        if isinstance(usage, Mapping):
            self._count(usage)
        if not choices:
            return
        choice = choices[0]
        text = _text(choice)
        if text:
            self._text.append(text)
        reason = choice.get("finish_reason")
        if reason is not None:
            self.finish_reason = str(reason)
        token_ids = choice.get("token_ids")
        if isinstance(total, int):
            self.says_chunks = True
            count: int | None = total - self._known
        elif isinstance(token_ids, list):
            self.says_chunks = True
            count = len(token_ids)
        else:
            # A completion's chunk without text may be a token that is no text yet. The first and the last of a
            # conversation carry a role, or the reason of its end.
            count = None if text or ("text" in choice and reason is None) else 0
        if count is None or count > 0:
            self._counts.append(count)
            self._known += 1 if count is None else count
            self.chunk_times_ns.append(now_ns)

    def _count(self, usage: Mapping[str, Any]) -> None:
        if isinstance(usage.get("completion_tokens"), int):
            self._num_said = usage["completion_tokens"]
        if isinstance(usage.get("prompt_tokens"), int):
            self.num_prompt_tokens = usage["prompt_tokens"]
        details = usage.get("prompt_tokens_details")
        if isinstance(details, Mapping) and isinstance(details.get("cached_tokens"), int):
            self.num_cached_tokens = details["cached_tokens"]

    @property
    def num_several(self) -> int:
        """Chunks that held more than one token, as far as that is known."""
        return sum(count is not None and count > 1 for count in self._counts)

    def _spread(self) -> None:
        """A time for each token."""
        chunks, known = self.chunk_times_ns, self._known
        total = known
        if self._num_said is not None and self.finish_reason is not None:
            total = max(self._num_said, 0)
        elif self.finish_reason == "length" and self._most is not None and not self.says_chunks:
            total = self._most
        if total == known:
            for time, count in zip(chunks, self._counts, strict=True):
                self.times_ns.extend([time] * (1 if count is None else count))
        elif chunks and total:
            self.is_spread = True
            last = len(chunks) - 1
            for token in range(total):
                self.times_ns.append(chunks[token * last // (total - 1) if total > 1 else last])


def _text(choice: Mapping[str, Any]) -> str:
    """Of a completion, or of a conversation: what is said, thought, or called."""
    found = choice.get("text")
    if isinstance(found, str):
        return found
    delta = choice.get("delta")
    if not isinstance(delta, Mapping):
        return ""
    for name in ("content", "reasoning_content", "reasoning"):
        if isinstance(delta.get(name), str) and delta[name]:
            return str(delta[name])
    return json.dumps(delta["tool_calls"]) if delta.get("tool_calls") else ""
