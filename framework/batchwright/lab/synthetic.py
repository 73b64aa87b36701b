"""Workloads drawn from distributions, seeded."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

import numpy as np

from batchwright.errors import WorkloadError, did_you_mean
from batchwright.lab.lengths import Lengths
from batchwright.lab.row import WorkloadRow

PREFIX = "synthetic:"
EXAMPLE = "synthetic:rate=4,n=100,prompt=lognormal(512,0.8),output=uniform(16,128),burstiness=0.5,seed=1"
_PROMPT, _OUTPUT = Lengths("fixed", (512,)), Lengths("fixed", (128,))
_CHUNK = 4096
"""Rows that are made of arrays at a time: numbers of Python take four times as much memory."""
_COMMA = re.compile(r",(?![^()]*\))")  # not inside parentheses


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticSpec:
    """A synthetic workload: open-loop arrivals at a mean rate, lengths from distributions.

    Gaps between arrivals are gamma distributed with shape ``burstiness``, so their coefficient of variation is
    1 / sqrt(burstiness): 1 is a Poisson process, less is burstier, more is more regular (the meaning that
    ``vllm bench serve --burstiness`` gives it). As there, arrival times are scaled so that the last falls at
    n / rate: seeds differ in pattern, not in load.

    Attributes:
        rate: requests a second on average; ``inf`` lets all arrive at once.
        n: number of requests.
        prompt: length of each prompt, without its shared prefix: a number, ``uniform(16,128)`` (both included) or
            ``lognormal(512,0.8)`` (median and sigma; a third value cuts it).
        output: hidden true length of each output, in the same forms.
        burstiness: shape of the gamma distribution of gaps.
        prefix: tokens of a shared prefix put in front of each prompt; 0: none.
        prefixes: how many different prefixes there are; each request takes one of them at random.
        clients: how many clients; each request comes from one of them at random, ``client_id`` ``c0``, ``c1``, …
            With 1 it stays None.
        max_tokens: declared limit of every request; None leaves it to the rule of the run.
        seed: of everything that is drawn. Arrivals, prompts, outputs, prefixes and clients have a stream each, so
            that a change of one leaves the others as they were.
    """

    rate: float = 1.0
    n: int = 100
    prompt: Lengths = _PROMPT
    output: Lengths = _OUTPUT
    burstiness: float = 1.0
    prefix: int = 0
    prefixes: int = 1
    clients: int = 1
    max_tokens: int | None = None
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> SyntheticSpec:
        """Read ``synthetic:key=value,...``; keys that are left out keep their defaults.

        Raises:
            WorkloadError: a key is unknown or given twice, or a value is out of its range.
        """
        known = [f.name for f in fields(cls)]
        values: dict[str, Any] = {}
        body = text.removeprefix(PREFIX)
        for item in _COMMA.split(body) if body.strip() else []:
            key, equals, value = (part.strip() for part in item.partition("="))
            if not equals:
                raise WorkloadError(f"{item!r} in a synthetic workload is not key=value; for example {EXAMPLE}")
            if key not in known:
                raise WorkloadError(f"a synthetic workload has no {key!r}; {did_you_mean(key, known)}")
            if key in values:
                raise WorkloadError(f"a synthetic workload gives {key!r} twice; give it once")
            values[key] = _VALUES[key](key, value)
        return cls(**values)

    def draw(self) -> Iterator[WorkloadRow]:
        """The rows, in order of arrival; the same each time."""

        def stream(place: int) -> np.random.Generator:
            return np.random.default_rng([self.seed, place])

        gaps = stream(0).gamma(self.burstiness, size=self.n)
        # A tiny shape can underflow every gap to 0; then all arrive at the end of the span, in one burst.
        share = np.cumsum(gaps) / gaps.sum() if gaps.sum() > 0 else np.ones(self.n)
        columns = (
            np.rint(share * (self.n / self.rate * 1e9)).astype(np.int64),
            self.prompt.draw(stream(1), self.n) + self.prefix,
            self.output.draw(stream(2), self.n),
            stream(3).integers(self.prefixes, size=self.n),
            stream(4).integers(self.clients, size=self.n),
        )
        del gaps, share
        rows = chain.from_iterable(
            zip(*(column[start : start + _CHUNK].tolist() for column in columns), strict=True)
            for start in range(0, self.n, _CHUNK)
        )
        for arrival, prompt, output, prefix, client in rows:
            yield WorkloadRow(
                arrival_ns=arrival,
                num_prompt_tokens=prompt,
                num_output_tokens=output,
                max_tokens=self.max_tokens,
                prefix_ids=(prefix,) if self.prefix else (),
                prefix_block_size=self.prefix,
                client_id=f"c{client}" if self.clients > 1 else None,
            )


def _positive(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0 or (key != "rate" and math.isinf(value)):
        choices = "a number above 0, or inf for all at once" if key == "rate" else "a finite number above 0"
        raise WorkloadError(f"{key} of a synthetic workload is {text!r}; expected {choices}")
    return value


def _whole(key: str, text: str) -> int:
    low = 0 if key in ("prefix", "seed") else 1
    if not (text.isascii() and text.isdigit() and int(text) >= low):
        raise WorkloadError(f"{key} of a synthetic workload is {text!r}; expected a whole number of at least {low}")
    return int(text)


_VALUES = {
    "rate": _positive,
    "n": _whole,
    "prompt": Lengths.parse,
    "output": Lengths.parse,
    "burstiness": _positive,
    "prefix": _whole,
    "prefixes": _whole,
    "clients": _whole,
    "max_tokens": _whole,
    "seed": _whole,
}
