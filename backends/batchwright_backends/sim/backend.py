"""A backend that executes nothing: steps take the time that the cost model says, on a virtual clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from pydantic import Field, NonNegativeFloat

from batchwright.backend import Backend, BackendSettings, Capacity, StepResult, VirtualClock
from batchwright.batch import Batch
from batchwright.errors import ConfigError
from batchwright_backends.sim.checked import Checked, check
from batchwright_backends.sim.cost import CostModel
from batchwright_backends.sim.gpus import Gpu
from batchwright_backends.sim.memory import check_fits, plan_memory
from batchwright_backends.sim.target import parse_target
from batchwright_backends.sim.tokens import TokenDraw

DEFAULT_BLOCK_SIZE = 16


class SimOptions(Checked):
    """Options of the simulator.

    Attributes:
        gpu_memory_utilization: share of the GPU's memory that weights, activations and KV blocks may take.
        host_step_s: seconds a step in which the GPU waits for the host; None leaves the GPU's own figure.
        host_request_s: the same for each request of a step.
    """

    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    host_step_s: NonNegativeFloat | None = None
    host_request_s: NonNegativeFloat | None = None


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

    def capacity(self) -> Capacity:
        """Size of the KV pool: as configured, else what the GPU's memory leaves; limits and vocabulary of the model."""
        return self._capacity

    def submit(self, batch: Batch) -> StepResult:
        """The result itself, since nothing has to be waited for; the clock stands until it is collected."""
        tokens = self._tokens.draw(batch.seeds, batch.output_indices)
        return StepResult(tokens, self._step_ns(batch, len(tokens)))

    def collect(self, handle: StepResult) -> StepResult:
        """The result, at the time when a GPU would have had it."""
        self._clock.advance_ns(handle.elapsed_ns)
        return handle

    def predict_s(self, batch: Batch) -> float:
        """Seconds of a batch: exactly what executing it would take."""
        return self._step_ns(batch, int(np.count_nonzero(batch.samples))) / 1e9

    def _step_ns(self, batch: Batch, num_sampled: int) -> int:
        load = self.cost.load(batch.num_computed, batch.num_scheduled, batch.num_tokens, num_sampled)
        return self.cost.step_ns(load)


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
