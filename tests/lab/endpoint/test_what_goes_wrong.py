"""Endpoints that are not there, refuse, fail or go away."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="endpoints need aiohttp: pip install 'batchwright[endpoint]'")

from batchwright.config import EngineConfig
from batchwright.errors import BackendError, ConfigError
from batchwright.lab import compare, format_report, load_workload, run_arm
from batchwright.lab.endpoint.run import probe
from batchwright.lab.endpoint.server import VOCAB_SIZE
from endpoint_server import Behaviour, OpenAIServer, serving
from lab.endpoint.asking import rows, run, statuses


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
