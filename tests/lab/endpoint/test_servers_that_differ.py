"""Endpoints that speak the format in ways of their own."""

from __future__ import annotations

import pytest

pytest.importorskip("aiohttp", reason="endpoints need aiohttp: pip install 'batchwright[endpoint]'")

from batchwright.errors import WorkloadError
from batchwright.lab import load_workload
from endpoint_server import ALL, Behaviour, OpenAIServer
from lab.endpoint.asking import notes, rows, run, statuses


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
