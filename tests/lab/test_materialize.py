"""Prompts and declared limits."""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchwright.errors import WorkloadError
from batchwright.lab import Workload, WorkloadRow, load_workload, materialize, offers
from batchwright.lab.materialize import describe_declared
from batchwright.lab.prompts import Prompts
from batchwright.request import SLO
from lab.test_readers import trace

VOCAB = 32000


def workload(*rows: WorkloadRow) -> Workload:
    return Workload("w", rows, "w")


def prompts(load: Workload, vocab_size: int = VOCAB, seed: int = 0) -> list[list[int]]:
    return [list(r.prompt_token_ids) for r, _ in materialize(load, vocab_size, 10**6, seed=seed)]


def test_requests_carry_the_row() -> None:
    row = WorkloadRow(
        arrival_ns=2_500_000_000,
        num_prompt_tokens=12,
        num_output_tokens=7,
        max_tokens=30,
        priority=3,
        client_id="c",
        weight=2.0,
        deadline_s=4.0,
        slo=SLO(1.0, 0.1),
        predicted_output_tokens=9,
        session_id="s",
        program_id="p",
    )
    (offer,) = offers(workload(row), VOCAB, 1000, start_ns=10_000_000_000)
    request = offer.request
    assert request.request_id == "r000000"
    assert request.arrival_ns == 12_500_000_000
    assert request.deadline_s == 16.5  # of the engine's clock
    assert request.num_prompt_tokens == 12
    for name in ("priority", "client_id", "weight", "slo", "predicted_output_tokens", "session_id", "program_id"):
        assert getattr(request, name) == getattr(row, name)
    params = request.sampling_params
    assert (params.max_tokens, params.temperature, params.ignore_eos) == (30, 0.0, True)
    assert offer.num_output_tokens == 7
    (offer,) = offers(workload(row), VOCAB, 1000, respect_eos=True)
    assert not offer.request.sampling_params.ignore_eos


@pytest.mark.parametrize(("declared", "limit"), [("exact", 7), ("model", 988), (64, 64), ("64", 64)])
def test_the_rule_for_declared_limits(declared, limit) -> None:
    rows = (WorkloadRow(0, 12, 7), WorkloadRow(0, 12, 7, max_tokens=5))
    got = [r.sampling_params.max_tokens for r, _ in materialize(workload(*rows), VOCAB, 1000, declared)]
    assert got == [limit, 5]


def test_a_prompt_that_fills_the_model_still_becomes_a_request() -> None:
    rows = [WorkloadRow(0, n, 7) for n in (999, 1000, 1001)]
    assert [r.sampling_params.max_tokens for r, _ in materialize(workload(*rows), VOCAB, 1000, "model")] == [1, 1, 1]


@pytest.mark.parametrize("declared", ["exakt", 0, -1, "1.5", True, "", 2.5])
def test_an_unknown_rule(declared) -> None:
    with pytest.raises(WorkloadError, match="expected exact, model or a whole number of at least 1"):
        list(materialize(workload(WorkloadRow(0, 1, 1)), VOCAB, 10, declared))


def test_the_rule_in_words() -> None:
    bare, own = WorkloadRow(0, 1, 1), WorkloadRow(0, 1, 1, max_tokens=1)
    assert describe_declared("exact", workload(bare)).startswith("exact: the true output length, which policies can")
    assert describe_declared("model", workload(bare)) == "model: all that model and KV pool allow"
    assert describe_declared("64", workload(bare)) == "64 tokens"
    assert describe_declared(64, workload(own, bare)) == "by 1 of 2 rows, the others 64 tokens"
    assert describe_declared("exact", workload(own)) == "by the workload's rows"


def test_prompts_are_the_same_each_time_and_follow_seed_and_vocabulary() -> None:
    load = load_workload("synthetic:n=20,prompt=uniform(5,50),prefix=8,prefixes=2")
    base = prompts(load)
    assert prompts(load) == base
    assert prompts(load.faster(3)) == base
    assert prompts(load, seed=1) != base
    assert prompts(load, vocab_size=1000) != base
    hashes = [o.prompt_hash for o in offers(load, VOCAB, 1000)]
    assert hashes == [o.prompt_hash for o in offers(load, VOCAB, 5000, "exact", start_ns=5)]
    assert len(set(hashes)) == 20


def test_tokens_are_spread_over_the_vocabulary() -> None:
    tokens = np.concatenate([np.array(p[2:]) for p in prompts(load_workload("synthetic:n=50,prompt=2000"), 1000)])
    assert tokens.min() == 0
    assert tokens.max() == 999
    counts = np.bincount(tokens, minlength=1000)
    expected = len(tokens) / 1000
    assert ((counts - expected) ** 2 / expected).sum() < 1200  # chi-square, 999 degrees of freedom: 1143 at 0.1%


