"""``batchwright ab --agree``: two simulators that agree, two that do not, and what cannot be asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import SMALL, Cli

Write = Callable[[str, str], Path]

CROWD = "synthetic:rate=inf,n=160,prompt=64,output=48,seed=3"
"""With few blocks: either few run at once, or some are evicted and computed again."""

LAUNCHES = """
    model: llama-3.1-8b
    gpu: h100
    options: {host_step_s: 0.05}
    """
"""A step costs the same whatever is in it: whoever runs more at once wins, and recomputing is free."""

ARITHMETIC = """
    model: llama-3.1-8b
    gpu: {base: h100, gemm: {flops: 1.0e+12}}
    options: {host_step_s: 0.0}
    """
"""A token costs the same in whatever step: running more at once gains nothing, and recomputing is all that is lost."""


def agree(cli: Cli, backend: str, *args: object) -> tuple[int, str, dict[str, Any]]:
    answer = cli("ab", "vllm_v1", "no_evict", "--backend", backend, "--agree", *args, "--json", "out.json")
    assert not answer.err, answer.err
    return answer.code, answer.out, json.loads(Path("out.json").read_text())


ROOM = ("--workload", CROWD, "--set", "num_blocks=28", "--declared-max-tokens", "exact", "--primary", "mean_e2el_ms")


def test_two_machines_on_which_the_policies_differ_alike(cli: Cli, write: Write) -> None:
    write("one.yaml", LAUNCHES)
    write("two.yaml", LAUNCHES.replace("0.05", "0.09"))
    code, out, value = agree(cli, "sim:one.yaml,sim:two.yaml", *ROOM)
    assert code == 0
    found = {a["metric"]: a for a in value["agreements"]}
    assert found["mean_e2el_ms"]["sign"] == "agree"
    assert found["mean_e2el_ms"]["differences"][0]["verdict"] == "worse"
    assert not [a for a in value["agreements"] if a["tested"] and a["sign"] == "opposite"]
    assert "no_evict - vllm_v1" in out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert value["backends"] == ["sim:one.yaml", "sim:two.yaml"]


def test_two_machines_on_which_they_differ_the_other_way_round(cli: Cli, write: Write) -> None:
    write("one.yaml", LAUNCHES)
    write("two.yaml", ARITHMETIC)
    code, out, value = agree(cli, "sim:one.yaml, sim:two.yaml", *ROOM)
    found = {a["metric"]: a for a in value["agreements"]}["mean_e2el_ms"]
    assert [d["verdict"] for d in found["differences"]] == ["worse", "better"]
    assert (found["sign"], found["intervals_overlap"]) == ("opposite", False)
    assert code == 1
    assert "Mean E2EL (ms): the backends contradict each other on no_evict" in " ".join(out.split())


def test_every_arm_is_compared_with_the_first(cli: Cli, write: Write) -> None:
    write("one.yaml", LAUNCHES)
    args = ["--backend", "sim:one.yaml,sim:llama-3.1-8b@h100", "--agree", "--workload", SMALL, "--json", "out.json"]
    answer = cli("ab", "prefill_first", "vllm_v1", "mine=stall_free:chunk_size=64", *args)
    assert answer.code in (0, 1), answer.err
    value = json.loads(Path("out.json").read_text())
    assert {a["arm"] for a in value["agreements"]} == {"vllm_v1", "mine"}
    assert "mine - prefill_first" in answer.out and "vllm_v1 - prefill_first" in answer.out
    hashes = {r["prompt_hash"] for c in value["comparisons"] for run in c["runs"] for r in run["offered"]}
    assert len(hashes) == 12  # all four runs of each backend got the same prompts


def test_a_path_may_have_a_comma(cli: Cli, write: Write) -> None:
    write("a,b.yaml", LAUNCHES)
    write("c.yaml", LAUNCHES)
    code, _, value = agree(cli, "sim:a,b.yaml,sim:c.yaml", "--workload", SMALL, "--quiet")
    assert code == 0
    assert value["backends"] == ["sim:a,b.yaml", "sim:c.yaml"]


@pytest.mark.parametrize("backend", [None, "sim:llama-3.1-8b@h100", "sim:a.yaml,sim:a.yaml", "sim:a,sim:b,sim:c"])
def test_two_backends_are_needed(cli: Cli, backend: str | None) -> None:
    args = ["--backend", backend] if backend else []
    error = cli("ab", "prefill_first", "vllm_v1", "--agree", *args).error
    assert "--agree holds two backends to each other" in error
    assert "sim:llama-3.1-8b@h100,cpu:smollm2-135m" in error


def test_arms_bring_no_backend_of_their_own(cli: Cli, write: Write) -> None:
    write("own.yaml", "policy: vllm_v1\nbackend: sim:llama-3.1-8b@a100\n")
    args = ["--backend", "sim:llama-3.1-8b@h100,sim:llama-3.1-8b@h200", "--agree", "--workload", SMALL]
    error = cli("ab", "prefill_first", "own.yaml", *args).error
    assert error.startswith("arm B runs on sim:llama-3.1-8b@a100")
    assert "leave backend out" in error


def test_two_backends_without_agree_are_told_what_to_add(cli: Cli) -> None:
    answer = cli("ab", "prefill_first", "vllm_v1", "--backend", "sim:llama-3.1-8b@h100,sim:llama-3.1-8b@h200")
    assert answer.code == 2
    assert "--agree" in answer.error
