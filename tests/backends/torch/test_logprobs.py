"""Log-probabilities equal the log softmax of the logits that transformers itself computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from backends.torch.recording import RecordingDevice
from backends.torch.test_equality import prompts
from backends.torch.test_runner import play
from batchwright import LLM, Engine, EngineConfig, Request, SamplingParams
from batchwright_backends.torch.devices import CpuDevice
from batchwright_backends.torch.inputs import DirectUpload
from batchwright_backends.torch.logprobs import Logprobs, LogprobsPlan

Make = Callable[..., Any]
WANTED = [None, 0, 3, 20, 1]


@pytest.mark.parametrize("on_gpu", [False, True], ids=["cpu", "played gpu"])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_they_are_those_of_the_model(name: str, on_gpu: bool, folders: Make, load_reference: Make) -> None:
    """For rows that want them and beside rows that do not, greedy and drawn, in chunks and mixed batches."""
    config = EngineConfig(
        policy="stall_free:chunk_size=8", backend=f"cpu:{folders(name)}", block_size=4, num_blocks=60, max_num_seqs=4
    )
    with Engine(config) as engine:
        if on_gpu:
            play(engine.backend)
        requests = [
            Request(
                f"r{i}",
                prompt,
                SamplingParams(
                    max_tokens=6, temperature=i % 2 * 1.0, top_k=7, seed=i, ignore_eos=True, logprobs=wanted
                ),
            )
            for i, (prompt, wanted) in enumerate(zip(prompts(), WANTED, strict=True))
        ]
        for request in requests:
            engine.add_request(request)
        outputs = {}
        while engine.has_unfinished():
            for output in engine.step():
                outputs[output.request_id] = output.outputs[0]
    model = load_reference(name)
    for request, wanted in zip(requests, WANTED, strict=True):
        given = outputs[request.request_id].logprobs
        if wanted is None:
            assert given is None
            continue
        tokens = [*request.prompt_token_ids, *request.output_token_ids]
        with torch.inference_mode():
            logits = model(torch.tensor([tokens]), use_cache=False).logits[0, len(request.prompt_token_ids) - 1 : -1]
        expected = torch.log_softmax(logits.float(), dim=-1)
        assert len(given) == 6
        for token, row, got in zip(request.output_token_ids, expected, given, strict=True):
            assert got.logprob == pytest.approx(float(row[token]), abs=2e-4)
            assert got.rank == 1 + int((row > row[token]).sum())
            best = row.topk(wanted)
            assert [i for i, _ in got.top] == best.indices.tolist()
            assert [p for _, p in got.top] == pytest.approx(best.values.tolist(), abs=2e-4)


def test_half_precision_is_summed_in_float32() -> None:
    logits = (torch.randn(3, 500, generator=torch.Generator().manual_seed(0)) * 4).to(torch.bfloat16)
    tokens = torch.tensor([4, 99, 0])
    cpu = torch.device("cpu")
    plan = LogprobsPlan(torch.tensor([2, -1, 0], dtype=torch.int32).numpy(), DirectUpload(cpu))
    first, none, last = Logprobs.compute(logits, tokens, plan, CpuDevice(cpu)).read()
    expected = torch.log_softmax(logits.double(), dim=-1)
    assert first is not None and none is None and last is not None
    assert first.logprob == pytest.approx(float(expected[0, 4]), abs=1e-5)
    assert last.logprob == pytest.approx(float(expected[2, 0]), abs=1e-5)
    assert len(first.top) == 2 and last.top == ()
    small = Logprobs.compute(logits[:, :1], tokens * 0, plan, CpuDevice(cpu)).read()[0]
    assert small is not None and len(small.top) == 1 and small.rank == 1 and small.logprob == 0.0


def test_nothing_reads_from_the_device() -> None:
    meta = torch.device("meta")
    plan = LogprobsPlan(torch.tensor([2, -1, 0], dtype=torch.int32).numpy(), DirectUpload(meta))
    logits, tokens = torch.ones(3, 50, device=meta), torch.ones(3, dtype=torch.int64, device=meta)
    found = Logprobs.compute(logits, tokens, plan, RecordingDevice(meta))
    assert found.top_ids.shape == (2, 2) and found.own.shape == (2,)


def test_of_generated_text(smollm2_folder: str) -> None:
    with LLM(f"cpu:{smollm2_folder}", num_blocks=64) as llm:
        params = SamplingParams(max_tokens=2, temperature=0, logprobs=2)
        (output,) = llm.generate(["The capital of France is"], params, use_tqdm=False)
    first = output.outputs[0].logprobs[0]  # type: ignore[index]
    assert first.rank == 1 and len(first.top) == 2
    assert first.top[0] == (output.outputs[0].token_ids[0], first.logprob)
    assert first.top[1][1] < first.logprob < 0