def test_equal_ids_are_equal_tokens_and_only_they() -> None:
    rows = (
        WorkloadRow(0, 1400, 1, prefix_ids=(0, 1, 2), prefix_block_size=512),
        WorkloadRow(0, 1400, 1, prefix_ids=(0, 1, 3), prefix_block_size=512),
        WorkloadRow(0, 600, 1, prefix_ids=(0, 9), prefix_block_size=512),
        WorkloadRow(0, 1200, 1, prefix_ids=(0, 1), prefix_block_size=512),
        WorkloadRow(0, 1400, 1),
    )
    a, b, c, d, e = prompts(workload(*rows))
    assert a[:1024] == b[:1024] == d[:1024]
    assert a[:512] == c[:512]
    assert a[1024:1040] != b[1024:1040]
    assert a[1024:1040] != d[1024:1040]
    assert a[512:528] != c[512:528]
    assert a[:16] != e[:16]
    assert [len(p) for p in (a, b, c, d, e)] == [1400, 1400, 600, 1200, 1400]


def test_a_prefix_may_stand_at_any_place() -> None:
    rows = (
        WorkloadRow(0, 20, 1, prefix_ids=(5, 6), prefix_block_size=8),
        WorkloadRow(0, 20, 1, prefix_ids=(6, 5), prefix_block_size=8),
    )
    a, b = prompts(workload(*rows))
    assert a[:8] == b[8:16]
    assert a[8:16] == b[:8]


ROWS = st.builds(
    lambda n, ids: WorkloadRow(0, n, 1, prefix_ids=tuple(ids), prefix_block_size=4 if ids else 0),
    st.integers(1, 30),
    st.lists(st.integers(0, 6), max_size=5),
)


@given(st.lists(ROWS, min_size=1, max_size=30), st.sampled_from([2, 3, 50, VOCAB]), st.integers(0, 5))
@settings(max_examples=100, deadline=None)
def test_rows_share_exactly_the_described_prefix(rows, vocab_size, seed) -> None:
    """Up to the few tokens in which two streams are certain to part."""
    maker = Prompts(rows, vocab_size, seed)
    made = [maker.token_ids(i, row).tolist() for i, row in enumerate(rows)]
    for i, (a, row_a) in enumerate(zip(made, rows, strict=True)):
        assert len(a) == row_a.num_prompt_tokens
        assert all(0 <= t < vocab_size for t in a)
        for b, row_b in zip(made[:i], rows[:i], strict=True):
            same = 0
            for x, y in zip(row_a.prefix_ids, row_b.prefix_ids, strict=False):
                if x != y:
                    break
                same += 4
            same = min(same, len(a), len(b))
            assert a[:same] == b[:same]
            # A stream of its own may be cut short: by the end of a block of 4, or of the prompt.
            room = min(len(a), len(b), 4 * -(-(same + 1) // 4)) - same
            if room >= maker.num_distinct:
                assert a[same : same + room] != b[same : same + room]


def test_a_vocabulary_of_one_token_cannot_tell_prompts_apart() -> None:
    with pytest.raises(WorkloadError, match="vocab_size must be at least 2"):
        prompts(workload(WorkloadRow(0, 1, 1)), 1)


def test_rows_check_themselves() -> None:
    good = WorkloadRow(0, 1, 1)
    for name, value in [
        ("arrival_ns", -1),
        ("num_prompt_tokens", 0),
        ("num_output_tokens", 0),
        ("max_tokens", 0),
        ("prefix_ids", (1,)),
        ("weight", 0),
        ("weight", float("nan")),
    ]:
        with pytest.raises(WorkloadError, match=r"at least|above"):
            dataclasses.replace(good, **{name: value})


def test_the_mooncake_trace_shares_what_its_hashes_say() -> None:
    """Hits of an unbounded prefix cache, found in the tokens: 36.6% over the whole trace by its hashes."""
    load = load_workload(trace("mooncake_conversation_trace.jsonl"), limit=1500)
    seen: set[tuple[int, ...]] = set()
    ids: set[int] = set()
    by_tokens = by_hashes = 0
    contents: dict[int, set[bytes]] = defaultdict(set)
    maker = Prompts(load.rows, VOCAB)
    for index, row in enumerate(load.rows):
        tokens = maker.token_ids(index, row)
        chain: tuple[int, ...] = ()
        for place, prefix_id in enumerate(row.prefix_ids):
            block = tokens[place * 512 : place * 512 + 512]
            if len(block) < 512:
                break
            contents[prefix_id].add(block.tobytes())
            chain = (hash((chain, block.tobytes())),)
            by_tokens += chain in seen
            by_hashes += prefix_id in ids
            seen.add(chain)
            ids.add(prefix_id)
    assert by_tokens == by_hashes > 1000
    assert all(len(found) == 1 for found in contents.values())
    assert len({next(iter(found)) for found in contents.values()}) == len(contents)
