"""vLLM's KV blocks, as far as a plan asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from batchwright_backends.vllm.guest_request import Guest


class GuestPool:
    """Reads vLLM's block manager; the first group of blocks stands for all.

    Args:
        manager: vLLM's ``KVCacheManager``.
        block_size: tokens of a block.

    Attributes:
        num_blocks: blocks of the pool.
        block_size: tokens of a block.
    """

    def __init__(self, manager: Any, block_size: int) -> None:
        self._manager = manager
        self.block_size = block_size
        self.num_blocks = int(manager.block_pool.num_gpu_blocks) - 1  # its first holds nobody's tokens
        self._hits: dict[Guest, tuple[int, int]] = {}

    def new_step(self) -> None:
        """The cache may have changed."""
        self._hits.clear()

    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return int(self._manager.block_pool.get_num_free_blocks())

    def table(self, request_id: str) -> Sequence[int]:
        """Ids of the blocks that a request holds."""
        return self._manager.get_block_ids(request_id)[0]  # type: ignore[no-any-return]

    def num_hit(self, guest: Guest) -> int:
        """Tokens of a waiting request that the prefix cache holds."""
        return self._hit(guest)[0]

    def _hit(self, guest: Guest) -> tuple[int, int]:
        """Tokens that are cached, and those of their blocks that somebody holds."""
        found = self._hits.get(guest)
        if found is None:
            blocks, tokens, *_ = self._manager.get_computed_blocks(guest.theirs)
            held = sum(block.ref_cnt > 0 for block in blocks.blocks[0]) if tokens else 0
            found = self._hits[guest] = (int(tokens), held)
        return found

    def needed(self, guest: Guest, num_tokens: int) -> int:
        """Free blocks that it would take to hold so many tokens; a hit that lies free costs its block."""
        blocks = -(-num_tokens // self.block_size)
        if guest.is_resident:
            return max(0, blocks - len(self.table(guest.request_id)))
        return max(0, blocks - self._hit(guest)[1])

    def given_back(self, guest: Guest) -> int:
        """Blocks that become free when it is evicted: those that nobody else holds."""
        if guest.request_id not in self._manager.coordinator.single_type_managers[0].req_to_blocks:
            return 0
        blocks = self._manager.get_blocks(guest.request_id).blocks[0]
        return sum(block.ref_cnt == 1 for block in blocks)
