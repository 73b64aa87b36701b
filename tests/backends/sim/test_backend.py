"""The backend: what a batch gives, in what time, and alone of what it depends on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchwright.backend import BackendSettings
from batchwright.batch import Batch
from batchwright.errors import ConfigError
from batchwright_backends.sim.backend import SimBackend
from batchwright_backends.sim.plugin import register_backends

MakeBatch = Callable[[list[tuple[int, int, int, int, int]]], Batch]


def simulator(target: str = "llama-3.1-8b@h100", **options: object) -> SimBackend:
    return SimBackend(BackendSettings(target, options=options))


@st.composite
def rows(draw: st.DrawFn) -> list[tuple[int, int, int, int, int]]:
    """Rows as a scheduler makes them: some finish their pending tokens, some do not."""
    made = []
    for _ in range(draw(st.integers(1, 20))):
        known = draw(st.integers(2, 3000))
        output = draw(st.integers(0, known - 1))
        computed = draw(st.integers(0, known - 1))
        scheduled = draw(st.sampled_from([1, known - computed, max(1, (known - computed) // 2)]))
        made.append((computed, scheduled, known, output, draw(st.integers(0, 2**64 - 1))))
    return made


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(rows())
def test_prediction_is_what_execution_takes(make_batch: MakeBatch, made: list[tuple[int, int, int, int, int]]) -> None:
    backend = simulator()
    predicted = backend.predict_s(make_batch(made))
    assert backend.clock.now_ns() == 0
    result = backend.execute(make_batch(made))
    assert result.elapsed_ns == backend.clock.now_ns() == round(predicted * 1e9)
    assert result.elapsed_ns > 0
    assert len(result.token_ids) == sum(c + q == known for c, q, known, _, _ in made)
    assert backend.predicts


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(rows())
def test_tokens_are_the_same_however_rows_are_batched(
    make_batch: MakeBatch, made: list[tuple[int, int, int, int, int]]
) -> None:
    backend = simulator()
    together = list(backend.execute(make_batch(made)).token_ids)
    alone = [t for row in made for t in backend.execute(make_batch([row])).token_ids]
    # computed in one go, in place of step by step: the sampled token is that of its place in the output
    recomputed = [
        t
        for c, q, known, output, seed in made
        if c + q == known
        for t in backend.execute(make_batch([(0, known, known, output, seed)])).token_ids
    ]
    assert together == alone == recomputed
    assert all(0 <= t < 128256 and t not in backend.capacity().eos_token_ids for t in together)


def test_the_clock_moves_when_a_batch_is_collected(make_batch: MakeBatch) -> None:
    backend = simulator()
    first = backend.submit(make_batch([(0, 100, 100, 0, 1)]))
    second = backend.submit(make_batch([(10, 1, 11, 3, 2)]))
    assert backend.clock.now_ns() == 0
    elapsed = backend.collect(first).elapsed_ns
    assert backend.clock.now_ns() == elapsed
    elapsed += backend.collect(second).elapsed_ns
    assert backend.clock.now_ns() == elapsed
    backend.clock.wait_until_ns(10**12)
    assert backend.clock.now_ns() == 10**12


def test_host_time_is_an_option(make_batch: MakeBatch) -> None:
    batch = make_batch([(10, 1, 11, 3, 2)] * 10)
    free = simulator(host_step_s=0, host_request_s=0).execute(batch).elapsed_ns
    slow = simulator(host_step_s=1e-3, host_request_s=1e-5).execute(batch).elapsed_ns
    assert slow - free == pytest.approx(1_100_000, abs=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu_memory_utilisation": 0.8}, "no 'gpu_memory_utilisation': did you mean 'gpu_memory_utilization'?"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization = 1.5: Input should be less than or equal to 1"),
        ({"host_step_s": -1}, "host_step_s = -1"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        simulator(**options)
    assert "options of backend 'sim'" in str(refused.value)
    assert message in str(refused.value)


def test_an_uncalibrated_gpu_says_so() -> None:
    assert simulator("llama-3.1-8b@h100").notes == ()
    assert "l40s is uncalibrated" in simulator("llama-3.1-8b@l40s").notes[0]


def test_it_is_registered_by_name() -> None:
    entry = register_backends()["sim"]
    assert entry.available() is None
    assert entry.syntax.startswith("sim:MODEL@GPU")
    backend = entry.create(BackendSettings("smollm2-135m@h100"))
    assert backend.name == "sim:smollm2-135m@h100"
    assert backend.tokenizer is None


def test_it_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys\n"
        "from batchwright.backend import BackendSettings\n"
        "from batchwright_backends.sim.plugin import register_backends\n"
        "register_backends()['sim'].create(BackendSettings('llama-3.1-8b@h100'))\n"
        "heavy = {'torch', 'transformers', 'flash_attn', 'vllm', 'scipy', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(f'loaded {sorted(heavy)}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
