"""Tensor parallelism over two processes on CPU: the same tokens as one, and no process that outlives its engine."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.torch.conftest import VOCABULARY, config_of
from backends.torch.driver import Driver, reference
from backends.torch.test_engine import Watch
from backends.torch.test_engine import check as check_run
from backends.torch.test_equality import NUM_TOKENS, check, prompts
from batchwright import Engine, EngineConfig, Request, SamplingParams
from batchwright.backend import BackendSettings
from batchwright.errors import BackendError
from batchwright_backends.torch import loading, parallel
from batchwright_backends.torch.backend import TorchBackend
from batchwright_backends.torch.inputs import StepInputs
from batchwright_backends.torch.models import ModelSource
from batchwright_backends.torch.parallel import ShardedBackend
from batchwright_backends.torch.tensor_plan import check_plan
from batchwright_backends.torch.wire import Start, pack, unpack
from batchwright_backends.torch.workers import Workers

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="ranks are not started on Windows"),
    pytest.mark.skipif(torch.accelerator.is_available(), reason="transformers would take this machine's GPUs"),
]
Make = Callable[..., Any]


def create(folder: str, size: int = 2, **options: Any) -> ShardedBackend:
    settings = BackendSettings(folder, block_size=4, num_blocks=128, options={"tensor_parallel_size": size, **options})
    backend = TorchBackend.create("cpu", settings)
    assert isinstance(backend, ShardedBackend)
    return backend


def processes(backend: ShardedBackend) -> list[subprocess.Popen[bytes]]:
    return [worker.process for worker in backend.workers.ranks]


# The same tokens ------------------------------------------------------------------------------------------------


def test_an_engine_over_two_ranks(folders: Make, load_reference: Make) -> None:
    """Prompts in chunks, mixed batches, prefix hits, preemptions; then a rank fails, and the engine says so."""
    common, *own = prompts((17, 6, 13, 1, 22, 9, 4), seed=4)
    params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    requests = [Request(f"r{i}", common + p if i % 3 else p, params) for i, p in enumerate(own)]
    requests.append(Request("twin", requests[4].prompt_token_ids, params))
    watch = Watch()
    config = EngineConfig(
        policy="stall_free:chunk_size=16",
        backend=f"cpu:{folders('llama')}",
        backend_options={"tensor_parallel_size": 2},
        block_size=4,
        num_blocks=36,
        max_num_seqs=6,
        max_num_batched_tokens=24,
    )
    engine = Engine(config, plugins=[watch])
    backend = engine.backend
    assert isinstance(backend, ShardedBackend)
    for request in requests:
        engine.add_request(request)
    while engine.has_unfinished():
        engine.step()
    check_run(watch, requests, load_reference("llama"), 20)
    assert {(layer.num_heads, layer.num_kv_heads) for layer in backend.runner.layers.values()} == {(2, 1)}
    assert backend.notes == ("tensor parallel over 2 ranks",)

    (process,) = processes(backend)
    assert process.poll() is None
    backend.announce = lambda inputs: backend.workers.tell(b"no step")  # type: ignore[method-assign]
    backend.runner.announce = backend.announce
    engine.add_request(Request("late", own[0], params))
    engine.add_request(Request("later", own[1], params))
    outputs = {o.request_id: o for o in engine.step()}
    assert "tensor-parallel rank 1 of 2 failed: ValueError" in (outputs["late"].error or "")
    assert "make a new engine" in (outputs["late"].error or "")
    assert not engine.has_unfinished()
    engine.close()
    assert process.poll() is not None


def test_a_rank_that_is_told_something_else(folders: Make, load_reference: Make) -> None:
    """Equality with chunks and recompute; a negative control: the other rank's part matters. Then it is killed."""
    backend = create(str(folders("qwen3")))
    driver = Driver(backend)
    try:
        first, second, third = prompts((30, 9, 14), seed=2)
        a, b, c = driver.request("a", first), driver.request("b", first[:21] + second), driver.request("c", third)
        driver.run([a, c], 4, chunk=16, stagger=1)
        assert driver.share(a, b) == 5
        driver.run([a, b, c], 7)
        driver.evict(c)
        driver.run([b, c, a], NUM_TOKENS, chunk=8)
        check(driver, load_reference("qwen3"), [a, b, c])

        def lie(inputs: StepInputs) -> None:
            backend.workers.tell(pack(replace(inputs, positions=inputs.positions // 2)))

        backend.runner.announce = lie
        d = driver.request("d", first)
        driver.run([d], NUM_TOKENS)
        assert d.output_token_ids != reference(load_reference("qwen3"), first, NUM_TOKENS)
        backend.runner.announce = backend.announce

        (process,) = processes(backend)
        process.send_signal(signal.SIGKILL)
        e = driver.request("e", third)
        with pytest.raises(BackendError, match=r"rank 1 of 2 failed: its process ended with signal SIGKILL.* engine"):
            driver.step([(e, 3)])
        with pytest.raises(BackendError, match=r"has ended, since tensor-parallel rank 1 .*SIGKILL: make a new engine"):
            driver.step([(e, 3)])
    finally:
        backend.close()
        backend.close()
    assert not torch.distributed.is_initialized()


def test_a_rank_that_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for it for ever. On the way: random weights, capacity as the poorest rank's, threads shared."""
    config_of("mixtral").save_pretrained(tmp_path)
    monkeypatch.setattr(parallel, "TIMEOUT_S", 4.0)
    monkeypatch.setattr(parallel, "GRACE_S", 0.5)

    def poorer(starts: Sequence[Start], on_failure: Any = None) -> Workers:
        return Workers([replace(s, settings=replace(s.settings, num_blocks=100)) for s in starts], on_failure)

    monkeypatch.setattr(parallel, "Workers", poorer)
    torch.set_num_threads(2)
    # Imports of the other rank take as long as they take: only steps have the short timeout.
    monkeypatch.setattr(Workers, "wait_for", _patient(Workers.wait_for))
    backend = create(str(tmp_path), load_format="dummy")
    try:
        assert torch.get_num_threads() == 1
        assert backend.capacity().num_blocks == 100
        driver = Driver(backend)
        requests = [driver.request(f"r{i}", p) for i, p in enumerate(prompts())]
        driver.run(requests, 3, chunk=7)
        assert not driver.failed
        (process,) = processes(backend)
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(BackendError, match=r"one of the tensor-parallel ranks 1 to 1 did not answer in 4 s"):
            driver.step([(driver.request("e", [1, 2, 3]), 3)])
        assert process.poll() == -signal.SIGKILL
    finally:
        backend.close()
    assert torch.get_num_threads() == 2


def _patient(wait_for: Any) -> Any:
    return lambda self, word, timeout_s=None: wait_for(self, word)


PARENT = """
import os, signal, sys
from batchwright.backend import BackendSettings
from batchwright_backends.torch.backend import TorchBackend

if __name__ == "__main__":
    options = {"tensor_parallel_size": 2, "check_logits": False}
    backend = TorchBackend.create("cpu", BackendSettings(sys.argv[1], num_blocks=20, options=options))
    print(*(worker.process.pid for worker in backend.workers.ranks), flush=True)
    if sys.argv[2] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit("an error that nobody caught")
"""


@pytest.mark.parametrize("end", ["kill", "raise"])
def test_no_rank_outlives_its_parent(end: str, folders: Make) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PARENT, str(folders("llama")), end]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == (-signal.SIGKILL if end == "kill" else 1), done.stderr
    pid = int(done.stdout)
    until = time.monotonic() + 30
    while _runs(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:  # one that has ended, and whose parent has not asked yet
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# Refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "size", "words"),
    [
        ("gpt2", 2, "has no tensor-parallel plan for model .*: use 1"),
        ("llama", 3, "the 4 attention heads and 2 KV heads of model .* into so many equal parts: use 1 or 2$"),
        ("llama", 4, "use 1 or 2$"),
        ("falcon", 2, "does not take a function from transformers' attention interface"),
        ("lfm2", 2, "'conv': layers 0, 2"),
    ],
)
def test_models_that_cannot_be_split(
    name: str, size: int, words: str, folders: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "Workers", _nobody_may_start)
    with pytest.raises(BackendError, match=words):
        create(str(folders(name)), size)


def _nobody_may_start(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("processes were started")


def test_a_plan_that_leaves_attention_whole(folders: Make) -> None:
    """Phi-3's: its heads need not come out even."""
    outline, config = loading.outline(ModelSource(str(folders("phi3"))))
    check_plan(outline, config, 3, "it")


def test_machines_and_processes_that_cannot(folders: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(folders("llama"))
    monkeypatch.setattr(parallel, "Workers", _nobody_may_start)
    with monkeypatch.context() as patch:
        patch.setattr(torch.distributed, "is_initialized", lambda: True)
        with pytest.raises(BackendError, match=r"in a process group of torch.distributed already: close the other"):
            create(folder)
    with monkeypatch.context() as patch:
        patch.setattr(torch.accelerator, "is_available", lambda: True)
        patch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
        with pytest.raises(BackendError, match=r"use cuda:.*, or hide them \(CUDA_VISIBLE_DEVICES="):
            create(folder)
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 1)
        with pytest.raises(BackendError, match=r"torch finds 1 CUDA device: use at most 1"):
            TorchBackend.create("cuda", BackendSettings(folder, options={"tensor_parallel_size": 2}))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "win32")
        with pytest.raises(BackendError, match="on Windows: use 1"):
            create(folder)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "transformers.distributed.configuration_utils", None)
        with pytest.raises(BackendError, match="this version of transformers is too old"):
            create(folder)


# Parts ----------------------------------------------------------------------------------------------------------


def test_a_step_goes_over_the_wire_as_it_is() -> None:
    rng = random.Random(0)
    for _ in range(30):
        rows = []
        for _ in range(rng.randint(1, 5)):
            computed, count = rng.randrange(9), rng.randint(1, 7)
            blocks = [rng.randrange(50) for _ in range(-(-(computed + count) // 4))]
            rows.append(([rng.randrange(VOCABULARY) for _ in range(count)], computed, blocks))
        inputs = StepInputs.of_rows(rows, 4, all_logits=rng.random() < 0.3)
        if rng.random() < 0.2:
            inputs.sampled = inputs.sampled[:0]
        back = unpack(pack(inputs))
        for name in ("token_ids", "positions", "slots", "starts", "context_lens", "block_tables", "sampled"):
            one, two = getattr(inputs, name), getattr(back, name)
            assert one.dtype == two.dtype and one.shape == two.shape and np.array_equal(one, two), name
            assert two.flags.writeable


def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    start = Start(1, 2, "abacus", BackendSettings("nothing"), 1, str(tmp_path / "ranks"), 30.0)
    group = Workers([start])
    try:
        with pytest.raises(BackendError, match=r"tensor-parallel rank 1 of 2 failed: RuntimeError: .*abacus"):
            group.wait_for("here")
    finally:
        group.end()
    assert group.ranks[0].process.poll() is not None


class FakeWorkers:
    """Workers that say what the test wants."""

    size = 3

    def __init__(self, failure: str | None = None) -> None:
        self._failure = failure
        self.killed = 0

    def failure(self, patience_s: float = 0.0) -> str | None:
        return self._failure

    def kill(self) -> None:
        self.killed += 1


@pytest.fixture
def sharded() -> Iterator[Callable[..., ShardedBackend]]:
    def make(failure: str | None = None) -> ShardedBackend:
        backend = ShardedBackend.__new__(ShardedBackend)
        backend.name = "cpu:it"
        fake: Any = FakeWorkers(failure)
        backend.workers = fake
        return backend

    yield make


@pytest.mark.parametrize(
    ("failure", "error", "words"),
    [
        (None, RuntimeError("index out of range"), "tensor-parallel rank 0 of 3 failed: index out of range. All ranks"),
        (None, RuntimeError("Connection closed by peer"), "one of the tensor-parallel ranks 1 to 2 did not answer"),
        (None, BlockingIOError("Resource temporarily unavailable"), "one of the tensor-parallel ranks 1 to 2"),
        ("rank 2 says no", RuntimeError("Timed out waiting"), "rank 2 says no. All ranks were ended"),
    ],
)
def test_who_is_named(failure: str | None, error: Exception, words: str, sharded: Make) -> None:
    backend = sharded(failure)
    with pytest.raises(BackendError, match=words), backend._together():
        raise error
    assert backend.workers.killed == 1
    with pytest.raises(BackendError, match="cpu:it has ended, since"), backend._together():
        raise AssertionError("a step ran")


def test_an_interrupt_in_a_step_ends_all_ranks(sharded: Make) -> None:
    backend = sharded()
    with pytest.raises(KeyboardInterrupt), backend._together():
        raise KeyboardInterrupt
    assert backend.workers.killed == 1
    with pytest.raises(BackendError, match="it was interrupted in a step"), backend._together():
        pass
