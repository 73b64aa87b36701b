"""Workloads drawn from distributions, seeded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from batchwright.errors import WorkloadError
from batchwright.lab.arrival_times import STEADY, VALUES, Shape, draw_times, draw_times_in_parts, whole
from batchwright.lab.dialogues import Unit, unit_rows
from batchwright.lab.key_values import key_values
from batchwright.lab.lengths import Lengths
from batchwright.lab.links import arranged
from batchwright.lab.readers import TraceFile
from batchwright.lab.row import WorkloadRow

PREFIX = "synthetic:"
EXAMPLE = "synthetic:rate=4,n=100,prompt=lognormal(512,0.8),output=uniform(16,128),burstiness=0.5,seed=1"
_PROMPT, _OUTPUT, _ONE = Lengths("fixed", (512,)), Lengths("fixed", (128,)), Lengths("fixed", (1,))
_NO_TIME = Lengths("fixed", (0,))
_CHUNK = 4096
"""Rows that are made of arrays at a time: numbers of Python take four times as much memory."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticSpec:
    """A synthetic workload: open-loop arrivals at a mean rate, lengths from distributions.

    Gaps between arrivals are gamma distributed with shape ``burstiness``, so their coefficient of variation is
    1 / sqrt(burstiness): 1 is a Poisson process, less is burstier, more is more regular (the meaning that
    ``vllm bench serve --burstiness`` gives it). As there, arrival times are scaled so that the last falls at
    n / rate: seeds differ in pattern, not in load.

    Attributes:
        rate: arrivals a second on average; ``inf`` lets all arrive at once.
        n: number of arrivals: of requests, or with ``turns`` of sessions, with ``calls`` of programs.
        prompt: length of each prompt, without what it shares: a number, ``uniform(16,128)`` (both included),
            ``lognormal(512,0.8)`` (median and sigma; a third value cuts it), ``exponential(200)`` (mean; a second value
            cuts it) or ``zipf(1.2,4096)`` (exponent and largest).
        output: hidden true length of each output, in the same forms.
        lengths: a trace file: prompts and outputs get the lengths of its rows, drawn at random and together.
        burstiness: shape of the gamma distribution of gaps.
        shape: how the rate goes over time: ``steady``, ``constant`` (all gaps are equal), ``onoff(10,20)`` (seconds
            with arrivals and without) or ``ramp(1,3)`` (from a rate to three times that); ``rate`` stays the mean.
        prefix: tokens of a shared prefix put in front of each prompt; 0: none.
        prefixes: how many different prefixes there are; each arrival takes one of them at random.
        turns: turns of a session, a number or a distribution: each waits for the one before, and its prompt goes on
            where that and its output ended.
        think: seconds between a turn's end and the next, a number or ``exponential(10)``, ``uniform(1,9)``,
            ``lognormal(5,1)``.
        calls: stages of a program, as ``turns``: each waits for all calls of the stage before, and its prompts go on
            where these and their outputs ended.
        tool: seconds between a stage's end and the next, as ``think``.
        width: calls side by side in each stage of a program but the first and the last.
        clients: how many clients; each arrival comes from one of them at random, ``client_id`` ``c0``, ``c1``, …
            With 1 it stays None.
        client: ``client_id`` of every request.
        max_tokens: declared limit of every request; None leaves it to the rule of the run.
        seed: of everything that is drawn. Arrivals, prompts, outputs, prefixes, clients, turns and think times have a
            stream each, so that a change of one leaves the others as they were.

    Raises:
        WorkloadError: two values do not go together.
    """

    rate: float = 1.0
    n: int = 100
    prompt: Lengths = _PROMPT
    output: Lengths = _OUTPUT
    lengths: str | None = None
    burstiness: float = 1.0
    shape: Shape = STEADY
    prefix: int = 0
    prefixes: int = 1
    turns: Lengths = _ONE
    think: Lengths = _NO_TIME
    calls: Lengths = _ONE
    tool: Lengths = _NO_TIME
    width: int = 1
    clients: int = 1
    client: str | None = None
    max_tokens: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.turns.is_one and not self.calls.is_one:
            raise WorkloadError(
                "a synthetic workload has sessions (turns) or programs (calls), not both; add two of them: "
                "'synthetic:turns=4 + synthetic:calls=4'"
            )
        if self.client is not None and self.clients > 1:
            raise WorkloadError("a synthetic workload has one client of a name (client) or several (clients), not both")
        for name, of, needed in (("think", "turns", self.turns), ("tool", "calls", self.calls)):
            if getattr(self, name) != _NO_TIME and needed.is_one:
                raise WorkloadError(f"{name} of a synthetic workload passes between {of}; give it {of} as well")
        if self.width > 1 and self.calls.is_one:
            raise WorkloadError("width of a synthetic workload is that of a program's stages; give it calls as well")

    @classmethod
    def parse(cls, text: str) -> SyntheticSpec:
        """Read ``synthetic:key=value,...``; keys that are left out keep their defaults.

        Raises:
            WorkloadError: a key is unknown or given twice, or a value is out of its range.
        """
        return cls(**key_values(text.removeprefix(PREFIX), "a synthetic workload", EXAMPLE, _VALUES))

    @property
    def is_single(self) -> bool:
        """Whether every arrival is one request."""
        return self.turns.is_one and self.calls.is_one

    def draw(self) -> Iterator[WorkloadRow]:
        """The rows, in order of arrival; the same each time.

        Raises:
            WorkloadError: the file of ``lengths`` cannot be read.
        """
        return self._draw_singles() if self.is_single else iter(arranged(self._draw_units()))

    def _stream(self, place: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, place])

    def _pairs(self) -> Ints | None:
        return np.array(_lengths_of(Path(self.lengths)), dtype=np.int64) if self.lengths is not None else None

    def _times(self) -> Ints:
        return draw_times(self.n, self.rate, self.burstiness, self.shape, self._stream(0))

    def _draw_lengths(
        self, num: int, first: np.random.Generator, second: np.random.Generator, pairs: Ints | None
    ) -> tuple[Ints, Ints]:
        """The next so many: of two streams, or of these pairs."""
        if pairs is None:
            return self.prompt.draw(first, num), self.output.draw(second, num)
        drawn = pairs[first.integers(len(pairs), size=num)]
        return drawn[:, 0], drawn[:, 1]

    def _draw_singles(self) -> Iterator[WorkloadRow]:
        for arrival, prompt, output, prefix, client in chain.from_iterable(self._draw_columns()):
            yield WorkloadRow(
                arrival_ns=arrival,
                num_prompt_tokens=prompt,
                num_output_tokens=output,
                max_tokens=self.max_tokens,
                prefix_ids=(prefix,) if self.prefix else (),
                prefix_block_size=self.prefix,
                client_id=self._client(client),
            )

    def _draw_columns(self) -> Iterator[Iterator[tuple[int, ...]]]:
        """Time, prompt, output, prefix and client of each, some at a time: millions are never held."""
        first, second, third, fourth = (self._stream(place) for place in range(1, 5))
        pairs = self._pairs()
        for times in draw_times_in_parts(
            self.n, self.rate, self.burstiness, self.shape, lambda: self._stream(0), _CHUNK
        ):
            num = len(times)
            prompts, outputs = self._draw_lengths(num, first, second, pairs)
            prefixes, clients = third.integers(self.prefixes, size=num), fourth.integers(self.clients, size=num)
            columns = (times, prompts + self.prefix, outputs, prefixes, clients)
            yield zip(*(column.tolist() for column in columns), strict=True)

    def _client(self, number: int) -> str | None:
        return f"c{number}" if self.clients > 1 else self.client

    def _draw_units(self) -> Iterator[WorkloadRow]:
        """Rows of sessions or programs, one behind the other."""
        in_sessions = self.calls.is_one
        stages = (self.turns if in_sessions else self.calls).draw(self._stream(5), self.n)
        num_rows = stages if in_sessions else np.where(stages > 2, 2 + (stages - 2) * self.width, stages)
        total = int(num_rows.sum())
        prompts, outputs = (
            c.tolist() for c in self._draw_lengths(total, self._stream(1), self._stream(2), self._pairs())
        )
        waits = (self.think if in_sessions else self.tool).draw_s(self._stream(6), total).tolist()
        times = self._times().tolist()
        prefixes = self._stream(3).integers(self.prefixes, size=self.n).tolist()
        clients = self._stream(4).integers(self.clients, size=self.n).tolist()
        at = 0
        for number, num in enumerate(num_rows.tolist()):
            unit = Unit(
                name=f"{'s' if in_sessions else 'p'}{number}",
                arrival_ns=times[number],
                num_stages=int(stages[number]),
                width=1 if in_sessions else self.width,
                first_id=self.prefixes + 2 * at,
                prefix=(prefixes[number], self.prefix) if self.prefix else None,
            )
            own = slice(at, at + num)
            for row in unit_rows(unit, prompts[own], outputs[own], waits[own], is_session=in_sessions):
                yield replace(row, max_tokens=self.max_tokens, client_id=self._client(clients[number]))
            at += num


def _lengths_of(path: Path) -> list[tuple[int, int]]:
    """Prompt and output lengths of the rows of a trace."""
    pairs = [
        (row.num_prompt_tokens, row.num_output_tokens)
        for row in TraceFile(path).rows()
        if row.num_prompt_tokens is not None and row.num_output_tokens is not None
    ]
    if not pairs:
        raise WorkloadError(f"lengths of a synthetic workload is {str(path)!r}, whose rows have prompts and no lengths")
    return pairs


def _name(key: str, text: str) -> str:
    if not text:
        raise WorkloadError(f"{key} is empty; give it a name")
    return text


_VALUES: dict[str, Callable[[str, str], object]] = {
    **VALUES,
    "n": whole(1),
    "prompt": Lengths.parse,
    "output": Lengths.parse,
    "lengths": _name,
    "prefix": whole(0),
    "prefixes": whole(1),
    "turns": Lengths.parse,
    "think": Lengths.parse_s,
    "calls": Lengths.parse,
    "tool": Lengths.parse_s,
    "width": whole(1),
    "clients": whole(1),
    "client": _name,
    "max_tokens": whole(1),
}
