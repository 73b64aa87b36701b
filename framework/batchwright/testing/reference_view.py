"""What hooks see of a step of the reference, all of it computed when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from batchwright.errors import BackendError
from batchwright.request import Request

if TYPE_CHECKING:
    from batchwright.testing.reference import Reference


class View:
    """The attributes of ``batchwright.step.Step``; see there what each says. Detectors have no part in it."""

    def __init__(self, core: Reference, now: int) -> None:
        self.core, self.now, self.index = core, now, core._num_steps
        self.limits, self.rng = core.limits, core.rng
        self.num_blocks, self.block_size = core.blocks.num_blocks, core.blocks.block_size
        self.waiting, self.running = tuple(core.waiting), tuple(core.running)  # frozen while the step is built
        self.prefilling = [r for r in self.running if r.is_prefilling]
        self.decodes = [r for r in self.running if r.is_decode]
        self.batch: list[Request] = []
        self.preempted: list[Request] = []
        self.sampled: list[Request] = []
        self.finished: list[Request] = []
        self.events: list[dict[str, Any]] = []
        self.num_recomputed = 0
        self.end: int | None = None
        self.lacking: str | None = None
        self.asker: Request | None = None
        # What the reference notes to undo a row:
        self.held = {r: len(r.block_table) for r in self.running}  # blocks before this step
        self.charged: dict[Request, int] = {}  # tokens of the budget
        self.fresh: dict[Request, list[int]] = {}  # blocks that the row will fill, where that is visible at once
        self.rows: list[tuple[Request, int, bool, bool]] = []  # complete batch: tokens, whether it samples, decodes

    @property
    def now_s(self) -> float:
        """Start in seconds."""
        return self.now / 1e9

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return self.core.blocks.num_free

    @property
    def budget(self) -> int:
        """Tokens left."""
        return self.limits.max_num_batched_tokens - sum(self.charged.values())

    @property
    def num_residents(self) -> int:
        """Residents before this step without its victims, and those that it admitted."""
        newcomers = [r for r in self.batch if r not in self.held]
        return len(newcomers) + sum(r not in self.preempted for r in self.held)

    @property
    def num_decodes(self) -> int:
        """Decodes in the batch."""
        return sum(decodes for _, _, _, decodes in self.rows)

    @property
    def num_prefill_tokens(self) -> int:
        """The batch's other tokens."""
        return sum(chunk for _, chunk, _, decodes in self.rows if not decodes)

    @property
    def evictable(self) -> list[Request]:
        """Residents without the batch and the asker."""
        return [r for r in self.running if r.is_resident and not r.num_scheduled and r is not self.asker]

    def num_cached(self, request: Request) -> int:
        """Tokens of the prefix hit."""
        return request.num_cached if request.is_resident else len(self.core.blocks.lookup(request)) * self.block_size

    def blocks_needed(self, request: Request, num_tokens: int) -> int:
        """Free blocks it takes to hold so many tokens."""
        return self.core.blocks.needed(request, num_tokens)

    def predict_s(self, request: Request | None = None, num_tokens: int = 0) -> float:
        """No backend, no estimate."""
        raise BackendError("the reference has no backend, so step.predict_s() cannot answer")
