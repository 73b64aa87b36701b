"""A backend whose tokens depend on the KV cache, and a tokenizer for it.

``FakeBackend`` keeps, for every slot of its pool, a digest of the tokens up to there, as K and V of a model depend on
all tokens before. A sampled token is a function of the seed, the place in the output, and the digest at the end of the
context: whoever reads a stale, foreign or empty block gets other tokens than ``expected_tokens`` says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from batchwright import Backend, Batch, Capacity, InvalidRequestError, StepResult, TokenLogprobs, VirtualClock
from batchwright.backend import ChatPrompt

_WORD = 2**64 - 1
_EMPTY = 0x9E3779B97F4A7C15
_NAN = -1


def _digest(before: int, token: int) -> int:
    if before == _NAN:
        return _NAN
    x = (before ^ (token + 1) * 0xBF58476D1CE4E5B9) & _WORD
    return ((x ^ x >> 29) * 0x94D049BB133111EB + 1) & _WORD


def _sample(digest: int, seed: int, output_index: int, vocab_size: int) -> int:
    x = (digest + seed * 0xD6E8FEB86659FD93 + output_index * 0xA0761D6478BD642F) & _WORD
    return (((x ^ x >> 32) * 0xD6E8FEB86659FD93 & _WORD) >> 33) % vocab_size


def expected_tokens(prompt: Sequence[int], seed: int, num_tokens: int, vocab_size: int = 1000) -> list[int]:
    """What ``FakeBackend`` samples for a request when nothing is wrong with its blocks."""
    digest = _EMPTY
    for token in prompt:
        digest = _digest(digest, token)
    output: list[int] = []
    for index in range(num_tokens):
        output.append(_sample(digest, seed, index, vocab_size))
        digest = _digest(digest, output[-1])
    return output


def expected_logprobs(token: int, output_index: int, num_top: int) -> TokenLogprobs:
    """What ``FakeBackend`` gives with a token: no two tokens or places of an output have the same."""
    top = tuple((token + rank, -output_index - rank / 64) for rank in range(num_top))
    return TokenLogprobs(-output_index - token / 4096, 1 + token, top)


class HandClock:
    """A clock that a test moves, and that does not say of itself that it is virtual."""

    def __init__(self) -> None:
        self._now_ns = 0

    def now_ns(self) -> int:
        return self._now_ns

    def wait_until_ns(self, when_ns: int) -> None:
        self._now_ns = max(self._now_ns, when_ns)

    def advance_ns(self, elapsed_ns: int) -> None:
        self._now_ns += elapsed_ns


class FakeBackend(Backend):
    """Executes batches on a virtual clock; each step takes ``step_ns``.

    Args:
        script: request id to output index to the token it is made to sample.
        fail_at: numbers of executions (from 0) that raise, or what says so of a batch.
        poison: request ids whose rows are reported as failed, or what says so of a batch.
        infects: what such a row writes is no number, and so is everything computed from it.
        before: called with each batch before it is executed.
        gives_logprobs: whether requests may want log-probabilities.
        clock: in the place of a virtual one.
        lose_at: numbers of executions that write something wrong, and whose results are not there when collected.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 256,
        block_size: int = 4,
        max_model_len: int = 4096,
        vocab_size: int = 1000,
        eos_token_ids: tuple[int, ...] = (),
        tokenizer: FakeTokenizer | None = None,
        step_ns: int = 1_000_000,
        script: Mapping[str, Mapping[int, int]] | None = None,
        fail_at: Iterable[int] | Callable[[Batch], bool] = (),
        poison: Iterable[str] | Callable[[Batch], Iterable[str]] = (),
        before: Callable[[Batch], None] | None = None,
        gives_logprobs: bool = True,
        clock: VirtualClock | HandClock | None = None,
        lose_at: Iterable[int] = (),
        infects: bool = False,
    ) -> None:
        self.name = "fake"
        self.clock: VirtualClock | HandClock = clock if clock is not None else VirtualClock()
        self._lost = set(lose_at)
        self.gives_logprobs = gives_logprobs
        self.tokenizer = tokenizer
        self._capacity = Capacity(num_blocks, block_size, max_model_len, vocab_size, eos_token_ids)
        self._step_ns = step_ns
        self._script = script or {}
        self._fails = fail_at if callable(fail_at) else set(fail_at)
        self._poison = poison if callable(poison) else set(poison)
        self._before = before
        self._infects = infects
        self._kv: list[int | None] = [None] * (num_blocks * block_size)
        self.num_executed = 0
        self.num_closed = 0
        self.released: list[str] = []
        self.infected: list[str] = []  # whose rows failed by what others wrote

    def capacity(self) -> Capacity:
        return self._capacity

    def submit(self, batch: Batch) -> StepResult:
        number = self.num_executed
        self.num_executed += 1
        if self._before is not None:
            self._before(batch)
        if self._fails(batch) if callable(self._fails) else number in self._fails:
            raise RuntimeError(f"execution {number} broke")
        poison = set(self._poison(batch)) if callable(self._poison) else self._poison
        ends = self._compute(batch, poison, _EMPTY + number if number in self._lost else _EMPTY)
        sampling = batch.sampling
        rows = [(i, d) for i, (d, s) in enumerate(zip(ends, batch.samples.tolist(), strict=True)) if s]
        tokens = []
        for (row, digest), seed, index in zip(
            rows, sampling.seed.tolist(), sampling.output_index.tolist(), strict=True
        ):
            scripted = self._script.get(batch.request_ids[row], {}).get(index)
            token = _sample(digest, seed, index, self._capacity.vocab_size)
            tokens.append(scripted if scripted is not None else token)
        broken = [i for i, digest in zip(batch.request_ids, ends, strict=True) if digest == _NAN or i in poison]
        self.infected += [i for i in broken if i not in poison]
        failed = dict.fromkeys(broken, "logits are not finite")
        return StepResult(tokens, self._step_ns, failed, self._logprobs(batch, tokens))

    @staticmethod
    def _logprobs(batch: Batch, tokens: Sequence[int]) -> list[TokenLogprobs | None] | None:
        wanted, indices = batch.sampling.logprobs.tolist(), batch.sampling.output_index.tolist()
        if max(wanted, default=-1) < 0:
            return None
        rows = zip(tokens, indices, wanted, strict=True)
        return [expected_logprobs(*row) if row[2] >= 0 else None for row in rows]

    def _compute(self, batch: Batch, poison: Collection[str], empty: int) -> list[int]:
        """Write what each row computes; the digest at the end of each row's context."""
        slots, tokens = batch.slots.tolist(), batch.token_ids.tolist()
        tables, computed = batch.block_tables.tolist(), batch.num_computed.tolist()
        size = self._capacity.block_size
        assert len(set(slots)) == len(slots), "two tokens of a batch are written to one slot"
        ends = []
        for row, (start, end) in enumerate(pairwise(batch.query_starts.tolist())):
            digest: int | None = empty
            if computed[row]:
                last = computed[row] - 1
                digest = self._kv[tables[row][last // size] * size + last % size]
                assert digest is not None, f"{batch.request_ids[row]} attends to a slot that was never written"
                digest ^= empty ^ _EMPTY if digest != _NAN else 0
            if batch.request_ids[row] in poison and self._infects:
                digest = _NAN
            for place in range(start, end):
                digest = _digest(digest, tokens[place])
                self._kv[slots[place]] = digest
            ends.append(digest)
        return ends

    def collect(self, handle: StepResult) -> StepResult:
        number = self.num_executed - 1
        if number in self._lost:
            raise RuntimeError(f"the results of execution {number} are lost")
        self.clock.advance_ns(handle.elapsed_ns)
        return handle

    def predict_s(self, batch: Batch) -> float:
        return self._step_ns / 1e9

    def release(self, request_ids: Sequence[str]) -> None:
        self.released += request_ids

    def close(self) -> None:
        self.num_closed += 1


class BlindBackend(FakeBackend):
    """One without a cost estimate."""

    predict_s = Backend.predict_s


class FakeTokenizer:
    """One character a token: ids are code points. Id 0 is special and shows no text; ids from 900 are two characters.

    ``held`` characters are kept back by a decoder until the next token, as real ones do with incomplete bytes.
    """

    def __init__(self, held: str = "") -> None:
        self._held = held

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(_characters(t) for t in token_ids)

    def decoder(self) -> FakeDecoder:
        return FakeDecoder(self._held)


class FakeChatTokenizer(FakeTokenizer):
    """Writes ``<role:content>``, and what it was told besides; it knows the roles system, user and assistant."""

    def __init__(self) -> None:
        super().__init__()
        self.options: list[dict[str, Any]] = []

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> ChatPrompt:
        self.options.append(options)
        for message in messages:
            if message["role"] not in ("system", "user", "assistant"):
                raise InvalidRequestError(f"the chat template does not take these messages: no {message['role']}")
        text = "".join(f"<{m['role']}:{m['content']}>" for m in messages)
        return ChatPrompt(text, [*self.encode(text), 7])


class FakeDecoder:
    def __init__(self, held: str) -> None:
        self._hold = held
        self._kept = ""

    def push(self, token_ids: Sequence[int]) -> str:
        text = self._kept + "".join(_characters(t) for t in token_ids)
        self._kept = text[-1] if text and text[-1] in self._hold else ""
        return text[: len(text) - len(self._kept)]

    def finish(self) -> str:
        kept, self._kept = self._kept, ""
        return kept


def _characters(token: int) -> str:
    if token == 0:
        return ""
    return chr(token - 900 + ord("a")) * 2 if token >= 900 else chr(token)


def say(text: str) -> dict[int, int]:
    """A script that makes a request sample the tokens of a text."""
    return dict(enumerate(FakeTokenizer().encode(text)))
