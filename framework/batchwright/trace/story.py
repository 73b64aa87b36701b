"""One request's story: what became of it in each step, and why, from a file of reasons."""

from __future__ import annotations

import difflib
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from batchwright.errors import CasesError, UnknownRequestError
from batchwright.trace.reason import Reason
from batchwright.trace.recorder import FORMAT
from batchwright.trace.wording import alike, say_why

_SHOWN = 5


@dataclass(frozen=True)
class Chapter:
    """Consecutive steps in which the same became of a request.

    Attributes:
        first, last: their numbers; both are None for what happened between two steps.
        start_ns: start of the first, in nanoseconds of the engine's clock.
        reasons: one of each step.
        text: what happened, in words.
    """

    first: int | None
    last: int | None
    start_ns: int | None
    text: str
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True)
class Story:
    """What became of a request.

    Attributes:
        request_id: its id.
        arm: name of the run.
        policy: policy and parameters, as a config would say them.
        backend: what executed.
        chapters: in order.
    """

    request_id: str
    arm: str
    policy: dict[str, Any]
    backend: str
    chapters: list[Chapter] = field(default_factory=list)


def read_story(path: str | Path, request_id: str) -> Story:
    """The story of one request.

    Args:
        path: what ``batchwright run --explain`` or a ``ReasonRecorder`` wrote, gzipped or not.
        request_id: of the request.

    Raises:
        CasesError: it is no such file, or a line of it is broken.
        UnknownRequestError: no request of that id is in it; says which there are.
    """
    path = Path(path)
    lines = _lines(path)
    _, head = next(lines, (0, {}))
    form = head.get("format")
    if form != FORMAT:
        found = f"its format is {form!r}" if form is not None else "it does not say its format"
        raise CasesError(f"{path}: {found}; expected {FORMAT}, as batchwright run --explain FILE writes it")
    story = Story(request_id, str(head.get("arm")), head.get("policy") or {}, str(head.get("backend") or ""))
    teller = _Teller(request_id, story.chapters)
    number = 1
    try:
        for place, line in lines:
            number = place
            teller.hear(line)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CasesError(f"{path}, line {number}: {type(error).__name__}: {error}; it is no line of {FORMAT}") from None
    teller.finish()
    if not story.chapters:
        raise UnknownRequestError(f"{path} has no request {request_id!r}; {_which(request_id, list(teller.ids))}")
    return story


def _which(request_id: str, ids: list[str]) -> str:
    near = difflib.get_close_matches(request_id, ids, n=3, cutoff=0.8)
    if not near:  # the number alone, say
        digits = re.sub(r"\D", "", request_id).lstrip("0")
        near = [name for name in ids if digits and re.sub(r"\D", "", name).lstrip("0") == digits][:3]
    if near:
        return "did you mean " + " or ".join(map(repr, near)) + "?"
    if not ids:
        return "nobody came in that run"
    shown = ", ".join(ids[:_SHOWN]) + (f" ... {ids[-1]}" if len(ids) > _SHOWN else "")
    return f"there are {len(ids)}: {shown}" if len(ids) > 1 else f"there is one: {shown}"


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    number = 0
    try:
        with _open(path) as file:
            for number, raw in enumerate(file, 1):
                line = json.loads(raw)
                if not isinstance(line, dict):
                    raise ValueError("a line is a JSON object")
                yield number, line
    except (OSError, EOFError, zlib.error) as error:
        what = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CasesError(f"{path}: cannot be read: {what}") from None
    except ValueError as error:
        raise CasesError(
            f"{path}, line {number + 1 if isinstance(error, UnicodeDecodeError) else number}: not JSON lines: {error}; "
            f"expected {FORMAT}, as batchwright run --explain FILE writes it"
        ) from None


def _open(path: Path) -> IO[str]:
    with path.open("rb") as file:
        is_gzipped = file.read(2) == b"\x1f\x8b"
    if is_gzipped:
        return cast(IO[str], gzip.open(path, "rt", encoding="utf-8"))
    return path.open(encoding="utf-8")


