"""Settings of the prefix cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints

from batchwright.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """How KV blocks are shared between requests with equal prefixes.

    The defaults are nano-vLLM's; the second value of each is vLLM V1's.

    Attributes:
        enabled: whether blocks are shared at all.
        visible: when a full block can be shared: ``computed``, after the step that filled it; ``scheduled``, at once,
            also by requests of the same batch (K and V are written before they are read).
        reuse: which free block is taken next: ``oldest_freed``; or ``uncached_first``: blocks without cached content,
            the last freed first, then cached ones, the oldest freed first.
        duplicates: of blocks with equal content, which answers look-ups: the ``newest`` or the ``oldest``. When it is
            reused the others still answer.
    """

    enabled: bool = True
    visible: Literal["computed", "scheduled"] = "computed"
    reuse: Literal["oldest_freed", "uncached_first"] = "oldest_freed"
    duplicates: Literal["newest", "oldest"] = "newest"

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            choices = (True, False) if kind is bool else get_args(kind)
            if getattr(self, name) not in choices:
                raise ConfigError(f"prefix_cache.{name} must be one of {choices}, not {getattr(self, name)!r}")
