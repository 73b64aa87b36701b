"""Generated workloads: small ones that meet many states in few steps, each a function of a seed and a number."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from batchwright.request import SLO, Request
from batchwright.sampling_params import SamplingParams

_FAMILY, _OWN, _OUTPUT = 10_000, 1_000_000, 500_000_000
"""Where token ids of shared prefixes, of prompts and of outputs begin: an output equals no prompt by accident."""
_CLIENTS = ("kit-a", "kit-b", "kit-c")


class Id(str):
    """A string that hashes by a salt, so that an order that comes from hashes changes with it; 0: as any string."""

    __slots__ = ("salt",)
    salt: int

    @classmethod
    def of(cls, text: str, salt: int) -> Id:
        """A string under a salt."""
        made = cls(text)
        made.salt = salt
        return made

    def __hash__(self) -> int:
        return zlib.crc32(f"{self.salt} {self}".encode()) if self.salt else str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) if isinstance(other, str) else NotImplemented

    def __deepcopy__(self, memo: object) -> Id:
        return self


class KitRequest(Request):
    """A request that can be watched after it ended."""

    __slots__ = ("__weakref__",)


@dataclass(frozen=True)
class Spec:
    """A request to come.

    Attributes:
        number: its place in the workload.
        arrives: at which step, or after which the next step if nobody is there.
        prompt: token ids.
        max_tokens: as declared.
        hidden: how long it really runs; None: to max_tokens.
    """

    number: int
    arrives: int
    prompt: tuple[int, ...]
    max_tokens: int
    hidden: int | None = None
    priority: int = 0
    client: str = "kit-a"
    deadline_s: float | None = None
    predicted: int | None = None

    @property
    def peak(self) -> int:
        """Most tokens that it ever has K and V of."""
        return len(self.prompt) + self.max_tokens - 1

    def make(self, now_ns: int, salt: int, kind: type[Request] = KitRequest) -> Request:
        """The request, arriving now."""
        return kind(
            Id.of(f"r{self.number}", salt),
            self.prompt,
            SamplingParams(max_tokens=self.max_tokens, ignore_eos=True),
            arrival_ns=now_ns,
            priority=self.priority,
            client_id=Id.of(self.client, salt),
            weight=2.0 if self.client == "kit-a" else 1.0,
            deadline_s=None if self.deadline_s is None else now_ns / 1e9 + self.deadline_s,
            slo=SLO(ttft_s=0.1, tpot_s=0.01) if self.number % 3 == 0 else None,
            predicted_output_tokens=self.predicted,
            session_id=Id.of(f"kit-s{self.number % 4}", salt),
            program_id=Id.of(f"kit-p{self.number % 2}", salt),
        )

    def token(self, place: int) -> int:
        """The token that a backend samples at this place of the output."""
        return _OUTPUT + self.number * 10_000 + place


@dataclass(frozen=True)
class Scenario:
    """A workload and the limits that it runs under.

    Attributes:
        name: for reports.
        seed: of the engine.
        specs: in order of arrival.
        max_num_residents: None: what the policy wants, else no bound.
    """

    name: str
    seed: int
    specs: tuple[Spec, ...]
    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_residents: int | None = None
    prefix_cache: dict[str, str] = field(default_factory=dict)

    @property
    def most_steps(self) -> int:
        """Far more steps than a policy that goes on can take: a token a step, twice."""
        return 2 * sum(len(s.prompt) + s.max_tokens for s in self.specs) + 200

    def renamed(self, name: str) -> Scenario:
        """The same under another name."""
        return replace(self, name=name)

    def with_hidden(self, lengths: list[int]) -> Scenario:
        """The same workload, whose requests really run so long."""
        specs = tuple(replace(s, hidden=n) for s, n in zip(self.specs, lengths, strict=True))
        return replace(self, specs=specs)


def roomy(seed: int, number: int, chunks: bool) -> Scenario:
    """Blocks for all at once: requests wait for tokens of the budget, places in the batch and seats only."""
    rng = random.Random(f"roomy {seed} {number}")
    specs = tuple(_specs(rng, rng.randint(6, 14), longest_prompt=24, longest_output=14))
    return _scenario(rng, f"roomy-{number}", seed, specs, chunks, tight=None)


def tight(seed: int, number: int, chunks: bool) -> Scenario:
    """Hardly more blocks than the longest request needs: decodes run out of them, and somebody must go."""
    rng = random.Random(f"tight {seed} {number}")
    specs = tuple(_specs(rng, rng.randint(6, 9), longest_prompt=12, longest_output=20))
    return _scenario(rng, f"tight-{number}", seed, specs, chunks, tight=(1.0, 1.5, 1.8)[number % 3])


def steady(seed: int, number: int, chunks: bool) -> Scenario:
    """Few requests, all there from the start, which decode for long while others wait for a seat."""
    rng = random.Random(f"steady {seed} {number}")
    specs = tuple(
        replace(s, arrives=0, max_tokens=rng.randint(12, 40), hidden=None) for s in _specs(rng, 7, 10, longest_output=2)
    )
    scenario = _scenario(rng, f"steady-{number}", seed, specs, chunks, tight=None)
    return replace(scenario, max_num_residents=(3, 5, 4)[number % 3], max_num_seqs=(8, 3, 2)[number % 3])


def busy(seed: int, number: int, chunks: bool) -> Scenario:
    """All there from the start, soon done, few seats: in every step somebody comes, goes and waits."""
    rng = random.Random(f"busy {seed} {number}")
    specs = tuple(replace(s, arrives=0, hidden=None) for s in _specs(rng, 16, longest_prompt=9, longest_output=4))
    return replace(_scenario(rng, f"busy-{number}", seed, specs, chunks, tight=None), max_num_residents=3 + number % 2)


def secret(seed: int, number: int, chunks: bool) -> tuple[Scenario, Scenario]:
    """Two workloads with equal declared lengths, in which requests really run otherwise; few have a seat."""
    rng = random.Random(f"secret {seed} {number}")
    specs = tuple(
        replace(s, arrives=min(s.arrives, 4), max_tokens=30, predicted=12)
        for s in _specs(rng, 10, longest_prompt=12, longest_output=1)
    )
    scenario = _scenario(rng, f"secret-{number}", seed, specs, chunks, tight=None)
    if number % 2:
        scenario = replace(scenario, max_num_residents=3)
    else:
        scenario = replace(scenario, num_blocks=sum(-(-s.peak // scenario.block_size) for s in specs) // 3)
    one, other = ([rng.randint(5, 30) for _ in specs] for _ in range(2))
    return scenario.with_hidden(one), scenario.with_hidden(other)


def waves(seed: int, num_requests: int) -> Scenario:
    """Many tiny requests, a few at a time."""
    specs = [
        Spec(n, n // 12, (_OWN + n,) * (1 + n % 3), 1 + n % 2, client=_CLIENTS[n % 3]) for n in range(num_requests)
    ]
    return Scenario("waves", seed, tuple(specs), 64, 4, 16, 64)


def crowd(seed: int, num_waiting: int, chunks: bool) -> Scenario:
    """So many wait from the start; a few run, end, and make room for the next."""
    rng = random.Random(f"crowd {seed}")
    specs = []
    for n in range(num_waiting):
        prompt = tuple(_OWN + n * 8 + i for i in range(rng.randint(1, 6)))
        specs.append(Spec(n, 0, prompt, rng.randint(2, 6), priority=n % 3, client=_CLIENTS[n % 3], predicted=n % 7))
    budget = 16 if chunks else 32
    return Scenario(f"crowd-{num_waiting}", seed, tuple(specs), 16, 2, 8, budget, max_num_residents=6)


def _specs(rng: random.Random, number: int, longest_prompt: int, longest_output: int) -> Iterator[Spec]:
    arrives = 0
    for n in range(number):
        shared = rng.choice((0, 0, 4, 8))
        family = rng.randrange(2)
        prompt = [_FAMILY * (1 + family) + i for i in range(shared)]
        prompt += [_OWN + n * 1000 + i for i in range(rng.randint(1, longest_prompt - shared))]
        max_tokens = rng.randint(1, longest_output)
        yield Spec(
            n,
            arrives,
            tuple(prompt),
            max_tokens,
            hidden=rng.choice((None, rng.randint(1, max_tokens))),
            priority=rng.randrange(3),
            client=rng.choice(_CLIENTS),
            deadline_s=rng.choice((None, rng.uniform(0, 0.1))),
            predicted=rng.choice((None, rng.randint(1, longest_output))),
        )
        arrives += rng.choice((0, 0, 0, 1, 2, 5, 60))  # the last one leaves the engine idle, as a rule


def _scenario(
    rng: random.Random, name: str, seed: int, specs: tuple[Spec, ...], chunks: bool, tight: float | None
) -> Scenario:
    block_size = rng.choice((1, 2, 4) if tight else (1, 2, 4, 16))
    needs = [-(-s.peak // block_size) for s in specs]
    budget = rng.choice((4, 7, 16, 32, 64))
    if not chunks:  # or its requests would be refused
        budget = max(budget, *(s.peak for s in specs))
    return Scenario(
        name,
        seed,
        specs,
        num_blocks=sum(needs) if tight is None else max(2, int(max(needs) * tight)),
        block_size=block_size,
        max_num_seqs=rng.choice((2, 4, 8, 16)),
        max_num_batched_tokens=budget,
        max_num_residents=rng.choice((None, None, 2, 4, 8)),
        prefix_cache=rng.choice(({}, {}, {"visible": "scheduled", "reuse": "uncached_first", "duplicates": "oldest"})),
    )
