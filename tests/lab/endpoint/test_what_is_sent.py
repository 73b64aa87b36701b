"""An endpoint as an arm: what is sent and recorded, with a real HTTP server that streams in OpenAI's format."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="endpoints need aiohttp: pip install 'batchwright[endpoint]'")

from batchwright.config import EngineConfig
from batchwright.errors import WorkloadError
from batchwright.lab import RunRecord, load_workload, run_arm
from batchwright.lab.endpoint.server import VOCAB_SIZE
from endpoint_server import Behaviour, OpenAIServer
from lab.endpoint.asking import LOAD, notes, rows, run, statuses


def test_the_same_requests_as_an_engine_gets(server: OpenAIServer) -> None:
    found = run(server, seed=5)
    engine = run_arm(EngineConfig(max_model_len=4096), load_workload(LOAD), seed=5, vocab_size=VOCAB_SIZE)
    assert found.offered == engine.offered
    for ours, theirs in zip(found.requests, engine.requests, strict=True):
        assert (ours.status, ours.finish_reason) == ("finished", "trace")
        assert ours.num_output_tokens == theirs.num_output_tokens
        assert len(ours.token_times_ns) == ours.num_output_tokens
        assert ours.num_prompt_tokens == theirs.num_prompt_tokens
        assert ours.arrival_ns == theirs.arrival_ns <= ours.token_times_ns[0]
        assert list(ours.token_times_ns) == sorted(ours.token_times_ns)
        assert ours.finish_ns == ours.token_times_ns[-1]
        assert ours.first_scheduled_ns is None
    assert not found.steps and not found.batches
    assert found.stopped is None and found.duration_ns >= max(r.finish_ns or 0 for r in found.requests)


def test_what_is_sent(server: OpenAIServer) -> None:
    run(server)
    warm_up, *bodies = server.bodies
    assert len(warm_up["prompt"]) == 4 and max(warm_up["prompt"]) == VOCAB_SIZE - 1
    assert len(bodies) == 10
    for body in bodies:
        assert body["path"] == "/v1/completions" and body["model"] == "tiny"
        assert body["ignore_eos"] is True and body["stream"] is True and body["temperature"] == 0
        assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
        assert "min_tokens" not in body and "priority" not in body
        assert all(0 <= token < VOCAB_SIZE for token in body["prompt"])
    (salt,) = {body["cache_salt"] for body in server.bodies}
    server.bodies.clear()
    run(server)
    assert {body["cache_salt"] for body in server.bodies} != {salt}


def test_a_server_that_is_neither_vllm_nor_sglang_is_told_the_least_length_too(server: OpenAIServer) -> None:
    server.behaviour = Behaviour(owned_by="somebody", version=None)
    run(server)
    assert all(body["min_tokens"] == body["max_tokens"] for body in server.bodies)


def test_options_reach_the_server(server: OpenAIServer) -> None:
    workload = rows(
        {"num_prompt_tokens": 5, "num_output_tokens": 2, "priority": 3, "client_id": "a"},
        {"num_prompt_tokens": 5, "num_output_tokens": 2},
    )
    values = {"priority": True, "client_header": "X-Client", "body": {"lora": 1}, "salt_cache": False, "vocab_size": 99}
    found = run(server, workload, values={**values, "headers": {"X-More": "m"}})
    one, two = server.bodies[1:]
    assert (one["priority"], two["priority"]) == (3, 0)
    assert one["headers"]["x-client"] == "a" and "x-client" not in two["headers"]
    assert one["headers"]["x-more"] == "m" and one["lora"] == 1 and "cache_salt" not in one
    assert max(one["prompt"]) < 99
    assert found.settings["endpoint"]["headers"] == ["X-More"]
    assert "earlier runs" in notes(found)


def test_text_and_conversations(server: OpenAIServer) -> None:
    workload = rows(
        {"prompt": "Name a river", "max_tokens": 3},
        {"prompt": {"messages": [{"role": "user", "content": "Hello there"}], "tools": []}, "max_tokens": 4},
        {"prompt": [4, 5, 6], "num_prompt_tokens": 3, "num_output_tokens": 2},
        {"prompt": {"prompt_token_ids": [7, 8]}, "num_prompt_tokens": 2, "num_output_tokens": 1},
        {"prompt": {"prompt": "Two words"}},
        {"prompt": {"messages": [{"role": "user", "content": "as long as you like"}]}},
    )
    found = run(server, workload)
    assert statuses(found) == ["finished"] * 6
    assert [r.num_prompt_tokens for r in found.requests] == [3, 2, 3, 2, 2, 5]
    sent = {str(body.get("prompt") or body["messages"]): body for body in server.bodies}
    assert sent["Name a river"]["max_tokens"] == 3 and "ignore_eos" not in sent["Name a river"]
    chat = sent["[{'role': 'user', 'content': 'Hello there'}]"]
    assert chat["path"] == "/v1/chat/completions" and chat["tools"] == []
    assert sent["[4, 5, 6]"]["ignore_eos"] is True
    assert sent["Two words"]["max_tokens"] == 4096 - len("Two words")
    assert "max_tokens" not in sent["[{'role': 'user', 'content': 'as long as you like'}]"]
    assert [o.prompt_hash == "" for o in found.offered] == [True, True, False, False, True, True]


def test_a_conversation_that_is_none_is_refused_before_anything_is_sent(server: OpenAIServer) -> None:
    with pytest.raises(WorkloadError, match="line 3: messages is empty"):
        run(server, rows({"prompt": {"messages": []}, "place": "line 3"}))
    long = rows({"prompt": "x" * 5000, "place": "line 4"})
    with pytest.raises(WorkloadError, match="line 4: its prompt may fill the model's 4,096 tokens"):
        run(server, long)
    assert len(server.bodies) <= 2


def test_clients_that_give_up(server: OpenAIServer) -> None:
    server.behaviour = Behaviour(stall_after=5)
    workload = rows(
        {"num_prompt_tokens": 5, "num_output_tokens": 50, "abort_after_tokens": 3},
        {"num_prompt_tokens": 5, "num_output_tokens": 50, "abort_after_s": 0.2},
        {"num_prompt_tokens": 5, "num_output_tokens": 4, "abort_after_s": 60.0},
    )
    found = run(server, workload)
    assert statuses(found) == ["aborted", "aborted", "finished"]
    assert [r.finish_reason for r in found.requests] == ["abort", "abort", "trace"]
    assert found.requests[0].num_output_tokens >= 3 and found.requests[1].num_output_tokens == 5
    wait_until(lambda: not server.num_blocks_held, "blocks of aborted requests are held")


def wait_until(done: Any, otherwise: str) -> None:
    for _ in range(500):
        if done():
            return
        time.sleep(0.02)
    raise AssertionError(otherwise)


def test_a_closed_loop(server: OpenAIServer) -> None:
    workload = load_workload("synthetic:rate=inf,n=12,prompt=20,output=5").closed(3)
    found = run(server, workload)
    assert statuses(found) == ["finished"] * 12
    changes = sorted(change for r in found.requests for change in ((r.arrival_ns, 1), (r.finish_ns or 0, -1)))
    under_way, most = 0, 0
    for _, change in changes:
        under_way += change
        most = max(most, under_way)
    assert most == 3
    assert [r.request_id for r in found.requests] == [f"r{i:06d}" for i in range(12)]


def test_turns_follow_each_other(server: OpenAIServer) -> None:
    found = run(
        server,
        rows(
            {"num_prompt_tokens": 5, "num_output_tokens": 4, "row_id": "a"},
            {"num_prompt_tokens": 9, "num_output_tokens": 2, "after": ("a",), "think_s": 0.05},
        ),
    )
    one, two = found.requests
    assert one.finish_ns is not None and two.arrival_ns >= one.finish_ns + 50_000_000


def test_a_run_that_is_cut_by_time(server: OpenAIServer) -> None:
    server.behaviour = Behaviour(stall_after=2)
    workload = rows(
        {"num_prompt_tokens": 5, "num_output_tokens": 9},
        {"num_prompt_tokens": 5, "num_output_tokens": 9, "arrival_ns": 10**12},
    )
    found = run(server, workload, max_seconds=0.3)
    assert found.stopped == "max_seconds"
    assert statuses(found) == ["unfinished", "unfinished"]
    assert found.requests[0].num_output_tokens == 2
    assert [o.request_id for o in found.offered] == ["r000000", "r000001"]


def test_ctrl_c_keeps_what_is_done(server: OpenAIServer) -> None:
    server.behaviour = Behaviour(stall_after=4)
    workload = rows({"num_prompt_tokens": 5, "num_output_tokens": 2}, {"num_prompt_tokens": 5, "num_output_tokens": 9})

    def press() -> None:
        wait_until(lambda: len(server.bodies) >= 3, "nothing was sent")
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    found = run(server, workload)
    thread.join()
    assert found.stopped == "interrupted"
    assert statuses(found) == ["finished", "unfinished"]


def test_progress_is_told(server: OpenAIServer) -> None:
    told: list[tuple[str, int, int]] = []
    run(server, progress=lambda *args: told.append(args))
    assert told[-1] == ("server", 10, 10)


def test_in_a_notebook_where_a_loop_runs(server: OpenAIServer) -> None:
    async def cell() -> RunRecord:
        return run(server)

    assert statuses(asyncio.run(cell())) == ["finished"] * 10
