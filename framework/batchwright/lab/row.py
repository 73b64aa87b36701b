"""One row of a workload."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from operator import attrgetter

from batchwright.errors import WorkloadError
from batchwright.prompts import Prompt
from batchwright.request import SLO


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """One request to offer.

    Attributes:
        arrival_ns: nanoseconds from the start of the run; of a row that waits for others, the earliest.
        num_prompt_tokens: length of the prompt, at least 1; None: of ``prompt``, which the model's tokenizer tells.
        num_output_tokens: how many tokens it really puts out, at least 1; hidden from policies. None, beside a
            ``prompt`` only: nobody knows, and it ends as the model ends it.
        max_tokens: declared limit of its output; None leaves it to the rule of the run.
        prefix_ids: what its prompt shares with others: the prompt begins with one block of ``prefix_block_size`` tokens
            for each id, and equal ids are equal tokens in all rows. Tokens of the prompt behind them are its own;
            a last block that the prompt is too short for is cut.
        prefix_block_size: tokens that one id of ``prefix_ids`` stands for.
        priority: lower goes first.
        client_id, session_id, program_id: whom it belongs to.
        weight: of its client, for fair policies.
        deadline_s: seconds after its arrival by which the answer should be complete.
        slo: its service objective.
        predicted_output_tokens: somebody's guess of its output length, which policies may read.
        prompt: as text, token ids or a conversation, in any form that ``LLM.generate`` takes; None: token ids are made
            up, of the given length.
        place: where the row stands, for errors: file, line and row.
        prefix_lengths: tokens that each id of ``prefix_ids`` stands for, where they are not all
            ``prefix_block_size``.
        row_id: its name, for rows that wait for it.
        after: names of rows that it waits for: it is offered when all of them have ended, however they did.
        think_s: seconds that then pass first; in a closed loop, since the request ended that makes room for it.
        slo_class: the kind of request it is, in tables by class.
        abort_after_s: seconds after its arrival when its client gives up, if the answer is not complete.
        abort_after_tokens: output tokens after which its client has enough.
        answer: the recorded text of the answer, beside a ``prompt``: where ``num_output_tokens`` is None, its tokens
            are counted once there is a tokenizer.

    Raises:
        WorkloadError: a number is out of its range, or two fields do not go together.
    """

    arrival_ns: int
    num_prompt_tokens: int | None
    num_output_tokens: int | None
    max_tokens: int | None = None
    prefix_ids: tuple[int, ...] = ()
    prefix_block_size: int = 0
    priority: int = 0
    client_id: str | None = None
    weight: float = 1.0
    deadline_s: float | None = None
    slo: SLO | None = None
    predicted_output_tokens: int | None = None
    session_id: str | None = None
    program_id: str | None = None
    prompt: Prompt | None = None
    place: str = field(default="", compare=False)
    prefix_lengths: tuple[int, ...] = ()
    row_id: str | None = None
    after: tuple[str, ...] = ()
    think_s: float = 0.0
    slo_class: str | None = None
    abort_after_s: float | None = None
    abort_after_tokens: int | None = None
    answer: str | None = None

    def __post_init__(self) -> None:
        if self.arrival_ns < 0:
            raise WorkloadError(f"arrival_ns must be at least 0, not {self.arrival_ns!r}")
        num_in, num_out = self.num_prompt_tokens, self.num_output_tokens
        if num_in is None or num_in < 1 or num_out is None or num_out < 1:
            self._check_lengths()
        if self.prompt is not None and self.prefix_ids:
            raise WorkloadError("prefix_ids make up a prompt, and this row has one: leave one of them out")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise WorkloadError(f"max_tokens must be at least 1, not {self.max_tokens!r}")
        if not self.weight > 0:
            raise WorkloadError(f"weight must be above 0, not {self.weight!r}")
        if self.prefix_ids or self.prefix_lengths:
            self._check_prefix()
        if self.think_s or self.abort_after_s is not None or self.abort_after_tokens is not None:
            self._check_client()
        if self.answer is not None and self.prompt is None:
            raise WorkloadError("an answer is the text beside a prompt; a row with lengths has num_output_tokens")

    def _check_lengths(self) -> None:
        for name in ("num_prompt_tokens", "num_output_tokens"):
            number = getattr(self, name)
            if number is None and self.prompt is None:
                raise WorkloadError(f"a row without a prompt says its {name}")
            if number is not None and number < 1:
                raise WorkloadError(f"{name} must be at least 1, not {number!r}")

    def _check_prefix(self) -> None:
        if not self.prefix_lengths:
            if self.prefix_block_size < 1:
                raise WorkloadError(
                    f"prefix_block_size must be at least 1 with prefix_ids, not {self.prefix_block_size!r}"
                )
            return
        if self.prefix_block_size:
            raise WorkloadError("prefix_block_size and prefix_lengths both say how long a prefix id is: give one")
        if len(self.prefix_lengths) != len(self.prefix_ids):
            raise WorkloadError(
                f"prefix_lengths has {len(self.prefix_lengths)} numbers for {len(self.prefix_ids)} prefix_ids: "
                "give one for each"
            )
        if min(self.prefix_lengths) < 1:
            raise WorkloadError(f"prefix_lengths must be at least 1, not {min(self.prefix_lengths)!r}")

    def _check_client(self) -> None:
        if not (self.think_s >= 0 and math.isfinite(self.think_s)):
            raise WorkloadError(f"think_s must be a finite number of at least 0, not {self.think_s!r}")
        if self.abort_after_s is not None and not (self.abort_after_s > 0 and math.isfinite(self.abort_after_s)):
            raise WorkloadError(f"abort_after_s must be a finite number above 0, not {self.abort_after_s!r}")
        if self.abort_after_tokens is not None and self.abort_after_tokens < 1:
            raise WorkloadError(f"abort_after_tokens must be at least 1, not {self.abort_after_tokens!r}")

    def later(self, by_ns: int) -> WorkloadRow:
        """The same, arriving by so much later."""
        return self.at(self.arrival_ns + by_ns) if by_ns else self

    def at(self, arrival_ns: int) -> WorkloadRow:
        """The same, arriving at this time; what was checked is not checked again, so it costs a third of ``replace``.

        Raises:
            WorkloadError: the time is below 0.
        """
        if arrival_ns < 0:
            raise WorkloadError(f"arrival_ns must be at least 0, not {arrival_ns!r}")
        row = object.__new__(WorkloadRow)
        for set_value, value in zip(_SETTERS, _values(self), strict=True):
            set_value(row, value)
        _SETTERS[0](row, arrival_ns)
        return row

    @property
    def think_ns(self) -> int:
        """``think_s`` in nanoseconds."""
        return round(self.think_s * 1e9)

    @property
    def gives_up(self) -> bool:
        """Whether its client may abort it."""
        return self.abort_after_s is not None or self.abort_after_tokens is not None

    def prefix(self) -> Iterator[tuple[int, int]]:
        """Each id of the prefix and how many tokens of the prompt it stands for; the last may be cut."""
        left = self.num_prompt_tokens or 0
        for place, prefix_id in enumerate(self.prefix_ids):
            if left <= 0:
                return
            length = min(left, self.prefix_lengths[place] if self.prefix_lengths else self.prefix_block_size)
            yield prefix_id, length
            left -= length


_NAMES = tuple(f.name for f in fields(WorkloadRow))
_values = attrgetter(*_NAMES)
_SETTERS = tuple(getattr(WorkloadRow, name).__set__ for name in _NAMES)


def fields_in_hash() -> tuple[tuple[str, ...], tuple[tuple[str, object], ...]]:
    """Names of the fields that the hash of a workload is over: those that always are, and those that are where they
    are not as they would be without, with that value.

    The second came later, and of a workload without them the hash is what it always was.
    """
    names = [f.name for f in fields(WorkloadRow)]
    first = names.index("prefix_lengths")
    always = tuple(name for name in names[:first] if name not in ("prompt", "place"))
    return always, tuple((f.name, f.default) for f in fields(WorkloadRow)[first:])
