"""``batchwright ab``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import SMALL, TIGHT, Cli

Write = Callable[[str, str], Path]


def test_two_arms_side_by_side(cli: Cli) -> None:
    answer = cli("ab", "prefill_first", "stall_free:chunk_size=64", "--workload", SMALL)
    assert answer.code == 0, answer.err
    assert not answer.err  # no progress where nobody watches
    for words in ("prefill_first", "stall_free", "chunk_size", "Mean TTFT (ms)", "P99 ITL (ms)", "12 requests"):
        assert words in answer.out
    assert "decisions differ in" in answer.out.splitlines()[-1] or "decisions differ in" in answer.out.splitlines()[-2]
    assert all(len(line) <= 80 for line in answer.out.splitlines())
    assert "\x1b" not in answer.out


def test_a_policy_against_itself_shows_no_difference(cli: Cli) -> None:
    answer = cli("ab", "prefill_first", "prefill_first", "--workload", SMALL, "--json", "aa.json")
    assert answer.code == 0
    assert "prefill_first (A)" in answer.out
    assert "the arms have the same policy and settings" in " ".join(answer.out.split())
    result = json.loads(Path("aa.json").read_text())
    assert {v["verdict"] for v in result["verdicts"]} == {"no difference"}
    assert list(result["decisions_differ"].values()) == [0.0]


def test_json_holds_records_and_summary(cli: Cli) -> None:
    answer = cli("ab", "prefill_first", "vllm_v1", "stall_free", "--workload", SMALL, "--json", "out.json", "--quiet")
    assert answer.code == 0
    assert answer.out == answer.err == ""
    result = json.loads(Path("out.json").read_text())
    assert [run["arm"] for run in result["runs"]] == ["prefill_first", "vllm_v1", "stall_free"]
    assert list(result["summary"]) == ["prefill_first", "vllm_v1", "stall_free"]
    assert result["closing"]
    for run in result["runs"]:
        assert len(run["requests"]) == 12
        assert all(r["status"] == "finished" and r["token_times_s"] for r in run["requests"])
        assert run["steps"][0]["num_prefill_tokens"] > 0
        assert result["summary"][run["arm"]]["completed"] == 12
    offered = [run["offered"] for run in result["runs"]]
    assert offered[0] == offered[1] == offered[2]


def test_arms_are_files_policies_in_files_and_labels(cli: Cli, write: Write) -> None:
    write("slow.yaml", "policy: {use: stall_free, chunk_size: 32}\nmax_num_seqs: 3\n")
    write("quick.toml", 'policy = "vllm_v1"\n')
    write(
        "mine.py",
        """
        from batchwright import Policy, hookimpl

        class LastFirst(Policy):
            "Whoever came last."

            @hookimpl
            def admission(self, step):
                yield from reversed(list(step.waiting))
                yield step.running
        """,
    )
    args = ["slow.yaml", "quick.toml", "mine.py:LastFirst", "base=prefill_first"]
    answer = cli("ab", *args, "--workload", SMALL, "--json", "out.json")
    assert answer.code == 0, answer.err
    result = json.loads(Path("out.json").read_text())
    assert [run["arm"] for run in result["runs"]] == ["slow", "quick", "mine.py:LastFirst", "base"]
    assert [run["limits"]["max_num_seqs"] for run in result["runs"]] == [3, 256, 256, 256]
    assert result["runs"][0]["settings"]["policy"] == {"use": "stall_free", "chunk_size": 32}
    assert result["runs"][2]["policy"] == "LastFirst"


def test_arms_of_one_policy_are_told_apart(cli: Cli) -> None:
    args = ["stall_free:chunk_size=64", "stall_free:chunk_size=32", "vllm_v1:long_prefill_token_threshold=8"]
    cli("ab", *args, "--workload", SMALL, "--json", "out.json")
    runs = json.loads(Path("out.json").read_text())["runs"]
    assert [run["arm"] for run in runs] == ["stall_free:chunk_size=64", "stall_free:chunk_size=32", "vllm_v1"]


def test_set_is_for_every_arm_and_arm_set_for_one(cli: Cli) -> None:
    args = ["--set", "max_num_seqs=5", "--arm-set", "B.max_num_batched_tokens=64", "--arm-set", "x.block_size=32"]
    answer = cli("ab", "prefill_first", "stall_free", "x=vllm_v1", *args, "--workload", SMALL, "--json", "out.json")
    assert answer.code == 0, answer.err
    limits = [run["limits"] for run in json.loads(Path("out.json").read_text())["runs"]]
    assert [x["max_num_seqs"] for x in limits] == [5, 5, 5]
    assert [x["max_num_batched_tokens"] for x in limits] == [8192, 64, 8192]
    assert [x["block_size"] for x in limits] == [16, 16, 32]
    assert "max_num_batched_tokens" in answer.out  # the header says in what arms differ


def test_arm_set_by_a_label_with_dots_and_signs(cli: Cli) -> None:
    args = ["prefill_first", "stall_free:chunk_size=64", "stall_free:chunk_size=32"]
    answer = cli("ab", *args, "--arm-set", "stall_free:chunk_size=32.seed=7", "--workload", SMALL, "--json", "out.json")
    assert answer.code == 0, answer.err
    assert [run["settings"]["seed"] for run in json.loads(Path("out.json").read_text())["runs"]] == [0, 0, 7]


def test_the_load_is_told_and_faster_arrivals_are_used(cli: Cli) -> None:
    cli("ab", "prefill_first", "stall_free", "--workload", SMALL, "--speedup", 4, "--limit", 6, "--json", "out.json")
    result = json.loads(Path("out.json").read_text())
    slow = json.loads(cli_json(cli, SMALL))
    for fast_row, row in zip(result["runs"][0]["offered"], slow["runs"][0]["offered"][:6], strict=True):
        assert fast_row["arrival_s"] == pytest.approx(row["arrival_s"] / 4, abs=2e-9)
    assert result["runs"][0]["workload"]["speedup"] == 4


def cli_json(cli: Cli, workload: str) -> str:
    assert cli("run", "prefill_first", "--workload", workload, "--json", "one.json").code == 0
    return Path("one.json").read_text()


def test_goodput_counts_objectives_of_the_command_line(cli: Cli) -> None:
    args = ["--workload", TIGHT, "--set", "num_blocks=40", "--json", "out.json"]
    cli("ab", "prefill_first", "stall_free", *args, "--slo", "ttft=0.05,tpot=5")
    result = json.loads(Path("out.json").read_text())
    for run in result["runs"]:
        first = [r["token_times_s"][0] - r["arrival_s"] for r in run["requests"]]
        met = sum(t <= 0.05 for t in first)
        assert 0 < met < 12
        assert result["summary"][run["arm"]]["request_goodput"] == pytest.approx(met / run["duration_s"])


def test_the_seed_changes_prompts_of_all_arms_alike(cli: Cli) -> None:
    hashes = []
    for seed in (0, 0, 5):
        cli("ab", "prefill_first", "stall_free", "--workload", SMALL, "--seed", seed, "--json", "out.json", "-q")
        runs = json.loads(Path("out.json").read_text())["runs"]
        one, two = ([r["prompt_hash"] for r in run["offered"]] for run in runs)
        assert one == two
        assert {run["settings"]["seed"] for run in runs} == {seed}
        hashes.append(one)
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize(("rule", "expected"), [("exact", None), ("17", 17)])
def test_the_rule_for_declared_limits(cli: Cli, rule: str, expected: int | None) -> None:
    workload = SMALL.replace("uniform(2,12)", "uniform(2,12)")
    args = ["--workload", workload, "--declared-max-tokens", rule, "--json", "out.json"]
    assert cli("run", "prefill_first", *args).code == 0
    for row in json.loads(Path("out.json").read_text())["runs"][0]["offered"]:
        assert row["max_tokens"] == (row["num_output_tokens"] if expected is None else expected)


def test_ctrl_c_prints_what_there_is(cli: Cli, write: Write) -> None:
    write(
        "stop.py",
        """
        from batchwright import Policy, hookimpl

        class Stop(Policy):
            "Somebody presses Ctrl-C in step 5."

            @hookimpl
            def step_started(self, step):
                if step.index == 5:
                    raise KeyboardInterrupt
        """,
    )
    args = ["prefill_first", "stop.py:Stop", "stall_free", "--workload", SMALL, "--json", "out.json"]
    answer = cli("ab", *args)
    assert answer.code == 130
    assert not answer.err
    assert "interrupted" in answer.out
    runs = json.loads(Path("out.json").read_text())["runs"]
    assert [(run["arm"], run["stopped"], len(run["steps"])) for run in runs][1:] == [("stop.py:Stop", "interrupted", 5)]


def test_one_arm_is_not_a_comparison(cli: Cli) -> None:
    answer = cli("ab", "prefill_first")
    assert answer.code == 2
    assert "batchwright run prefill_first" in answer.error


def test_an_empty_arm_is_no_default(cli: Cli) -> None:
    answer = cli("ab", "prefill_first", "")
    assert answer.code == 2
    assert "arm B is empty" in answer.error


def test_labels_are_unique(cli: Cli) -> None:
    answer = cli("ab", "x=prefill_first", "x=stall_free")
    assert answer.code == 2
    assert "two arms are called 'x'" in answer.error
    assert "'B'" in cli("ab", "B=prefill_first", "stall_free").error


def test_arms_are_compared_on_one_backend(cli: Cli) -> None:
    answer = cli("ab", "prefill_first", "stall_free", "--arm-set", "B.backend=sim:llama-3.1-8b@a100")
    assert answer.code == 2
    assert "sim:llama-3.1-8b@a100" in answer.error and "--backend" in answer.error


def test_a_shared_parameter_that_an_arm_would_not_see_is_refused(cli: Cli, write: Write) -> None:
    write("base.yaml", "max_num_seqs: 9\n")
    answer = cli("ab", "prefill_first", "stall_free", "--set", "policy.chunk_size=64")
    assert answer.code == 2
    assert "--set policy.chunk_size" in answer.error and "--arm-set A.policy.chunk_size" in answer.error
    assert "arm B names" in cli("ab", "base.yaml", "stall_free", "--set", "policy=vllm_v1").error


def test_a_shared_parameter_that_every_arm_sees(cli: Cli, write: Write) -> None:
    write("a.yaml", "max_num_seqs: 5\n")
    write("b.yaml", "max_num_seqs: 6\n")
    args = ["a.yaml", "b.yaml", "--set", "policy.decode_interleave=3", "--workload", SMALL, "--json", "out.json"]
    assert cli("ab", *args).code == 0
    for run in json.loads(Path("out.json").read_text())["runs"]:
        assert run["settings"]["policy"]["decode_interleave"] == 3


def test_ctrl_c_while_a_later_arm_is_made(cli: Cli, install: Callable[..., None]) -> None:
    install(
        "slow",
        """
        from batchwright import BackendEntry, hookimpl
        from batchwright_backends.sim.backend import SimBackend

        made = []

        def create(settings):
            made.append(settings)
            if len(made) == 2:
                raise KeyboardInterrupt
            return SimBackend(settings)

        @hookimpl
        def register_backends():
            return {"slow": BackendEntry(create=create, summary="takes long to load", syntax="slow:MODEL@GPU")}
        """,
    )
    args = ["--backend", "slow:llama-3.1-8b@h100", "--workload", SMALL, "--json", "out.json"]
    answer = cli("ab", "prefill_first", "stall_free", *args)
    assert (answer.code, answer.err) == (130, "")
    assert "Mean TTFT (ms)" in answer.out and "stall_free" not in answer.out
    assert [run["arm"] for run in json.loads(Path("out.json").read_text())["runs"]] == ["prefill_first"]


def test_a_fault_of_a_later_arm_is_found_before_the_first_runs(cli: Cli) -> None:
    answer = cli("ab", "prefill_first", "stall_fre", "--workload", "absent.csv")
    assert answer.code == 2
    assert "did you mean 'stall_free'?" in answer.error
