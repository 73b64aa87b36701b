"""vLLM's KV blocks, as far as a plan asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from batchwright_backends.vllm.guest_request import Guest

_MANY = 8
"""Waiting requests whose prefix was looked up in one step, above which it is not watched whether they find more."""


class GuestPool:
    """Reads vLLM's block manager; the first group of blocks stands for all.

    Args:
        manager: vLLM's ``KVCacheManager``.
        block_size: tokens of a block.
        hash_block_size: tokens for which a prefix is known.
        num_groups: groups of KV blocks that the model needs.

    Attributes:
        num_blocks: blocks of the pool.
        block_size: tokens of a block.
        num_spare: blocks that vLLM keeps free of newcomers while somebody runs (its watermark).
        num_groups: a request that grows takes as many blocks at most.
    """

    def __init__(self, manager: Any, block_size: int, hash_block_size: int, num_groups: int) -> None:
        self._manager = manager
        self.block_size = block_size
        self.num_groups = num_groups
        self.num_blocks = int(manager.block_pool.num_gpu_blocks) - 1  # its first holds nobody's tokens
        self.num_spare = int(manager.watermark_blocks)
        self._hashes_whole_blocks = hash_block_size == block_size
        self._hits: dict[Guest, tuple[int, Sequence[Any]]] = {}
        self._watched = self._hits  # of the last step that was planned
        # What the plan of this step changes: blocks that somebody will hold, and content that can be shared at once.
        self._adopted: set[int] = set()
        self._coming: set[Any] = set()

    def new_step(self) -> None:
        """The cache may have changed."""
        self._hits = {}
        self._adopted.clear()
        self._coming.clear()

    def watch(self) -> None:
        """The step is planned: see whether those who were looked up for it find more later on."""
        self._watched = self._hits

    def take(self, guest: Guest, num_tokens: int) -> None:
        """The plan has it compute up to so many tokens: full blocks are shared as soon as they are scheduled."""
        full = num_tokens // self.block_size
        done = guest.num_computed
        if not guest.is_resident:
            done, blocks = self._found(guest)
            self._adopted.update(block.block_id for block in blocks)
        if self._hashes_whole_blocks:
            self._coming.update(guest.theirs.block_hashes[done // self.block_size : full])

    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return int(self._manager.block_pool.get_num_free_blocks())

    def table(self, request_id: str) -> Sequence[int]:
        """Ids of the blocks that a request holds."""
        return self._manager.get_block_ids(request_id)[0]  # type: ignore[no-any-return]

    def num_hit(self, guest: Guest) -> int:
        """Tokens of a waiting request that the prefix cache holds, or will when the plan so far is scheduled."""
        return self._found(guest)[0] + self._num_coming(guest) * self.block_size

    def may_find_more(self, decodes: Iterable[Guest]) -> bool:
        """Whether one of those who were looked up in the last step that was planned may hit more blocks in this one.

        Args:
            decodes: who runs in it, a token each; vLLM shares a block in the step that fills it.
        """
        hits = self._watched
        if not hits:
            return False
        if len(hits) > _MANY or not self._hashes_whole_blocks or self.num_groups > 1:
            return True
        cached, size = self._manager.block_pool.get_cached_block, self.block_size
        wanted = set()
        for guest, (tokens, _) in hits.items():
            place, hashes = tokens // size, guest.theirs.block_hashes
            if place < min(len(hashes), (guest.num_tokens - 1) // size):
                wanted.add(hashes[place])
        if any(cached(content, [0]) is not None for content in wanted):
            return True
        full = [g.theirs for g in decodes if g.theirs.num_computed_tokens % size == size - 1] if wanted else ()
        return any(not wanted.isdisjoint(one.block_hashes[one.num_computed_tokens // size :]) for one in full)

    def _found(self, guest: Guest) -> tuple[int, Sequence[Any]]:
        """Tokens that are cached now, and their blocks."""
        found = self._hits.get(guest)
        if found is None:
            blocks, tokens, *_ = self._manager.get_computed_blocks(guest.theirs)
            found = self._hits[guest] = (int(tokens), blocks.blocks[0] if tokens else ())
        return found

    def _num_coming(self, guest: Guest) -> int:
        """Further blocks of its prefix that others are to fill in this step."""
        if not self._coming:
            return 0
        first, most = self._found(guest)[0] // self.block_size, (guest.num_tokens - 1) // self.block_size
        num = 0
        for content in guest.theirs.block_hashes[first:most]:
            if content not in self._coming:
                break
            num += 1
        return num

    def needed(self, guest: Guest, num_tokens: int) -> int:
        """Free blocks that it would take to hold so many tokens; a hit that lies free costs its block."""
        blocks = -(-num_tokens // self.block_size)
        if guest.is_resident:
            return max(0, blocks - len(self.table(guest.request_id)))
        held = sum(1 for block in self._found(guest)[1] if block.ref_cnt > 0 or block.block_id in self._adopted)
        return max(0, blocks - held - self._num_coming(guest))

    def given_back(self, guest: Guest) -> int:
        """Blocks that become free when it is evicted: those that nobody else holds."""
        if guest.request_id not in self._manager.coordinator.single_type_managers[0].req_to_blocks:
            return 0
        blocks = self._manager.get_blocks(guest.request_id).blocks[0]
        return sum(1 for block in blocks if block.ref_cnt == 1)
