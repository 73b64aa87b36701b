"""The numbers that bound a step and an engine."""

from __future__ import annotations

from dataclasses import dataclass, fields

from batchwright.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that the core keeps, whatever the policy decides.

    Attributes:
        max_num_seqs: requests in one step's batch at most.
        max_num_batched_tokens: tokens in one step at most (the token budget). Decodes are exempt where
            the policy says so (``budget_counts_decodes``).
        max_num_residents: requests that hold blocks at most; None: as many as the pool holds.
        max_model_len: prompt and output tokens of one request together; None: only the pool bounds it.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_num_residents: int | None = None
    max_model_len: int | None = None

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if value is None and f.default is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{f.name} must be a whole number of at least 1, not {value!r}")
