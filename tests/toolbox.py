"""What tests of the core share: requests, an engine on the fake backend, a tape of its steps, checks of it whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from batchwright import Engine, EngineConfig, Policy, Request, SamplingParams, Scheduler, hookimpl
from batchwright.plugins import load_plugins
from batchwright.step import Step
from fake_backend import FakeBackend, expected_tokens

SHIPPED = sorted(name for (kind, name), by in load_plugins().origin.items() if kind == "policies" and by == "policies")
"""Names of the first-party policies."""
BASIC = ["prefill_first", "stall_free", "vllm_v1"]
"""Those that tests of the core run all of; the others are tested in tests/policies."""
CHUNKING = [name for name in SHIPPED if load_plugins().policy(name).chunks]
"""Those that cut prompts, so that no prompt is too long for the budget."""
EVICTING = [name for name in SHIPPED if name not in ("no_evict", "orca", "static_batch")]
"""Those that may evict somebody; the others take all blocks at admission."""


# Requests --------------------------------------------------------------------------------------------------------


def prompt_of(request_id: str, length: int) -> list[int]:
    """Token ids that no other request id's prompt begins with."""
    start = sum(ord(c) * 31**i for i, c in enumerate(request_id)) * 7919
    return [(start + i * (i + 13)) % 997 for i in range(length)]


def make_request(
    request_id: str, prompt: int | Sequence[int], max_tokens: int, *, ignore_eos: bool = True, **fields: Any
) -> Request:
    """A request with a prompt of its own, or with given token ids; its seed is a function of its id."""
    tokens = prompt_of(request_id, prompt) if isinstance(prompt, int) else prompt
    names = ("temperature", "stop", "stop_token_ids", "seed", "logprobs")
    sampling = {n: fields.pop(n) for n in names if n in fields}
    sampling.setdefault("seed", len(request_id) + sum(map(ord, request_id)))
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos, **sampling)
    return Request(request_id, tokens, params, **fields)


def expected_of(request: Request, vocab_size: int = 1000) -> list[int]:
    """What a request must have brought by now, wherever and however it ran."""
    return expected_tokens(request.prompt_token_ids[:], request._seed, request.num_output_tokens, vocab_size)


# Driving -----------------------------------------------------------------------------------------------------------


@dataclass
class StepTape:
    """One step as it was executed; ``batch`` pairs ids with tokens."""

    index: int
    batch: list[tuple[str, int]]
    preempted: list[str]
    sampled: list[str]
    finished: list[str]
    num_prefill_tokens: int
    num_decodes: int
    waiting: list[str]
    running: list[str]
    free_blocks: int
    events: list[dict[str, Any]]
    cached: dict[str, int]


