"""The whole road: an engine, a policy, a pool too small for everybody, and the tokens of ``model.generate()``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
import torch

from backends.torch.conftest import ARCHITECTURES, FEW, VOCABULARY
from backends.torch.driver import reference
from backends.torch.test_equality import prompts
from batchwright import LLM, Engine, EngineConfig, Request, SamplingParams
from batchwright.hookspecs import hookimpl

Make = Callable[..., Any]
POLICIES = ["prefill_first", "vllm_v1", "stall_free:chunk_size=16"]


class Watch:
    """What the run went through, so that a test of preemptions has some."""

    def __init__(self) -> None:
        self.num_preemptions = self.num_chunks = self.num_mixed = self.num_cached = 0

    @hookimpl
    def step_finished(self, step: Any) -> None:
        self.num_preemptions += len(step.preempted)
        cut = [r for r in step.batch if r.is_prefilling]
        self.num_chunks += len(cut)
        self.num_mixed += any(r.num_scheduled > 1 for r in step.batch) and any(r.num_scheduled == 1 for r in step.batch)

    @hookimpl
    def request_admitted(self, request: Request) -> None:
        if not request.num_preemptions:
            self.num_cached += request.num_cached


def serve(target: str, policy: str, requests: Sequence[Request], **settings: Any) -> Watch:
    watch = Watch()
    config = EngineConfig(policy=policy, backend=f"cpu:{target}", **settings)
    engine = Engine(config, plugins=[watch])
    for request in requests:
        engine.add_request(request)
    while engine.has_unfinished():
        engine.step()
    assert engine.scheduler.step.free_blocks == engine.capacity.num_blocks
    engine.close()
    return watch


def check(watch: Watch, requests: Sequence[Request], model: Any, num_tokens: int) -> None:
    assert watch.num_preemptions > 0, "nobody was evicted"
    assert watch.num_chunks > 0, "no prompt was cut"
    assert watch.num_mixed > 0, "no batch mixed prompts and decodes"
    assert watch.num_cached > 0, "no prefix was hit"
    for request in requests:
        assert request.output_token_ids == reference(model, request.prompt_token_ids, num_tokens), request.request_id
        assert request.finish_reason == "length"


@pytest.mark.parametrize(
    ("name", "policy"),
    [*((name, POLICIES[i % 3]) for i, name in enumerate(ARCHITECTURES) if name not in FEW), *product(FEW, POLICIES)],
)
def test_greedy_tokens_equal_generate(name: str, policy: str, folders: Make, load_reference: Make) -> None:
    common, *own = prompts((17, 6, 13, 1, 22, 9, 4), seed=4)
    params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    requests = [Request(f"r{i}", common + p if i % 3 else p, params) for i, p in enumerate(own)]
    requests.append(Request("twin", requests[4].prompt_token_ids, params))
    watch = serve(
        str(folders(name)), policy, requests, block_size=4, num_blocks=36, max_num_seqs=6, max_num_batched_tokens=24
    )
    check(watch, requests, load_reference(name), 20)


@pytest.mark.parametrize("most", [12, 20, 100])
def test_f7_every_batch_size_runs(most: int, folders: Make, load_reference: Make) -> None:
    """Scenario F7: one request ends in each step, so the batch has every size from ``most`` down to 1."""
    sizes: list[int] = []

    class Sizes:
        @hookimpl
        def step_finished(self, step: Any) -> None:
            sizes.append(len(step.batch))

    kinds = prompts((3, 5), seed=7)
    requests = [
        Request(f"r{n}", kinds[n % 2], SamplingParams(max_tokens=n, temperature=0, ignore_eos=True))
        for n in range(1, most + 1)
    ]
    config = EngineConfig(
        backend=f"cpu:{folders('llama')}", block_size=4, num_blocks=4000, max_num_seqs=most, max_num_batched_tokens=1000
    )
    with Engine(config, plugins=[Sizes()]) as engine:
        for request in requests:
            engine.add_request(request)
        while engine.has_unfinished():
            engine.step()
    assert sizes == list(range(most, 0, -1))
    expected = [reference(load_reference("llama"), prompt, most) for prompt in kinds]
    for n, request in enumerate(requests, start=1):
        assert request.output_token_ids == expected[n % 2][:n], request.request_id


def test_the_real_model(smollm2_folder: str, load_reference: Make) -> None:
    text = "The following is a list of facts about the city of Paris, the capital of France, and its history. "
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    ends = ["The first is", "Its river", "In 1789", "Today it has", "Its tower"]
    params = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True)
    requests = [Request(f"r{i}", tokenizer.encode(text + end), params) for i, end in enumerate(ends)]
    requests.append(Request("other", tokenizer.encode("def add(a, b):"), params))
    watch = serve(
        smollm2_folder, "stall_free:chunk_size=16", requests, block_size=4, num_blocks=20, max_num_batched_tokens=32
    )
    check(watch, requests, load_reference(smollm2_folder), 16)


def test_llm_generate_with_text(smollm2_folder: str) -> None:
    with LLM(f"cpu:{smollm2_folder}", num_blocks=64) as llm:
        stopped, seeded, again = llm.generate(
            ["The capital of France is", "Once upon a time", "Once upon a time"],
            [
                SamplingParams(max_tokens=12, temperature=0, stop="."),
                *[SamplingParams(max_tokens=12, temperature=0.9, top_p=0.95, seed=1)] * 2,
            ],
            use_tqdm=False,
        )
    assert "Paris" in stopped.outputs[0].text and "." not in stopped.outputs[0].text
    assert stopped.outputs[0].finish_reason == "stop"
    assert seeded.outputs[0].token_ids == again.outputs[0].token_ids
    assert len(seeded.outputs[0].token_ids) <= 12


@pytest.mark.parametrize("policy", POLICIES)
def test_seeded_sampling_does_not_depend_on_the_policy(policy: str, folders: Make) -> None:
    """Nor on preemptions: a draw depends on seed and place alone."""
    params = [SamplingParams(max_tokens=15, temperature=0.8, top_p=0.9, seed=i, ignore_eos=True) for i in range(5)]

    def run(**settings: Any) -> tuple[Watch, list[list[int]]]:
        requests = [Request(f"r{i}", p, params[i]) for i, p in enumerate(prompts((9, 14, 3, 20, 6), seed=5))]
        watch = serve(str(folders("llama")), policy, requests, block_size=4, **settings)
        return watch, [r.output_token_ids[:] for r in requests]

    tight, tokens = run(num_blocks=20, max_num_batched_tokens=24)
    roomy, expected = run(num_blocks=200)
    assert tight.num_preemptions > 0 and roomy.num_preemptions == 0
    assert tokens == expected


def test_a_request_with_nan_fails_and_the_others_finish(folders: Make) -> None:
    engine = Engine(
        EngineConfig(
            backend=f"cpu:{folders('llama')}", block_size=4, num_blocks=60, backend_options={"check_logits": False}
        )
    )
    params = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)
    good = [Request(f"good{i}", p, params) for i, p in enumerate(prompts((9, 14), seed=5))]
    bad_token = max(set(range(VOCABULARY)) - {t for r in good for t in r.prompt_token_ids})
    weight = engine.backend.model.get_input_embeddings().weight  # type: ignore[attr-defined]
    weight.data[bad_token] = torch.nan
    bad = Request("bad", [1, bad_token, 2], params)
    for request in (good[0], bad, good[1]):
        engine.add_request(request)
    outputs = {}
    while engine.has_unfinished():
        outputs.update({o.request_id: o for o in engine.step()})
    assert bad.finish_reason == "error"
    assert "NaN or infinite" in (outputs["bad"].error or "")
    assert [r.finish_reason for r in good] == ["length", "length"]
    engine.close()
