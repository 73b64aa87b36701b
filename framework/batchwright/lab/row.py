"""One row of a workload."""

from __future__ import annotations

from dataclasses import dataclass

from batchwright.errors import WorkloadError
from batchwright.request import SLO


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """One request to offer.

    Attributes:
        arrival_ns: nanoseconds from the start of the run.
        num_prompt_tokens: length of the prompt, at least 1.
        num_output_tokens: how many tokens it really puts out, at least 1; hidden from policies.
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

    Raises:
        WorkloadError: a number is out of its range.
    """

    arrival_ns: int
    num_prompt_tokens: int
    num_output_tokens: int
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

    def __post_init__(self) -> None:
        if self.arrival_ns < 0:
            raise WorkloadError(f"arrival_ns must be at least 0, not {self.arrival_ns!r}")
        if self.num_prompt_tokens < 1:
            raise WorkloadError(f"num_prompt_tokens must be at least 1, not {self.num_prompt_tokens!r}")
        if self.num_output_tokens < 1:
            raise WorkloadError(f"num_output_tokens must be at least 1, not {self.num_output_tokens!r}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise WorkloadError(f"max_tokens must be at least 1, not {self.max_tokens!r}")
        if self.prefix_ids and self.prefix_block_size < 1:
            raise WorkloadError(f"prefix_block_size must be at least 1 with prefix_ids, not {self.prefix_block_size!r}")
        if not self.weight > 0:
            raise WorkloadError(f"weight must be above 0, not {self.weight!r}")