@dataclass
class Tape:
    """An observer that writes down every step, and what becomes of requests."""

    name: str = "tape"
    steps: list[StepTape] = field(default_factory=list)
    admitted: list[tuple[int, str]] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)

    @hookimpl
    def request_arrived(self, request: Request) -> None:
        if self.requests.get(request.request_id) is request:  # its last token was lost, and it is taken again
            del self.reasons[request.request_id]
        self.requests[request.request_id] = request

    @hookimpl
    def request_admitted(self, step: Step, request: Request) -> None:
        self.admitted.append((step.index, request.request_id))

    @hookimpl
    def request_finished(self, request: Request, reason: str) -> None:
        assert request.request_id not in self.reasons, f"{request.request_id} finished twice"
        self.reasons[request.request_id] = reason

    @hookimpl(trylast=True)
    def step_finished(self, step: Step) -> None:
        self.steps.append(
            StepTape(
                index=step.index,
                batch=[(r.request_id, r.num_scheduled) for r in step.batch],
                preempted=[r.request_id for r in step.preempted],
                sampled=[r.request_id for r in step.sampled],
                finished=[r.request_id for r in step.finished],
                num_prefill_tokens=step.num_prefill_tokens,
                num_decodes=step.num_decodes,
                waiting=[r.request_id for r in step.waiting],
                running=[r.request_id for r in step.running],
                free_blocks=step.free_blocks,
                events=list(step.events),
                cached={r.request_id: r.num_cached for r in step.batch},
            )
        )

    def token_steps(self, request_id: str) -> list[int]:
        """Steps at which a request got its tokens."""
        return [s.index for s in self.steps if request_id in s.sampled]

    def preemptions(self) -> list[tuple[int, str]]:
        """Step and victim of each eviction, in order."""
        return [(s.index, victim) for s in self.steps for victim in s.preempted]

    def finish_steps(self) -> dict[str, int]:
        """Step at which each request ended."""
        return {request_id: s.index for s in self.steps for request_id in s.finished}

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens computed that are not decodes."""
        return sum(s.num_prefill_tokens for s in self.steps)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """All events of a kind."""
        return [e for s in self.steps for e in s.events if e["kind"] == kind]


def make_engine(
    policy: Policy | str | Mapping[str, Any] = "prefill_first",
    *,
    backend: FakeBackend | None = None,
    bs: int = 4,
    P: int = 256,  # noqa: N803 - the scenarios' names
    T: int = 64,  # noqa: N803
    S: int = 64,  # noqa: N803
    plugins: Sequence[object] = (),
    settings: Mapping[str, Any] | None = None,
    **config: Any,
) -> tuple[Engine, Tape]:
    """An engine in the notation of the scenarios, with a tape.

    Args:
        backend: the fake one; else one of ``P`` blocks of ``bs`` tokens.
        settings: arguments of that fake backend.
        config: further fields of ``EngineConfig``.
    """
    tape = Tape()
    backend = backend if backend is not None else FakeBackend(num_blocks=P, block_size=bs, **(settings or {}))
    values: dict[str, Any] = {"max_num_seqs": S, "max_num_batched_tokens": T, **config}
    given = policy if isinstance(policy, Policy) else None
    if given is None:
        values["policy"] = policy
    engine = Engine(EngineConfig.parse(values), backend=backend, policy=given, plugins=[*plugins, tape])
    return engine, tape


def play(
    engine: Engine,
    arrivals: Mapping[int, Sequence[Request]] | Sequence[Request],
    *,
    max_steps: int = 5000,
    between: Callable[[int], None] | None = None,
) -> int:
    """Run to the end; a mapping says at which step each request arrives. Checks the engine after every step.

    Returns:
        How many steps it took, idle ones counted.
    """
    when = dict(arrivals) if isinstance(arrivals, Mapping) else {0: list(arrivals)}
    number = 0
    while when or engine.has_unfinished():
        for request in when.pop(number, ()):
            engine.add_request(request)
        if between is not None:
            between(number)
        engine.advance()
        check_whole(engine.scheduler)
        number += 1
        assert number <= max_steps, f"not done after {max_steps} steps: {engine.scheduler.running!r}"
    check_empty(engine.scheduler)
    return number


def check_whole(scheduler: Scheduler) -> None:
    """Every block is held or free, never both; queues and states agree; cached content is what it says."""
    blocks, state = scheduler.blocks, scheduler._state
    held = Counter(b for r in state.residents for b in r.block_table)
    for request in state.residents:
        assert len(set(request.block_table)) == len(request.block_table), f"{request} holds a block twice"
        assert request.is_resident and request.num_computed <= request._room, request
        assert request._room == len(request.block_table) * blocks.block_size, request
        assert request.num_scheduled == 0 or scheduler._batch is not None, request
        assert request.is_prefilling == (request in state.prefilling), request
    assert [held[b] for b in range(blocks.num_blocks)] == blocks.references
    free = list(blocks.free)
    assert len(set(free)) == len(free) == blocks.num_free, "a block is in the free list twice"
    assert set(free) == set(range(blocks.num_blocks)) - set(held), "a block leaked"
    for request in state.queue:
        assert request.is_waiting and not request.block_table and not request.num_computed, request
        assert not request.num_scheduled and not request.is_prefilling, request
    assert set(state.requests.values()) == set(state.queue) | set(state.residents)
    assert set(state.prefilling) <= set(state.residents)
    assert not set(state.queue) & set(state.residents)
    assert len(state.residents) <= (scheduler.limits.max_num_residents or len(state.residents))
    check_cache(scheduler)


def check_cache(scheduler: Scheduler) -> None:
    """The index of cached content is consistent (that content is what it says, the fake backend's tokens show)."""
    blocks = scheduler.blocks
    indexed = Counter(blocks.index._answering.values())
    for digest, others in blocks.index._others.items():
        assert others and digest in blocks.index._answering
        indexed.update(list(others))
    assert all(n == 1 for n in indexed.values())
    assert [b for b in range(blocks.num_blocks) if blocks.index.registered[b]] == sorted(indexed)
    assert all(blocks.index.hash_of(block) == digest for digest, block in blocks.index._answering.items())


def check_empty(scheduler: Scheduler) -> None:
    """Nobody is left, and nothing is held."""
    check_whole(scheduler)
    assert not scheduler.has_unfinished() and not scheduler.waiting and not scheduler.running
    assert scheduler.blocks.num_free == scheduler.blocks.num_blocks
    assert not scheduler._state.num_stop_checks and not scheduler._state.num_logprobs


def drain(engine: Engine, max_steps: int = 5000) -> None:
    """Step until nobody is left."""
    for _ in range(max_steps):
        if not engine.has_unfinished():
            return
        engine.step()
        check_whole(engine.scheduler)
    raise AssertionError(f"not done after {max_steps} steps")
