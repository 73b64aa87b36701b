"""A backend that executes nothing: steps take the time that the cost model says, on a virtual clock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat

from batchwright.backend import Ahead, Backend, BackendSettings, Capacity, StepResult, VirtualClock
from batchwright.batch import Batch, Riders, Row
from batchwright.errors import ConfigError
from batchwright_backends.sim.checked import Checked, check
from batchwright_backends.sim.cost import CostModel
from batchwright_backends.sim.gpus import Gpu
from batchwright_backends.sim.load import StepLoad
from batchwright_backends.sim.memory import check_fits, plan_memory
from batchwright_backends.sim.noise import StepNoise
from batchwright_backends.sim.ride import Ride, attention_of
from batchwright_backends.sim.target import parse_target
from batchwright_backends.sim.tokens import ComingTokens, TokenDraw

DEFAULT_BLOCK_SIZE = 16
_FEW = 8
"""Rows that do not ride, up to which plain numbers cost less than arrays."""


class SimOptions(Checked):
    """Options of the simulator.

    Attributes:
        gpu_memory_utilization: share of the GPU's memory that weights, activations and KV blocks may take.
        host_step_s: seconds a step in which the GPU waits for the host; None leaves the GPU's own figure.
        host_request_s: the same for each request of a step.
        noise: chance in the time of a step: the standard deviation of its logarithm, 0.05 being about 5%. A step's
            factor has mean 1 and follows from the engine's seed and the step's index.
        noise_seed: another number draws other noise with the same seed; arms that `--noise` makes have one each.
    """

    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    host_step_s: NonNegativeFloat | None = None
    host_request_s: NonNegativeFloat | None = None
    noise: NonNegativeFloat = 0.0
    noise_seed: int = 0


class SimBackend(Backend):
    """Simulates a model on GPUs.

    Args:
        settings: as the engine makes them; ``target`` is ``MODEL@GPU[xTP]`` or a YAML file.

    Attributes:
        cost: what says how long a step takes.
        options: as given, defaults filled in.
        notes: what a report on this backend should say of it, in sentences.

    Raises:
        ConfigError: an unknown model, GPU or option, a model that does not fit the memory, or a ``max_model_len``
            beyond the model's.
    """

    def __init__(self, settings: BackendSettings) -> None:
        machine = parse_target(settings.target)
        shape, tensor_parallel = machine.shape, machine.tensor_parallel
        given: Mapping[str, object] = {**machine.options, **settings.options}
        self.options = options = check(SimOptions, given, "options of backend 'sim'")
        gpu = _with_host(machine.gpu, options)
        block_size = settings.block_size or DEFAULT_BLOCK_SIZE
        plan = plan_memory(
            shape,
            gpu,
            tensor_parallel,
            utilization=options.gpu_memory_utilization,
            block_size=block_size,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_num_seqs=settings.max_num_seqs,
        )
        check_fits(plan, shape, gpu, tensor_parallel, options.gpu_memory_utilization)
        longest = shape.max_position_embeddings
        if settings.max_model_len is not None and settings.max_model_len > longest:
            raise ConfigError(
                f"max_model_len {settings.max_model_len} is beyond what {shape.name} was made for; at most {longest}"
            )
        self.name = f"sim:{settings.target}"
        self._clock = VirtualClock()
        self.clock = self._clock
        self.cost = CostModel(shape, gpu, tensor_parallel)
        self.notes = _notes(gpu)
        self._capacity = Capacity(
            num_blocks=settings.num_blocks or plan.num_blocks,
            block_size=block_size,
            max_model_len=settings.max_model_len or longest,
            vocab_size=shape.vocab_size,
            eos_token_ids=shape.eos_token_ids,
        )
        self._tokens = TokenDraw(shape.vocab_size, shape.eos_token_ids)
        self._noise = StepNoise(options.noise, settings.seed, options.noise_seed) if options.noise else None
        self._coming = ComingTokens(self._tokens)
        self._ride: Ride | None = None
        self._drawn = self._draw
        self._last_ns = 1 << 62  # what a step of decodes took last: how many are worked out at once follows from it

    def capacity(self) -> Capacity:
        """Size of the KV pool: as configured, else what the GPU's memory leaves; limits and vocabulary of the model."""
        return self._capacity

    def submit(self, batch: Batch) -> StepResult:
        """The result itself, since nothing has to be waited for; the clock stands until it is collected."""
        riders, num_behind = batch.riders, len(batch) - batch.num_riding
        if riders is not None and not num_behind:
            tokens, seconds = self._ride_of(riders).step(riders)
        elif self._is_many(num_behind):
            tokens = self._tokens.draw(batch.seeds, batch.output_indices)
            seconds = self._seconds(batch, len(tokens))
        else:
            tokens = [*self._ride_of(riders).step(riders)[0]] if riders is not None else []
            rows = list(batch.rows_behind())
            tokens += [self._tokens.draw_one(row.seed, row.output_index) for row in rows if row.samples]
            seconds = self._seconds_of_few(batch, riders, rows, len(tokens))
        return StepResult(tokens, self._rounded(seconds, batch.step_index))

    def _is_many(self, num_behind: int) -> bool:
        """Whether there are so many rows that do not ride that arrays cost less than plain numbers."""
        return num_behind > _FEW or bool(num_behind and self.cost.shape.num_sliding_layers)

    def _seconds_of_few(self, batch: Batch, riders: Riders | None, rows: Sequence[Row], num_sampled: int) -> float:
        """Seconds of a batch in which few rows do not ride, but some."""
        reads = self._ride_of(riders).attention(riders.when) if riders is not None else None
        attention = attention_of(rows, self.cost.gpu.chunk_attention.tile, reads)
        return self.cost.step_s(StepLoad(len(batch), batch.num_tokens, num_sampled, attention))

    def collect(self, handle: StepResult) -> StepResult:
        """The result, at the time when a GPU would have had it."""
        self._clock.advance_ns(handle.elapsed_ns)
        return handle

    def look_ahead(self, batch: Batch, most: int, until_ns: int | None) -> Ahead | None:
        """See ``Backend``: all is known beforehand."""
        riders, now = batch.riders, self._clock.now_ns()
        if riders is None or batch.num_riding != len(batch):
            return self._one_ahead(batch, riders, now)
        ride = self._ride_of(riders)
        if until_ns is not None and now >= until_ns:
            return None
        if most == 1:
            ends = [now + self._rounded(ride.second(riders.when), batch.step_index)]
        else:
            ends = self._ends_ahead(ride, riders.when, batch.step_index, most, until_ns)
        return Ahead(lambda: ride.tokens_ahead(riders, len(ends)), ends, self._drawn)

    def _one_ahead(self, batch: Batch, riders: Riders | None, now: int) -> Ahead:
        """One step, in which others than decodes that go on together run."""
        num_riding = batch.num_riding
        if self._is_many(len(batch) - num_riding):
            seconds = self._seconds(batch, int(np.count_nonzero(batch.samples)))
        else:
            rows = list(batch.rows_behind())
            num_sampled = num_riding + sum(row.samples for row in rows)
            seconds = self._seconds_of_few(batch, riders, rows, num_sampled)
        ends = [now + self._rounded(seconds, batch.step_index)]
        return Ahead(lambda: np.array([self._tokens.draw(batch.seeds, batch.output_indices)]), ends, self._drawn)

    def _ends_ahead(self, ride: Ride, when: int, index: int, most: int, until_ns: int | None) -> list[int]:
        """Ends of the steps that start before that time, at most so many; the first one does."""
        now = self._clock.now_ns()
        ends: list[int] = []
        while len(ends) < most and (until_ns is None or now < until_ns):
            first, num = len(ends), most - len(ends)
            if until_ns is not None:  # steps of decodes last about as long as each other
                num = min(num, 1 + (until_ns - now) // self._last_ns)
            seconds = ride.seconds(when + first, num)
            if self._noise is None:
                times = [round(1e9 * second) for second in seconds]
            else:
                times = [self._rounded(second, index + first + place) for place, second in enumerate(seconds)]
            ends += accumulate(times, initial=ends.pop() if first else now)
            if not first:
                del ends[0]
            now, self._last_ns = ends[-1], max(1, times[-1])
        return ends if until_ns is None else ends[: bisect_left(ends, until_ns) + 1]

    def _draw(self, seed: int, output_index: int, num_tokens: int) -> Sequence[int] | NDArray[np.uint32]:
        if num_tokens == 1:
            return (self._tokens.draw_one(seed, output_index),)
        return self._tokens.draw_ahead(
            np.array([seed], dtype=np.uint64), np.array([output_index], dtype=np.int64), num_tokens
        )[:, 0]

    def predict_s(self, batch: Batch) -> float:
        """Seconds of a batch: exactly what executing it would take, but for noise."""
        return round(1e9 * self._seconds(batch, int(np.count_nonzero(batch.samples)))) / 1e9

    def _seconds(self, batch: Batch, num_sampled: int) -> float:
        load = self.cost.load(batch.num_computed, batch.num_scheduled, batch.num_tokens, num_sampled)
        return self.cost.step_s(load)

    def _ride_of(self, riders: Riders) -> Ride:
        ride = self._ride
        if ride is None or ride.who is not riders.who:
            ride = self._ride = Ride(riders, self.cost, self._tokens, self._coming)
        return ride

    def _rounded(self, seconds: float, step_index: int) -> int:
        """Nanoseconds of a step, noise included; rounded once."""
        if self._noise is not None:
            seconds *= self._noise.factor(step_index)
        return round(1e9 * seconds)


def _with_host(gpu: Gpu, options: SimOptions) -> Gpu:
    """The GPU with the host's time as the options have it."""
    given = {"step_s": options.host_step_s, "request_s": options.host_request_s}
    changed = {name: value for name, value in given.items() if value is not None}
    if not changed:
        return gpu
    return gpu.model_copy(update={"host": gpu.host.model_copy(update={**changed, "source": "options"})})


def _notes(gpu: Gpu) -> tuple[str, ...]:
    if not gpu.uncalibrated:
        return ()
    return (f"{gpu.name} is uncalibrated: its constants are datasheet figures times generic efficiencies",)
