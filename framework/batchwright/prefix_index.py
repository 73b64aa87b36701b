"""Which KV blocks hold which content: the index behind the prefix cache.

A full block is identified by the hash of its tokens chained with the hash of the block before it, so equal hashes mean
equal prefixes; a hit is confirmed on the tokens themselves. Each full block of a request is hashed once at most, and
the hash kept with the request, through preemptions too.

A look-up seldom hashes at all. Each block remembers the run of blocks of the request that registered it, so a prompt
that was seen before is found by its first block; the others of the run are confirmed together, on tokens and chained
hashes. Only the first block, and those where prompts part, are hashed and looked for.
"""

from __future__ import annotations

import struct
from array import array

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from batchwright.prefix_cache import PrefixCache
from batchwright.request import Request

_LOG_LIMIT = 8192
_TOKEN_BYTES = array("i").itemsize
_STRIDE = 256
"""Blocks of a run that are confirmed together, at first: few enough to part early, many enough to be fast."""
UNSHARED = 2**62
"""Number of registered blocks of a request whose hash collided: more than it can have, so it registers no more."""


class PrefixIndex:
    """Content of the blocks of a pool, and the look-up of prefixes in it.

    Attributes:
        registered: per block, 1 where its content is known and can be shared.
    """

    def __init__(self, num_blocks: int, block_size: int, cache: PrefixCache) -> None:
        self._size = block_size
        self._newest = cache.duplicates == "newest"
        self._split = struct.Struct(f"{block_size * _TOKEN_BYTES}s").iter_unpack
        self.registered = bytearray(num_blocks)
        self._answers = bytearray(num_blocks)  # 1: this block answers look-ups of its content
        self._hash_of = array("Q", bytes(8 * num_blocks))
        self._prefix_of = array("Q", bytes(8 * num_blocks))  # hash of what comes before the block; 0: nothing
        self._run_of: list[array[int]] = [array("i")] * num_blocks  # hints; what they say is confirmed where it is used
        self._tokens = np.zeros((num_blocks, block_size), dtype=np.int32)  # pages that are never touched take no memory
        self._bytes = self._tokens.reshape(-1).view(np.uint8).data
        # The same memory, for many blocks at once.
        self._all_answers: NDArray[np.uint8] = np.frombuffer(self._answers, dtype=np.uint8)
        self._all_hashes: NDArray[np.uint64] = np.frombuffer(self._hash_of, dtype=np.uint64)
        self._all_prefixes: NDArray[np.uint64] = np.frombuffer(self._prefix_of, dtype=np.uint64)
        self._answering: dict[int, int] = {}  # hash -> the block that answers look-ups
        self._others: dict[int, dict[int, None]] = {}  # hash -> further blocks with that content, oldest first
        # What changed since a look-up: hashes added (a count), and hashes whose answering block went or changed
        # (a log; position 0 of the list is number _log_start). A waiting request looks at the changes, not again at
        # its whole prompt.
        self._num_added = 0
        self._log: list[int] = []
        self._log_start = 0

    def lookup(self, request: Request) -> array[int]:
        """The cached blocks of a waiting request's longest prefix, at most ``(num_tokens - 1) // block_size``.

        The last token is never taken from the cache: something must be computed to sample from. The array belongs
        to the core. What did not change since the last look-up is not looked up again.
        """
        now = self._log_start + len(self._log)
        hits = request._hits
        known: set[int] | None = None
        if request._hit_key is not None:
            position, added, known = request._hit_key
            stale = False
            if hits and position != now:
                if known is None:
                    known = set(request._hashes[: len(hits)])
                since = position - self._log_start
                stale = since < 0 or not known.isdisjoint(self._log[since:])
            if stale:
                hits = request._hits = array("i")
                known = None
            elif added == self._num_added:
                request._hit_key = (now, added, known)
                return hits
        self._extend(request, hits)
        if known is not None:
            known.update(request._hashes[: len(hits)])
        request._hit_key = (now, self._num_added, known)
        return hits

    def _extend(self, request: Request, hits: array[int]) -> None:
        """Look up the blocks behind the hits known so far, up to the first miss."""
        last = (request.num_tokens - 1) // self._size
        width = _STRIDE
        while len(hits) < last:
            if hits:
                upto = min(len(hits) + width, last)
                hits += self._follow(request, hits, upto)
                width *= 4
                if len(hits) == upto:
                    continue
            block = self._find(request, len(hits))
            if block is None:
                return
            hits.append(block)

    def _follow(self, request: Request, hits: array[int], upto: int) -> array[int]:
        """Blocks behind the last hit, to be ``upto`` blocks in all at most, as far as its run goes and is true."""
        first, size = len(hits), self._size
        run = self._run_of[hits[-1]][first:upto]
        n = len(run)
        if not n:
            return run
        index = np.frombuffer(run, dtype=np.int32)
        tokens = request._tokens[first * size : (first + n) * size].tobytes()
        hashes = self._all_hashes.take(index)
        prefixes = np.empty_like(hashes)
        prefixes[0], prefixes[1:] = self._hash_of[hits[-1]], hashes[:-1]
        theirs = self._tokens.take(index, axis=0)
        if (
            theirs.tobytes() != tokens
            or self._all_prefixes.take(index).tobytes() != prefixes.tobytes()
            or not self._all_answers.take(index).all()
        ):
            true = (theirs == np.frombuffer(tokens, dtype=np.int32).reshape(n, size)).all(axis=1)
            true &= (self._all_prefixes[index] == prefixes) & (self._all_answers[index] != 0)
            n = int(true.argmin())
        missing = first + n - len(request._hashes)
        if missing > 0:
            request._hashes += hashes[n - missing : n].tolist()
        return run[:n]

    def _find(self, request: Request, index: int) -> int | None:
        """The block that answers for a request's block of that index; the ones before it are hits."""
        size, hashes = self._size, request._hashes
        tokens = request._tokens[index * size : (index + 1) * size].tobytes()
        prefix = hashes[index - 1] if index else 0
        if len(hashes) == index:
            hashes.append(xxh3_64_intdigest(tokens, prefix))
        block = self._answering.get(hashes[index])
        # Equal hashes may lie: the tokens, and the prefix before them, must be the same.
        return block if block is not None and self._holds(block, tokens, prefix) else None

    def _holds(self, block: int, tokens: bytes, prefix: int) -> bool:
        width = len(tokens)
        return self._prefix_of[block] == prefix and self._bytes[block * width : (block + 1) * width] == tokens

    def register(self, request: Request, num_tokens: int) -> list[int]:
        """Make the full blocks among a resident's first ``num_tokens`` tokens answer look-ups; returns the new ones."""
        size, hashes = self._size, request._hashes
        first, last = request._num_registered, num_tokens // size
        if first >= last:
            return []
        request._num_registered = last
        tokens = request._tokens[first * size : last * size].tobytes()
        prefix = hashes[first - 1] if first else 0
        if last - first == 1:  # a decode that filled its block: the one case that runs in every step
            if len(hashes) == first:
                hashes.append(xxh3_64_intdigest(tokens, prefix))
            parts: list[tuple[bytes]] = [(tokens,)]
        else:
            known = len(hashes) - first
            parts = list(self._split(tokens))
            digest = hashes[-1] if hashes else 0
            hashes += [digest := xxh3_64_intdigest(part, digest) for (part,) in parts[known:]]
        new = request.block_table[first:last]
        run = request._run
        if len(run) < first:  # it adopted hits
            run = request._run = array("i", request.block_table[:first])
        run[first:] = array("i", new)
        for place, (mine,) in enumerate(parts):
            block, digest = new[place], hashes[first + place]
            if not self._enter(block, digest, prefix, mine):
                request._num_registered = UNSHARED
                return new[:place]
            self._run_of[block] = run
            prefix = digest
        return new

    def _enter(self, block: int, digest: int, prefix: int, tokens: bytes) -> bool:
        """Make a block answer look-ups, or stand behind the one that does."""
        answering = self._answering.setdefault(digest, block)
        if answering == block:
            self._num_added += 1
            self._answers[block] = 1
        elif not self._holds(answering, tokens, prefix):
            return False  # another prefix has this hash and keeps it: neither this block nor what follows is shared
        elif self._newest:
            self._others.setdefault(digest, {})[answering] = None
            self._answer(digest, answering, block)
        else:
            self._others.setdefault(digest, {})[block] = None
        self.registered[block] = 1
        self._hash_of[block] = digest
        self._prefix_of[block] = prefix
        width = len(tokens)
        self._bytes[block * width : (block + 1) * width] = tokens
        return True

    def unregister(self, block: int) -> None:
        """Forget the cached content of a block; another block with that content answers from now on."""
        if not self.registered[block]:
            return
        self.registered[block] = 0
        digest = self._hash_of[block]
        others = self._others.get(digest)
        if not self._answers[block]:
            assert others is not None
            del others[block]
        elif others:
            heir = next(reversed(others)) if self._newest else next(iter(others))
            del others[heir]
            self._answer(digest, block, heir)
        else:
            self._answers[block] = 0
            del self._answering[digest]
            self._changed(digest)
        if others is not None and not others:
            del self._others[digest]

    def _answer(self, digest: int, old: int, new: int) -> None:
        """Another block answers for this content from now on."""
        self._answers[old] = 0
        self._answers[new] = 1
        self._answering[digest] = new
        self._changed(digest)

    def _changed(self, digest: int) -> None:
        log = self._log
        log.append(digest)
        if len(log) > _LOG_LIMIT:
            del log[: _LOG_LIMIT // 2]
            self._log_start += _LOG_LIMIT // 2
