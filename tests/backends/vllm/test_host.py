"""Our scheduler in the place of vLLM's: every decision of our policies reaches vLLM's workers, and nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM, which is not installed: make check-vllm")

from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.engine import FinishReason  # pyright: ignore[reportMissingImports]
from vllm.v1.request import RequestStatus  # pyright: ignore[reportMissingImports]

from backends.vllm.aborting import check_aborts
from backends.vllm.runs import BLOCK, POLICIES, Run, answer, check_answers, load, offer, ours, stock
from batchwright.errors import ConfigError
from peers_vllm import host


@pytest.mark.parametrize("num_blocks", [14, 200])
@pytest.mark.parametrize("policy", POLICIES)
def test_everybody_gets_his_tokens(policy: str, num_blocks: int) -> None:
    """With a pool of 14 blocks residents are evicted all the time."""
    run = ours(policy, num_blocks, 6, 48)
    rows = load(1)
    for i, row in enumerate(rows):
        offer(run, row)
        if i % 3:
            run.step()
    run.finish()
    check_answers(run, rows)
    evicted = run.core.num_preemptions
    assert (evicted > 0) == (num_blocks == 14 and policy != "no_evict")


@given(st.integers(0, 10_000), st.integers(13, 60), st.integers(1, 8), st.integers(8, 80))
def test_vllm_v1_decides_as_stock(seed: int, num_blocks: int, seats: int, budget: int) -> None:
    """The same requests with the same tokens in every step, and the same answers."""
    runs = stock(num_blocks, seats, budget), ours("vllm_v1", num_blocks, seats, budget)
    for row in load(seed, 8):
        for run in runs:
            offer(run, row)
            run.step()
    for run in runs:
        run.finish()
    one, other = runs
    assert other.workers.steps == one.workers.steps
    assert (one.told, one.ends, one.stops) == (other.told, other.ends, other.stops)


@given(st.integers(0, 10_000), st.sampled_from(POLICIES), st.data())
def test_aborts_lose_nothing(seed: int, policy: str, data: st.DataObject) -> None:
    """Whoever is aborted, before a step or within one, the others get their tokens and all blocks come back."""
    check_aborts(ours(policy, 16, 4, 40), seed, data)


def test_stop_tokens_and_repetitions_are_told() -> None:
    run = ours("vllm_v1", 60, 4, 64)
    prompt = [5, 6, 7]
    expected = answer(prompt, 20, ignore_eos=True)
    run.add("stops", prompt, 20, ignore_eos=True, stop_token_ids=[expected[4]])
    run.finish()
    first = expected.index(expected[4])
    assert run.told["stops"] == expected[: first + 1]
    assert (run.ends["stops"], run.stops["stops"]) == (FinishReason.STOP, expected[4])


def test_all_can_be_ended_at_once() -> None:
    run = ours("prefill_first", 60, 4, 64)
    for row in load(3, 6):
        offer(run, row)
    run.step()
    assert len(run.core.finish_requests(None, RequestStatus.FINISHED_ABORTED)) == 6
    assert run.core.has_finished_requests() and not run.core.has_unfinished_requests()
    run.finish()
    assert run.core.get_kv_cache_usage() == 0 and not run.workers.tokens


@pytest.mark.parametrize("what", [{"max_tokens": 1000}, {"prompt_logprobs": 1}, {"priority": "high"}])
def test_what_cannot_be_taken_ends_with_an_error(what: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """Nobody else is touched, and the server goes on."""
    run = ours("vllm_v1", 12, 4, 64)
    run.add("good", [1, 2, 3], 5, ignore_eos=True)
    with caplog.at_level("WARNING", "vllm.batchwright"):
        run.add("bad", [1, 2, 3], **{"max_tokens": 5, **what})
    run.finish()
    assert run.ends == {"good": FinishReason.LENGTH, "bad": FinishReason.ERROR}
    assert "'bad'" in caplog.text
    assert run.core.get_num_unfinished_requests() == 0


def test_the_prefix_cache_is_forgotten_when_nobody_runs() -> None:
    run = ours("vllm_v1", 60, 4, 64)
    prompt = list(range(40))
    run.add("a", prompt, 3, ignore_eos=True)
    assert not run.core.reset_prefix_cache() or run.core.get_request_counts()[0] == 0
    run.step()
    assert not run.core.reset_prefix_cache()
    run.finish()
    run.add("b", prompt, 3, ignore_eos=True)
    run.step()
    assert run.workers.steps[-1]["b"] == 8
    run.finish()
    assert run.core.reset_prefix_cache()
    run.add("c", prompt, 3, ignore_eos=True)
    run.step()
    assert run.workers.steps[-1]["c"] == 40
    run.finish()


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"policy": "vtcc"}, "unknown policy 'vtcc'"),
        ({"polcy": "vtc"}, "batchwright.polcy is no setting"),
        ({"max_num_seqs": 3}, "batchwright.max_num_seqs: vLLM gives it"),
        ({"trust_requests": "perhaps"}, "trust_requests"),
    ],
)
def test_wrong_settings_are_named(section: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        type("Host", (type(host("vllm_v1", 20, BLOCK, 4, 64)),), {"additional_config": {"batchwright": section}})(
            20, BLOCK, 4, 64
        )
    assert said in str(caught.value)


def test_requests_may_say_whose_they_are_where_they_are_trusted() -> None:
    kind = type(host("vllm_v1", 20, BLOCK, 4, 64))
    for trusted in (False, True):
        section = {"policy": "vtc", "trust_requests": trusted}
        run = Run(type("Host", (kind,), {"additional_config": {"batchwright": section}})(20, BLOCK, 4, 64))
        run.add("a", [1, 2], 3, extra_args={"batchwright_client_id": "me", "batchwright_weight": 2.0})
        ours_ = run.core.core.get("a")
        assert (ours_.client_id, ours_.weight) == (("me", 2.0) if trusted else (None, 1.0))


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it is vLLM's own class, and nothing of ours is read, wrong settings neither."""
    from vllm.v1.core.sched.scheduler import Scheduler  # pyright: ignore[reportMissingImports]

    assert type(host("vtc", 30, BLOCK, 4, 40).core) is not Scheduler
    monkeypatch.setenv("BATCHWRIGHT_VLLM", "off")
    switched = host("no such policy", 30, BLOCK, 4, 40)
    assert type(switched.core) is Scheduler
    run = Run(switched)
    rows = load(4, 4)
    for row in rows:
        offer(run, row)
    run.finish()
    for name, prompt, max_tokens, _, ignore_eos in rows:
        assert run.told[name] == answer(prompt, max_tokens, ignore_eos=ignore_eos)


@pytest.mark.parametrize("kind", ["host", "stock"])
def test_who_is_ended_by_a_string_is_told_from_who_left(kind: str) -> None:
    from batchwright_backends.vllm.stop_text import stopped_of

    class Tokenizer:
        @staticmethod
        def decode(token_ids: list[int], skip_special_tokens: bool) -> str:
            assert skip_special_tokens
            return " ".join(map(str, token_ids))

    run = ours("vllm_v1", 60, 4, 64) if kind == "host" else stock(60, 4, 64)
    run.core.structured_output_manager.tokenizer = Tokenizer
    prompt = [5, 6, 7]
    third = answer(prompt, 3, ignore_eos=True)[-1]
    for name, stops in (("stops", [f" {third}"]), ("leaves", ["never"]), ("plain", [])):
        run.add(name, prompt, 20, ignore_eos=True, stop=stops)
    for _ in range(3):
        run.step()
    assert stopped_of(run.core, ["stops", "leaves", "plain", "nobody"]) == ["stops"]
    del run.core.structured_output_manager.tokenizer
    assert stopped_of(run.core, ["stops"]) == []
