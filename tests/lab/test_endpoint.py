"""An endpoint as an arm, against a real HTTP server that streams in OpenAI's format, with our own engine behind it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="endpoints need aiohttp: pip install 'batchwright[endpoint]'")

from batchwright.config import EngineConfig
from batchwright.errors import BackendError, ConfigError, WorkloadError
from batchwright.lab import RunRecord, Workload, WorkloadRow, ab, compare, format_report, load_workload, run_arm
from batchwright.lab.endpoint.run import probe
from batchwright.lab.endpoint.server import VOCAB_SIZE
from batchwright.lab.summary import NOT_SEEN
from batchwright.request import SLO
from endpoint_server import ALL, Behaviour, OpenAIServer, serving

LOAD = "synthetic:rate=200,n=10,prompt=uniform(20,60),output=uniform(2,9),seed=3"


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture(scope="module")
def shared_server() -> Iterator[OpenAIServer]:
    with serving() as server:
        yield server


@pytest.fixture
def server(shared_server: OpenAIServer) -> OpenAIServer:
    """One server for all, that behaves."""
    shared_server.behaviour = Behaviour()
    shared_server.bodies.clear()
    shared_server.num_closed = 0
    return shared_server


def run(
    server: OpenAIServer, load: str | Workload = LOAD, *, values: dict[str, Any] | None = None, **options: Any
) -> RunRecord:
    config = EngineConfig(backend=server.url, backend_options=values or {})
    workload = load_workload(load) if isinstance(load, str) else load
    return run_arm(config, workload, arm="server", **options)


def rows(*given: dict[str, Any]) -> Workload:
    made = tuple(
        WorkloadRow(**{"arrival_ns": 0, "num_prompt_tokens": None, "num_output_tokens": None, **one}) for one in given
    )
    return Workload("rows", made, "rows")


def statuses(found: RunRecord) -> list[str]:
    return [r.status for r in found.requests]


def notes(found: RunRecord) -> str:
    return "\n".join(found.notes)


# What is sent and what is recorded ------------------------------------------------------------------------------


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


# Servers that differ --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", [1, 7])
def test_events_that_are_cut_on_the_way(server: OpenAIServer, split: int) -> None:
    server.behaviour = Behaviour(split=split)
    assert statuses(run(server, "synthetic:rate=inf,n=3,prompt=9,output=4")) == ["finished"] * 3


def test_several_tokens_in_a_chunk(server: OpenAIServer) -> None:
    server.behaviour = Behaviour(per_chunk=4)
    found = run(server, "synthetic:rate=inf,n=3,prompt=9,output=10")
    for request in found.requests:
        times = list(request.token_times_ns)
        assert len(times) == 10
        assert len(set(times[:4])) == len(set(times[4:8])) == len(set(times[8:])) == 1
    assert "put several tokens into 9 of 9 chunks" in notes(found)
    assert "by chunks, as vllm bench serve counts" in notes(found)


def test_several_tokens_in_a_chunk_that_nobody_counts(server: OpenAIServer) -> None:
    server.behaviour = Behaviour(per_chunk=4, takes=frozenset({"ignore_eos", "stream_options"}))
    found = run(server, "synthetic:rate=inf,n=3,prompt=9,output=10")
    assert [r.num_output_tokens for r in found.requests] == [10, 10, 10]
    assert found.settings["endpoint"]["requests"] == "lean"
    assert "3 answers had more or fewer tokens than chunks" in notes(found)


def test_a_server_that_takes_nothing_but_the_plain_format(server: OpenAIServer) -> None:
    server.behaviour = Behaviour(takes=frozenset(), owned_by="", version=None, has_metrics=False)
    found = run(server)
    assert statuses(found) == ["finished"] * 10
    assert found.settings["endpoint"]["requests"] == "plain"
    assert all(not ALL & set(body) for body in server.bodies)
    assert "takes neither ignore_eos nor stream_options" in notes(found)
    assert "earlier runs" in notes(found)


@pytest.mark.parametrize(("has_completions", "path"), [(True, "/v1/completions"), (False, "/v1/chat/completions")])
def test_a_server_that_takes_no_token_ids(server: OpenAIServer, has_completions: bool, path: str) -> None:
    server.behaviour = Behaviour(takes_ids=False, has_completions=has_completions)
    workload = load_workload("synthetic:rate=inf,n=6,prompt=12,output=4,prefix=30,prefixes=2,seed=1")
    found = run(server, workload)
    assert statuses(found) == ["finished"] * 6
    assert [r.num_output_tokens for r in found.requests] == [4] * 6
    assert {body["path"] for body in server.bodies} == {path}
    texts = [body.get("prompt") or body["messages"][0]["content"] for body in server.bodies[1:]]
    assert all(len(text.split()) == 42 for text in texts)
    assert len({" ".join(text.split()[:30]) for text in texts}) == 2 and len(set(texts)) == 6
    assert "takes no token ids" in notes(found)
    with pytest.raises(WorkloadError, match="it brings token ids"):
        run(server, rows({"prompt": [1, 2], "num_prompt_tokens": 2, "num_output_tokens": 1}))


def test_chat_by_choice(server: OpenAIServer) -> None:
    found = run(server, values={"api": "chat"})
    assert {body["path"] for body in server.bodies} == {"/v1/chat/completions"}
    assert found.settings["endpoint"]["made_up_prompts"] == "messages"


def test_a_proxy_that_buffers_is_told_of(server: OpenAIServer) -> None:
    server.behaviour = Behaviour(buffers=True)
    found = run(server)
    assert statuses(found) == ["finished"] * 10
    assert "came all at one moment" in notes(found)


def test_what_the_server_counts_itself(server: OpenAIServer) -> None:
    server.behaviour = Behaviour(hits=4)
    found = run(server)
    assert f"server, its own counters ({server.url[:-3]}/metrics): 5 preemptions" in notes(found)
    assert "prefix-cache hits for 40.0% of 100 prompt tokens, 250.0 ms in its queue" in notes(found)
    assert "somebody else" not in notes(found)
    server.behaviour = Behaviour(running=2)
    assert "at work for somebody else" in notes(run(server))
    assert "counters" not in notes(run(server, values={"read_metrics": False}))


def test_notes_say_what_an_endpoint_is(server: OpenAIServer) -> None:
    text = notes(run(server))
    assert "server is an endpoint (vLLM 0.32.0): its latencies are this client's, HTTP included" in text
    assert "was sent the true length of each answer as max_tokens" in text
    assert "true length" not in notes(run(server, rows({"prompt": "a b", "max_tokens": 3})))


# What goes wrong ------------------------------------------------------------------------------------------------


def test_nobody_there() -> None:
    with serving() as server:
        url = server.url
    with pytest.raises(BackendError) as error:
        probe(EngineConfig(backend=f"{url}#mine"))
    words = str(error.value)
    assert f"no server answers at {url}: GET {url}/models: " in words
    assert f"vllm serve mine --port {server.port}" in words


def test_something_else_is_there(server: OpenAIServer) -> None:
    with pytest.raises(BackendError, match=r"is no OpenAI-compatible server.*HTTP 404: Not Found"):
        probe(EngineConfig(backend=f"{server.url}/elsewhere"))


def test_models(server: OpenAIServer) -> None:
    server.behaviour = Behaviour(models=("tiny", "large"))
    with pytest.raises(BackendError, match=r"has 2 models: tiny, large; name one, as in http://.*#tiny"):
        probe(EngineConfig(backend=server.url))
    with pytest.raises(BackendError, match=r"no model 'tinny'; did you mean 'tiny'\? \(it has tiny, large\)"):
        probe(EngineConfig(backend=f"{server.url}#tinny"))
    assert probe(EngineConfig(backend=f"{server.url}#large")).model == "large"
    server.behaviour = Behaviour(models=())
    with pytest.raises(BackendError, match="has no model loaded"):
        probe(EngineConfig(backend=server.url))


def test_keys(server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.behaviour = Behaviour(key="k3y")
    with pytest.raises(BackendError, match=r"lets nobody in without a key.*HTTP 401: Unauthorized; set OPENAI_API_KEY"):
        probe(EngineConfig(backend=server.url))
    monkeypatch.setenv("OPENAI_API_KEY", "k3y")
    assert statuses(run(server)) == ["finished"] * 10
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.setenv("OTHER", "k3y")
    assert statuses(run(server, values={"headers": {"Authorization": "Bearer $OTHER"}})) == ["finished"] * 10


def test_a_server_that_does_not_stream(server: OpenAIServer) -> None:
    server.behaviour = Behaviour(streams=False)
    with pytest.raises(BackendError, match=r"does not stream: POST .*/v1/completions: its answer is application/json"):
        run(server)


def test_a_server_that_takes_nothing(server: OpenAIServer) -> None:
    server.behaviour = Behaviour(models=("tiny",), takes_ids=False, has_completions=False)
    with pytest.raises(BackendError, match=r"takes no request of ours; tried token ids to /completions: HTTP 404"):
        run(server, values={"api": "completions"})


@pytest.mark.parametrize("is_late", [False, True])
def test_token_ids_beyond_the_vocabulary(server: OpenAIServer, is_late: bool) -> None:
    server.behaviour = Behaviour(vocab_size=300, is_late=is_late)
    with pytest.raises(BackendError, match=r"Token id 31999 is out of vocabulary.*backend_options.vocab_size"):
        run(server)
    assert statuses(run(server, values={"vocab_size": 300})) == ["finished"] * 10


def test_a_server_that_fails_in_the_warm_up(server: OpenAIServer) -> None:
    server.behaviour = Behaviour(status=500, words="CUDA error", healthy=0)
    with pytest.raises(BackendError, match=r"the warm-up failed: POST .*: HTTP 500: CUDA error"):
        run(server)


def changed(behaviour: Behaviour) -> str:
    """What is not as usual."""
    return "-".join(name for name, value in vars(behaviour).items() if value != vars(Behaviour())[name])


@pytest.mark.parametrize(
    ("behaviour", "status", "words"),
    [
        (Behaviour(status=500, words="CUDA error"), "failed", "HTTP 500: CUDA error"),
        (Behaviour(status=429, words="slow down"), "refused", "HTTP 429: slow down"),
        (Behaviour(cut_after=3), "failed", "the stream was cut after 3 tokens: "),
        (Behaviour(error_after=3), "failed", "EngineCore encountered an issue."),
        (Behaviour(stop_after=3), "failed", "the server ended it (stop) after 3 of 6 tokens"),
        (Behaviour(stop_after=3, reason="abort"), "failed", "the server ended it after 3 tokens: abort"),
        (Behaviour(stall_after=3), "failed", "the stream was cut after 3 tokens: timeout"),
    ],
    ids=lambda value: changed(value) if isinstance(value, Behaviour) else "",
)
def test_requests_that_fail(server: OpenAIServer, behaviour: Behaviour, status: str, words: str) -> None:
    server.behaviour = replace(behaviour, healthy=3)
    workload = load_workload("synthetic:rate=inf,n=5,prompt=9,output=6")
    found = run(server, workload.closed(1), values={"timeout_s": 0.3})
    assert statuses(found) == ["finished", "finished", *[status] * 3]
    for request in found.requests[2:]:
        assert request.error is not None and request.error.startswith(words)
        assert len(request.token_times_ns) == request.num_output_tokens
    assert found.stopped is None
    report = format_report(compare([found]), 200)
    assert f"3 {status} of 5 requests" in report and words in report


def test_prompts_that_are_too_long_are_refused_as_by_an_engine(server: OpenAIServer) -> None:
    workload = rows(
        {"num_prompt_tokens": 4095, "num_output_tokens": 1}, {"num_prompt_tokens": 5000, "num_output_tokens": 9}
    )
    found = run(server, workload)
    assert statuses(found) == ["finished", "refused"]
    assert found.requests[1].error == "HTTP 400: This model's maximum context length is 4096 tokens"


def test_answers_that_may_end_early(server: OpenAIServer) -> None:
    server.behaviour = Behaviour(stop_after=3)
    found = run(server, "synthetic:rate=inf,n=2,prompt=9,output=6", respect_eos=True)
    assert [(r.status, r.finish_reason, r.num_output_tokens) for r in found.requests] == [("finished", "stop", 3)] * 2


def test_a_server_that_goes_away() -> None:
    with serving(Behaviour(die_after=3)) as server:
        workload = rows(
            {"num_prompt_tokens": 9, "num_output_tokens": 6},
            {"num_prompt_tokens": 9, "num_output_tokens": 6, "arrival_ns": 10**13},
        )
        found = run(server, workload)
    assert found.stopped == "server_lost"
    assert statuses(found) == ["failed", "failed"]
    assert (found.requests[0].error or "").startswith("the stream was cut after 3 tokens")
    assert found.requests[0].num_output_tokens == 3
    assert f"never sent: the server at {server.url} stopped answering" in (found.requests[1].error or "")
    engine = run_arm(EngineConfig(), workload, arm="engine", vocab_size=VOCAB_SIZE)
    report = format_report(compare([engine, found]), 200)
    assert "server lost its server after" in report and "the rest failed" in report
    assert "2 failed of 2 requests" in report


@pytest.mark.parametrize(
    ("options", "word"),
    [({"max_steps": 3}, "max_steps"), ({"plugins": [object()]}, "plugins"), ({"on_engine": print}, "on_engine")],
)
def test_options_of_engines(server: OpenAIServer, options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=f"{word} cannot be had of http"):
        run(server, **options)


# Beside an engine -----------------------------------------------------------------------------------------------


def test_an_endpoint_in_the_table(server: OpenAIServer) -> None:
    workload = load_workload("synthetic:rate=200,n=40,prompt=uniform(20,60),output=uniform(2,9)", slo=SLO(ttft_s=9))
    arms = {"engine": EngineConfig(), "server": EngineConfig(backend=server.url)}
    comparison = ab(arms, workload)
    text = format_report(comparison, 200)
    assert f"server: {server.url}#tiny, an endpoint: latencies include HTTP" in text
    assert "engine: sim:llama-3.1-8b@h100" in text
    assert comparison.decisions_differ == {} and "decisions differ" not in text
    assert comparison.summaries["server"]["completed"] == 40
    for name in NOT_SEEN:
        assert comparison.summaries["server"][name] is None
        assert comparison.summaries["engine"][name] is not None
    assert comparison.verdict("mean_ttft_ms").interval is not None
    assert "endpoint.server" not in text.partition("Mean TTFT")[0]  # no table of what the others cannot have
    again = RunRecord.from_json(json.loads(json.dumps(comparison.runs[1].to_json())))
    assert again == comparison.runs[1] and again.is_endpoint


def test_two_endpoints_differ_in_their_settings(server: OpenAIServer) -> None:
    configs = {
        "one": EngineConfig(backend=server.url),
        "two": EngineConfig(backend=server.url, backend_options={"salt_cache": False}),
    }
    text = format_report(ab(configs, load_workload(LOAD)), 200)
    assert "endpoint.salt_cache" in text and "endpoint.requests" not in text


def test_arms_that_got_other_prompts_are_refused(server: OpenAIServer) -> None:
    from batchwright.errors import ComparisonError

    with pytest.raises(ComparisonError, match="prompts follow the vocabulary"):
        compare([run_arm(EngineConfig(), load_workload(LOAD)), run(server)])
