"""Endpoints in one table with an engine, and with each other."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("aiohttp", reason="endpoints need aiohttp: pip install 'batchwright[endpoint]'")

from batchwright.config import EngineConfig
from batchwright.lab import RunRecord, ab, compare, format_report, load_workload, run_arm
from batchwright.lab.summary import NOT_SEEN
from batchwright.request import SLO
from endpoint_server import OpenAIServer
from lab.endpoint.asking import LOAD, run


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
