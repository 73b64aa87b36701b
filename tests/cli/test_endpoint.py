"""Running servers as arms of the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="endpoints need aiohttp: pip install 'batchwright[endpoint]'")

from endpoint_server import Behaviour, OpenAIServer, serving

from .conftest import Cli

LOAD = ["--workload", "synthetic:rate=200,n=12,prompt=uniform(20,60),output=uniform(2,9),seed=3"]


@pytest.fixture(scope="module")
def shared_server() -> Iterator[OpenAIServer]:
    with serving() as server:
        yield server


@pytest.fixture
def server(shared_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> OpenAIServer:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    shared_server.behaviour = Behaviour()
    shared_server.bodies.clear()
    return shared_server


@pytest.fixture(scope="module")
def absent() -> str:
    """Where nobody is."""
    with serving() as server:
        return server.url


def runs(path: str = "out.json") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(Path(path).read_text())["runs"]
    return found


def test_run(cli: Cli, server: OpenAIServer) -> None:
    answer = cli("run", server.url, *LOAD, "--json", "out.json")
    assert answer.code == 0, answer.err
    (run,) = runs()
    assert run["arm"] == f"127.0.0.1:{server.port}" and run["backend"] == f"{server.url}#tiny"
    assert [r["status"] for r in run["requests"]] == ["finished"] * 12
    assert "an endpoint: latencies include HTTP" in " ".join(answer.out.split())


def test_ab_beside_an_engine_gets_the_same_prompts(cli: Cli, server: OpenAIServer) -> None:
    args = ["mine=stall_free", f"theirs={server.url}#tiny", *LOAD, "--set", "max_num_seqs=64", "--seed", "7"]
    answer = cli("ab", *args, "--json", "out.json")
    assert answer.code == 0, answer.err
    one, two = runs()
    assert (one["arm"], two["arm"]) == ("mine", "theirs")
    assert [o["prompt_hash"] for o in one["offered"]] == [o["prompt_hash"] for o in two["offered"]]
    assert one["settings"]["max_num_seqs"] == 64 and "max_num_seqs" not in two["settings"]
    assert one["seed"] == two["seed"] == 7
    assert "TTFT" in answer.out and "decisions differ" not in answer.out


def test_options_of_one_endpoint(cli: Cli, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "s3cret")
    args = [f"t={server.url}", *LOAD, "--arm-set", "t.backend_options.vocab_size=500", "--header", "X-Key: $MY_KEY"]
    assert cli("run", *args, "--json", "out.json").code == 0
    assert all(body["headers"]["x-key"] == "s3cret" for body in server.bodies)
    assert max(max(body["prompt"]) for body in server.bodies) < 500
    assert "s3cret" not in Path("out.json").read_text()


def test_an_endpoint_as_a_file_or_as_the_backend(
    cli: Cli, server: OpenAIServer, write: Callable[[str, str], Path]
) -> None:
    write("server.yaml", f"backend: {server.url}\nbackend_options: {{salt_cache: false}}\n")
    assert cli("run", "server.yaml", *LOAD).code == 0
    assert all("cache_salt" not in body for body in server.bodies)
    assert cli("run", "--backend", server.url, *LOAD, "--json", "out.json").code == 0
    assert runs()[0]["arm"] == f"127.0.0.1:{server.port}"


def test_a_server_that_is_not_there_fails_its_arm_alone(cli: Cli, absent: str) -> None:
    answer = cli("ab", "stall_free", f"gone={absent}#m", *LOAD, "--json", "out.json")
    assert answer.code == 1
    assert "warning: arm gone fails, and the others run: no server answers at" in answer.err
    assert f"GET {absent}/models" in answer.err
    assert "gone" in answer.err and "vllm serve m --port" in answer.err
    assert [run["arm"] for run in runs()] == ["stall_free"]
    assert "TTFT" in answer.out


def test_a_server_that_is_not_there_alone(cli: Cli, absent: str) -> None:
    answer = cli("run", absent, *LOAD)
    assert answer.code == 2
    assert answer.error.startswith(f"no server answers at {absent}")


def test_a_server_that_goes_away_keeps_the_rest(cli: Cli) -> None:
    with serving(Behaviour(die_after=2)) as server:
        answer = cli("ab", "stall_free", f"theirs={server.url}", *LOAD, "--json", "out.json")
    assert answer.code == 1
    one, two = runs()
    assert {r["status"] for r in one["requests"]} == {"finished"}
    assert "failed" in {r["status"] for r in two["requests"]} and len(two["requests"]) == 12
    assert "theirs lost its server" in " ".join(answer.out.split())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["run", "URL", "--set", "x=1"], "unknown setting 'x'"),
        (["run", "URL", "--arm-set", "A.max_num_seqs=8"], "max_num_seqs: URL is an endpoint, whose server has its own"),
        (["run", "vtc", "--backend", "URL"], "policy: URL is an endpoint"),
        (["run", "URL", "--arm-set", "A.backend_options.timeout=8"], "did you mean 'timeout_s'?"),
        (["run", "http://", "--limit", "3"], "there is no host"),
        (["run", "URL", "--header", "X-Key"], "Name: value"),
        (["run", "URL", "--record", "r.jsonl"], "--record r.jsonl: it holds what an engine does"),
        (["run", "URL", "--outputs", "o.jsonl"], "--outputs o.jsonl"),
        (["run", "URL", "--max-steps", "9"], "--max-steps 9: arm 127.0.0.1:PORT is an endpoint"),
        (["ab", "vtc", "URL", "--jobs", "2"], "runs in real time"),
        (["run", "vtc", "--header", "X-Key: a"], "--header is sent to endpoints, and no arm is one"),
        (["diff", "vtc", "URL"], "endpoint"),
        (["config", "show", "URL"], "is an endpoint"),
        (["run", "URL#other"], "no model 'other'; choices: tiny"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else "",
)
def test_what_cannot_be_had_of_an_endpoint(cli: Cli, server: OpenAIServer, args: list[str], words: str) -> None:
    def filled(text: str) -> str:
        return text.replace("URL", server.url).replace("PORT", str(server.port))

    answer = cli(*map(filled, args), *(LOAD if args[0] in ("run", "ab", "diff") and "--limit" not in args else ()))
    assert answer.code == 2, answer
    assert filled(words) in answer.error
