"""What a scheduler was made from, as far as its decisions depend on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, cast

from batchwright.limits import Limits
from batchwright.prefix_cache import PrefixCache


@dataclass(frozen=True, slots=True)
class Settings:
    """Keyword arguments of a scheduler.

    Attributes:
        num_blocks: KV blocks of the pool.
        block_size: tokens of a block.
        limits, prefix_cache: see there.
        eos_token_ids: sampled tokens that end a request unless it ignores them.
        vocab_size: of the model; None where nobody checks it.
        seed: of ``step.rng``.
        on_policy_error: what a fault of the policy does.
        fallback_policy: who then builds the step, as in a config; None: the default policy.
    """

    num_blocks: int
    block_size: int
    limits: Limits = field(default_factory=Limits)
    prefix_cache: PrefixCache = field(default_factory=PrefixCache)
    eos_token_ids: tuple[int, ...] = ()
    vocab_size: int | None = None
    seed: int = 0
    on_policy_error: Literal["raise", "fallback"] = "raise"
    fallback_policy: dict[str, Any] | None = None

    @classmethod
    def of(cls, scheduler: Any) -> Settings:
        """The settings of a scheduler that exists."""
        return cls(
            num_blocks=scheduler.blocks.num_blocks,
            block_size=scheduler.blocks.block_size,
            limits=scheduler.limits,
            prefix_cache=scheduler.blocks.cache,
            eos_token_ids=tuple(sorted(scheduler._eos)),
            vocab_size=scheduler._feasible._vocab_size,
            seed=scheduler._seed,
            on_policy_error=cast(Literal["raise", "fallback"], scheduler._on_policy_error),
            fallback_policy=scheduler._fallback.describe() if scheduler._fallback is not None else None,
        )

    def arguments(self) -> dict[str, Any]:
        """As keyword arguments."""
        return {name: getattr(self, name) for name in self.__slots__}
