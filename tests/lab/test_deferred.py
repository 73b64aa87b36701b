"""Tokens that are made when somebody reads them are those that would have been made at once."""

from __future__ import annotations

import random
from typing import Any

import pytest

from batchwright import Engine, EngineConfig, Request, SamplingParams, hookimpl
from batchwright.errors import InvalidRequestError
from batchwright.lab import load_workload, offers
from batchwright.lab.prompts import Prompts
from batchwright.leap import Leap
from batchwright.step import Step
from batchwright.token_ids import DeferredTokens

BACKEND = "sim:llama-3.1-8b@h100"
UNREAD: dict[str, Any] = {"backend": BACKEND, "policy": "vllm_v1", "prefix_cache": {"enabled": False}}


def arrive(engine: Engine, number: int, rng: random.Random) -> Request:
    params = SamplingParams(max_tokens=rng.randint(1, 400), ignore_eos=True)
    request = Request(f"r{number}", [rng.randrange(9) for _ in range(rng.randint(1, 60))], params)
    engine.add_request(request)
    return request


class Reads:
    """Somebody who reads tokens as they come, of some steps."""

    name = "reads"

    def __init__(self) -> None:
        self.read: dict[str, dict[int, int]] = {}

    def note(self, request: Request, place: int, token: int) -> None:
        self.read.setdefault(request.request_id, {})[place] = token

    @hookimpl
    def step_finished(self, step: Step, result: Any) -> None:
        if step.index % 3 == 0:
            for request, token in zip(step.sampled, result.token_ids, strict=True):
                self.note(request, request.num_output_tokens - 1, token)

    @hookimpl
    def steps_leapt(self, leap: Leap) -> None:
        tokens = leap.token_ids
        for row, request in enumerate(leap.requests):
            first = request.num_output_tokens - len(leap)
            for step in range(len(leap)):
                self.note(request, first + step, int(tokens[step, row]))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("num_blocks", [30, 5000])
def test_leaps_single_steps_and_deferred_ones_may_follow_each_other(seed: int, num_blocks: int) -> None:
    outputs = []
    for mixed in (False, True):
        rng, moves = random.Random(seed), random.Random(-seed)
        reads = Reads()
        with Engine(
            EngineConfig.parse({**UNREAD, "num_blocks": num_blocks, "max_model_len": 480}), plugins=[reads]
        ) as engine:
            requests = [arrive(engine, number, rng) for number in range(3)]
            at = [rng.randrange(600) for _ in range(9)]
            steps = 0
            while engine.has_unfinished() or len(requests) < 12:
                while at and at[-1] <= steps:
                    at.pop()
                    requests.append(arrive(engine, len(requests), rng))
                if not engine.has_unfinished():
                    steps, at = steps + 1, sorted(at, reverse=True)
                    continue
                at.sort(reverse=True)
                most = max(1, at[-1] - steps) if at else 500
                what = moves.randrange(3) if mixed else 0
                leapt = engine.leap(max_steps=most) if what == 2 else 0
                if not leapt:
                    engine.advance(deferred=what > 0)
                steps += leapt or 1
                if mixed and moves.random() < 0.02:
                    _ = moves.choice(requests).output_token_ids
            assert mixed == bool(engine.scheduler.num_leapt)
            outputs.append([list(r.output_token_ids) for r in requests])
            for request in requests:
                told, whole = reads.read.get(request.request_id, {}), list(request.output_token_ids)
                assert all(whole[place] == token for place, token in told.items())
    assert outputs[0] == outputs[1]


def test_nothing_is_drawn_before_somebody_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from batchwright_backends.sim.tokens import TokenDraw

    drawn: list[int] = []
    plain = TokenDraw.draw_places

    def noting(self: Any, places: Any, further: int, num_steps: int) -> Any:
        drawn.append(num_steps)
        return plain(self, places, further, num_steps)

    monkeypatch.setattr(TokenDraw, "draw_places", noting)
    with Engine(EngineConfig.parse(UNREAD)) as engine:
        request = arrive(engine, 0, random.Random(1))
        while engine.has_unfinished():
            if not engine.leap():
                engine.advance(deferred=True)
        assert not drawn
        assert len(set(request.output_token_ids)) > 10 and drawn


@pytest.mark.parametrize("setting", [{"prefix_cache": {"enabled": True}}, {"policy": "vtc"}])
def test_where_somebody_needs_tokens_or_every_step_all_is_as_before(setting: dict[str, Any]) -> None:
    config = EngineConfig.parse({**UNREAD, **setting})
    outputs = []
    for deferred in (False, True):
        with Engine(config) as engine:
            request = arrive(engine, 0, random.Random(2))
            while engine.has_unfinished():
                engine.advance(deferred=deferred)
            outputs.append(list(request.output_token_ids))
    assert outputs[0] == outputs[1]


def test_prompts_are_those_of_the_workload() -> None:
    for spec in ("synthetic:n=5,prompt=uniform(1,50)", "synthetic:n=6,prompt=20,prefix=33,prefixes=2"):
        workload = load_workload(spec)
        prompts = Prompts(workload.rows, 500, 3)
        made = [offer.request for offer in offers(workload, 500, 400, seed=3)]
        assert [r.num_prompt_tokens for r in made] == [r.num_prompt_tokens for r in workload.rows]
        for place, (request, row) in enumerate(zip(made, workload.rows, strict=True)):
            assert request._unmade is not None
            assert list(request.prompt_token_ids) == prompts.token_ids(place, row).tolist()
            assert request._unmade is None


def test_hashes_of_prompts_part_where_prompts_do() -> None:
    workload = load_workload("synthetic:n=40,prompt=uniform(1,3),prefix=8,prefixes=2")
    seen: dict[str, list[int]] = {}
    for seed in (0, 1):
        for vocab_size in (300, 301):
            for offer in offers(workload, vocab_size, 400, seed=seed):
                tokens = list(offer.request.prompt_token_ids)
                assert seen.setdefault(offer.prompt_hash, tokens) == tokens
    assert len(seen) == len({tuple(tokens) for tokens in seen.values()})


def test_a_prompt_of_a_larger_vocabulary_is_looked_at() -> None:
    import numpy as np

    with Engine(EngineConfig.parse(UNREAD)) as engine:
        num = engine.capacity.vocab_size
        wrong = DeferredTokens(3, num + 1, lambda: np.array([1, num, 2], dtype=np.int32))
        with pytest.raises(InvalidRequestError, match=str(num)):
            engine.add_request(Request("wrong", wrong, SamplingParams(max_tokens=2)))
        engine.add_request(Request("right", DeferredTokens(3, num, lambda: np.zeros(3, dtype=np.int32))))