class _Teller:
    """Follows one request through the lines of a file.

    Attributes:
        ids: everybody that was heard of.
    """

    def __init__(self, request_id: str, chapters: list[Chapter]) -> None:
        self.ids: dict[str, None] = {}
        self._id = request_id
        self._chapters = chapters
        self._from = self._until = -1  # steps in which it is there: from the first, and before the second
        self._end = ""  # how it ended, where that is still to be told: a step under way comes first
        self._is_resident = self._is_decode = False
        self._shared: dict[str, Reason] = {}
        self._like: list[Reason] = []  # of the chapter that is being told
        self._like_resident = False
        self._first = self._last = 0
        self._start_ns = 0

    def hear(self, line: dict[str, Any]) -> None:
        """One line."""
        if "step" in line:
            self._step(line)
        elif "arrived" in line:
            self.ids[line["arrived"]] = None
            if line["arrived"] == self._id:
                self.finish()  # an id may come again
                self._from, self._until, self._is_resident = line["before_step"], -1, False
                prompt, most = line["num_prompt_tokens"], line["max_tokens"]
                self._happened(line["ns"], f"arrives with {prompt:,} prompt tokens, for at most {most:,} more")
        elif "refused" in line:
            self.ids[line["refused"]] = None
            if line["refused"] == self._id:
                self._happened(None, f"is refused: {line['why']}")
        elif "ended" in line:
            if line["ended"] == self._id:
                self._until, self._end = line["before_step"], _ended(line["reason"])
        else:
            raise ValueError(f"its keys are {', '.join(line)}")

    def _step(self, line: dict[str, Any]) -> None:
        for name in ("decodes", "others"):
            if name in line:
                self._shared[name] = Reason.from_json(line[name])
        if self._id in line.get("left", ()):
            self._is_decode = False
        if self._id in line.get("joined", ()):
            self._is_decode = True
        index = line["step"]
        if self._end and self._until <= index:
            self.finish()
        if self._from < 0 or index < self._from or 0 <= self._until <= index:
            return
        own = line.get("requests", {}).get(self._id)
        reason = Reason.from_json(own) if own is not None else self._shared["decodes" if self._is_decode else "others"]
        self._tell(index, line["now"], reason)
        self._is_resident = not reason.was_evicted and (reason.ran or self._is_resident)
        ended = line.get("finished", {}).get(self._id)
        if ended is not None:
            self._from = -1
            self._happened(line["end"], _ended(ended))

    def _tell(self, index: int, now: int, reason: Reason) -> None:
        if not self._like or not alike(self._like[0], reason) or self._like_resident != self._is_resident:
            self._close()
            self._first, self._start_ns, self._like_resident = index, now, self._is_resident
        self._like.append(reason)
        self._last = index

    def finish(self) -> None:
        """Nothing more is to come."""
        self._close()
        if self._end:
            end, self._end = self._end, ""
            self._happened(None, end)

    def _close(self) -> None:
        """The chapter that is being told is complete."""
        if self._like:
            first = self._like[0]
            verb = (
                "runs: " if first.ran else "" if first.was_evicted else "pauses: " if self._like_resident else "waits: "
            )
            text = verb + say_why(self._like)
            self._chapters.append(Chapter(self._first, self._last, self._start_ns, text, tuple(self._like)))
            self._like = []

    def _happened(self, when_ns: int | None, text: str) -> None:
        self._close()
        self._chapters.append(Chapter(None, None, when_ns, text))


def _ended(reason: str) -> str:
    return {
        "stop": "ends: a stop token or string came",
        "length": "ends: max_tokens reached",
        "trace": "ends: its true length in the workload reached",
        "abort": "is aborted",
        "error": "ends with an error",
    }.get(reason, f"ends: {reason}")
