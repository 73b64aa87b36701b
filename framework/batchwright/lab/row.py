"""One row of a workload."""

from __future__ import annotations

from dataclasses import dataclass, field

from batchwright.errors import WorkloadError
from batchwright.prompts import Prompt
from batchwright.request import SLO


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """One request to offer.

    Attributes:
        arrival_ns: nanoseconds from the start of the run.
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

    Raises:
        WorkloadError: a number is out of its range.
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

    def __post_init__(self) -> None:
        if self.arrival_ns < 0:
            raise WorkloadError(f"arrival_ns must be at least 0, not {self.arrival_ns!r}")
        for name in ("num_prompt_tokens", "num_output_tokens"):
            number = getattr(self, name)
            if number is None and self.prompt is None:
                raise WorkloadError(f"a row without a prompt says its {name}")
            if number is not None and number < 1:
                raise WorkloadError(f"{name} must be at least 1, not {number!r}")
        if self.prompt is not None and self.prefix_ids:
            raise WorkloadError("prefix_ids make up a prompt, and this row has one: leave one of them out")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise WorkloadError(f"max_tokens must be at least 1, not {self.max_tokens!r}")
        if self.prefix_ids and self.prefix_block_size < 1:
            raise WorkloadError(f"prefix_block_size must be at least 1 with prefix_ids, not {self.prefix_block_size!r}")
        if not self.weight > 0:
            raise WorkloadError(f"weight must be above 0, not {self.weight!r}")
