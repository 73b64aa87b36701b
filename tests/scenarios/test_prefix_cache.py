"""Scenarios C1 to C5: what the prefix cache gives, and what it must never give."""

from __future__ import annotations

from typing import Any

import pytest

from batchwright import prefix_index
from toolbox import CHUNKING, EVICTING, SHIPPED, expected_of, make_engine, make_request, play, prompt_of

shipped = pytest.mark.parametrize("policy", SHIPPED)
PREFIX = prompt_of("prefix", 12)


@pytest.mark.parametrize("policy", CHUNKING)
def test_c1_cached_tokens_do_not_count_against_the_budget(policy: str) -> None:
    engine, tape = make_engine(policy, bs=4, T=16)
    play(engine, [make_request("first", [*PREFIX, 1], 1)])
    play(engine, [make_request(str(i), PREFIX + prompt_of(str(i), 4), 2) for i in range(4)])
    assert tape.steps[1].batch == [(str(i), 4) for i in range(4)]
    assert tape.steps[1].cached == {str(i): 12 for i in range(4)}
    for request in tape.requests.values():
        assert request.output_token_ids == expected_of(request)


@shipped
def test_c2_the_last_block_is_never_taken_from_the_cache(policy: str) -> None:
    engine, tape = make_engine(policy, bs=4)
    play(engine, [make_request("first", PREFIX[:8], 1)])
    play(engine, [make_request("again", PREFIX[:8], 3)])
    assert tape.requests["again"].num_cached == 4
    assert tape.steps[1].batch == [("again", 4)]
    assert tape.requests["again"].output_token_ids == expected_of(tape.requests["again"])


@pytest.mark.parametrize("policy", EVICTING)  # others hold the blocks of the whole answer
@pytest.mark.parametrize("prompt", [3, 4, 5, 7, 8, 9])
def test_c3_block_edges(policy: str, prompt: int) -> None:
    # max_tokens 1 to 6 cross an edge with the first, a middle or the last token, or stop at it.
    for max_tokens in range(1, 7):
        need = -(-(prompt + max_tokens - 1) // 4)
        engine, tape = make_engine(policy, bs=4, P=need)  # not a block more than it needs
        request = make_request("a", prompt, max_tokens)
        engine.add_request(request)
        while engine.has_unfinished():
            before = request.num_tokens
            engine.scheduler.schedule()
            # The blocks are there before the step writes into them, and no block is taken a token too early.
            assert len(request.block_table) == -(-before // 4)
            batch = engine.scheduler._batch
            assert batch is not None
            engine.scheduler.update(batch, engine.backend.execute(batch).token_ids)
        assert tape.preemptions() == []
        assert request.num_output_tokens == max_tokens
        assert request.output_token_ids == expected_of(request)


@shipped
def test_c4_equal_blocks_behind_another_first_block(policy: str) -> None:
    tail = prompt_of("tail", 9)
    engine, tape = make_engine(policy, bs=4)
    play(engine, {0: [make_request("one", [1, 2, 3, 4, *tail], 4)], 2: [make_request("two", [1, 2, 3, 5, *tail], 4)]})
    play(engine, [make_request("one again", [1, 2, 3, 4, *tail], 4)])
    assert {i: r.num_cached for i, r in tape.requests.items()} == {"one": 0, "two": 0, "one again": 12}
    for request in tape.requests.values():
        assert request.output_token_ids == expected_of(request)


_hash = prefix_index.xxh3_64_intdigest
COLLIDING: dict[str, Any] = {
    "all equal": lambda data, seed=0: 7,
    "first blocks equal": lambda data, seed=0: 7 if not seed else _hash(data, seed),
    "two values": lambda data, seed=0: 8 + _hash(data, seed) % 2,
    "prefix forgotten": lambda data, seed=0: _hash(data),
}


@pytest.mark.parametrize("duplicates", ["newest", "oldest"])
@pytest.mark.parametrize("visible", ["computed", "scheduled"])
@pytest.mark.parametrize("collision", COLLIDING)
def test_c4_equal_hashes_of_other_tokens(
    monkeypatch: pytest.MonkeyPatch, collision: str, visible: str, duplicates: str
) -> None:
    monkeypatch.setattr(prefix_index, "xxh3_64_intdigest", COLLIDING[collision])
    engine, tape = make_engine(bs=4, prefix_cache={"visible": visible, "duplicates": duplicates})
    tail = prompt_of("tail", 9)
    one, two = [1, 2, 3, 4, *tail], [5, 6, 7, 8, *tail]
    arrivals = {
        3 * i: [make_request(f"{i}", prompt, 5)] for i, prompt in enumerate([one, two, one, two, tail, one, two, tail])
    }
    play(engine, arrivals)
    for request in tape.requests.values():
        assert request.output_token_ids == expected_of(request), f"{request} read what it did not write"
    assert any(r.num_cached for r in tape.requests.values()) or collision == "all equal"


@shipped
def test_c5_a_reused_block_is_no_hit(policy: str) -> None:
    engine, tape = make_engine(policy, bs=4, P=6)
    play(engine, [make_request("old", PREFIX, 1)])
    play(engine, [make_request("other", 23, 1)])  # takes all six blocks
    play(engine, [make_request("old again", PREFIX, 4)])
    assert tape.requests["old again"].num_cached == 0
    # Reused in part: what is left of the prefix still counts, and only that.
    play(engine, [make_request("most", 14, 1)])
    play(engine, [make_request("old once more", PREFIX, 4)])
    assert tape.requests["old once more"].num_cached in (0, 4, 8)
    for request in tape.requests.values():
        assert request.output_token_ids == expected_of(request)
