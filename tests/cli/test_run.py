"""``batchwright run``, and what it records for ``batchwright replay``."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import SMALL, TIGHT, Cli

LONG = "synthetic:rate=40,n=2000,prompt=200,output=200"
Write = Callable[[str, str], Path]
POLICIES = [
    "prefill_first",
    "prefill_first:decode_interleave=2,budget_counts_decodes=true",
    "stall_free:chunk_size=48",
    "vllm_v1",
    "vllm_v1:scheduling_policy=priority,long_prefill_token_threshold=32",
]


def test_figures_of_one_arm(cli: Cli) -> None:
    answer = cli("run", "stall_free", "--workload", SMALL)
    assert answer.code == 0, answer.err
    for words in ("stall_free", "Mean TTFT (ms)", "P99 TPOT (ms)", "sim:llama-3.1-8b@h100"):
        assert words in answer.out
    assert all(len(line) <= 80 for line in answer.out.splitlines())


def test_without_an_arm_the_config_says_what_runs(cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def policy(*args: object) -> str:
        assert cli("run", "--workload", SMALL, "--json", "out.json", *args).code == 0
        name: str = json.loads(Path("out.json").read_text())["runs"][0]["arm"]
        return name

    assert policy() == "prefill_first"
    assert policy("--set", "policy=vllm_v1") == "vllm_v1"
    file = write("c.yaml", "policy: stall_free\n")
    assert policy("--config", file) == "stall_free"
    monkeypatch.setenv("BATCHWRIGHT_SET_POLICY", "vllm_v1")
    assert policy() == "vllm_v1"


def test_it_ends_early_when_told(cli: Cli) -> None:
    assert cli("run", "prefill_first", "--workload", SMALL, "--max-steps", 7, "--json", "out.json").code == 0
    run = json.loads(Path("out.json").read_text())["runs"][0]
    assert (len(run["steps"]), run["stopped"]) == (7, "max_steps")
    cli("run", "prefill_first", "--workload", SMALL, "--max-seconds", 0.1, "--json", "out.json")
    run = json.loads(Path("out.json").read_text())["runs"][0]
    assert run["stopped"] == "max_seconds"
    assert run["duration_s"] == pytest.approx(0.1, abs=0.05)


def test_a_run_in_which_nothing_finishes_failed(cli: Cli) -> None:
    answer = cli("run", "prefill_first", "--workload", SMALL, "--set", "num_blocks=1")
    assert answer.code == 1
    assert "12 refused" in answer.out


@pytest.mark.parametrize("policy", POLICIES)
def test_what_was_recorded_is_decided_again(cli: Cli, policy: str) -> None:
    args = ["--workload", TIGHT, "--set", "num_blocks=40", "--set", "max_num_batched_tokens=256"]
    recorded = cli("run", policy, *args, "--record", "d.jsonl", "--json", "out.json")
    assert recorded.code == 0, recorded.err
    steps = len(json.loads(Path("out.json").read_text())["runs"][0]["steps"])
    assert steps > 20
    for extra in ([], ["--policy", policy]):
        answer = cli("replay", "d.jsonl", *extra)
        assert answer.code == 0, answer.out
        assert answer.out == f"d.jsonl: all 1 cases agree, {steps} steps\n"


def test_the_worked_example(cli: Cli, write: Write) -> None:
    """With a budget of 20, the first step gives A 20 tokens; the second gives A 5, B 8, C 6; then they decode."""
    rows = [{"arrival_s": 0, "num_prompt_tokens": n, "num_output_tokens": 2} for n in (25, 8, 6)]
    write("three.jsonl", "\n".join(map(json.dumps, rows)))
    args = ["--workload", "three.jsonl", "--set", "max_num_batched_tokens=20", "--record", "d.jsonl"]
    assert cli("run", "prefill_first", *args).code == 0
    steps = json.loads(Path("d.jsonl").read_text())["steps"]
    assert [[tokens for _, tokens, _ in step["scheduled"]] for step in steps] == [[20], [5, 8, 6], [1, 1, 1]]


def test_a_recording_can_be_compressed(cli: Cli) -> None:
    assert cli("run", "stall_free", "--workload", SMALL, "--record", "d.jsonl.gz").code == 0
    assert json.loads(gzip.decompress(Path("d.jsonl.gz").read_bytes()))["format"] == "batchwright-1"
    assert cli("replay", "d.jsonl.gz", "--quiet").out == ""


def test_a_recording_is_there_after_ctrl_c(cli: Cli, write: Write) -> None:
    write(
        "stop.py",
        """
        import os, signal
        from batchwright import hookimpl
        from batchwright_policies.prefill_first import PrefillFirst

        class Stop(PrefillFirst):
            "Ctrl-C is pressed in step 5."

            @hookimpl
            def chunking(self, step, request):
                if step.index == 5:
                    os.kill(os.getpid(), signal.SIGINT)
                return request.num_pending
        """,
    )
    stopped = cli("run", "stop.py:Stop", "--workload", LONG, "--record", "d.jsonl", "--json", "out.json")
    assert stopped.code == 130
    assert "interrupted" in stopped.out and "fault" not in stopped.out
    steps = json.loads(Path("out.json").read_text())["runs"][0]["steps"]
    assert len(steps) > 5  # the step was completed, and those up to the next look at the clock
    answer = cli("replay", "d.jsonl", "--policy", "prefill_first")
    assert answer.code == 0, answer.out
    assert f"{len(steps)} steps" in answer.out


def test_a_policy_that_breaks_a_rule_ends_the_run(cli: Cli, write: Write) -> None:
    write(
        "bad.py",
        """
        from batchwright import Policy, hookimpl

        class Greedy(Policy):
            @hookimpl
            def chunking(self, step, request):
                return request.num_pending + 1
        """,
    )
    answer = cli("run", "bad.py:Greedy", "--workload", SMALL)
    assert answer.code == 1
    for words in ("'Greedy'", "'chunking'", "step 0", "rule"):
        assert words in answer.error
    fallback = cli("run", "bad.py:Greedy", "--workload", SMALL, "--set", "on_policy_error=fallback")
    assert fallback.code == 0
    assert "faults" in fallback.out


def test_a_backend_that_fails_in_a_step(cli: Cli, install: Callable[..., None]) -> None:
    install(
        "shaky",
        """
        from batchwright import BackendEntry, hookimpl
        from batchwright_backends.sim.backend import SimBackend

        class Shaky(SimBackend):
            num_steps = 0

            def execute(self, batch):
                self.num_steps += 1
                if self.num_steps == 3:
                    raise RuntimeError("out of luck")
                return super().execute(batch)

        @hookimpl
        def register_backends():
            return {"shaky": BackendEntry(create=Shaky, summary="fails in step 3", syntax="shaky:MODEL@GPU")}
        """,
    )
    args = ["--backend", "shaky:llama-3.1-8b@h100", "--workload", SMALL, "--json", "out.json"]
    answer = cli("run", "prefill_first", *args)
    assert answer.code == 1
    assert "out of luck" in answer.out
    status = [r["status"] for r in json.loads(Path("out.json").read_text())["runs"][0]["requests"]]
    assert status.count("failed") >= 1
    assert status.count("finished") == 12 - status.count("failed") > 0
    assert cli("run", "prefill_first", *args, "--set", "on_backend_error=retry").code == 0


@pytest.mark.parametrize(
    ("slo", "words"),
    [
        ("ttf=1", "did you mean 'ttft'?"),
        ("ttft=soon", "ttft is 'soon'"),
        ("ttft=0", "above 0"),
        ("tpot=1,tpot=2", "twice"),
        ("ttft", "ttft is ''"),
    ],
)
def test_objectives_are_checked(cli: Cli, slo: str, words: str) -> None:
    answer = cli("run", "prefill_first", "--workload", SMALL, "--slo", slo)
    assert answer.code == 2
    assert words in answer.error


@pytest.mark.parametrize("option", ["--json", "--record"])
def test_a_file_that_cannot_be_written_is_found_before_the_run(cli: Cli, option: str) -> None:
    answer = cli("run", "prefill_first", option, "absent/out.json", "--workload", "absent.csv")
    assert answer.code == 2
    assert "no folder absent" in answer.error
    assert "it is a folder" in cli("run", "prefill_first", option, ".", "--workload", "absent.csv").error


def test_prompts_of_ones_own_and_what_came_of_them(cli: Cli, write: Write) -> None:
    write(
        "prompts.jsonl",
        '{"prompt_token_ids": [5, 6, 7], "max_tokens": 4}\n{"prompt_token_ids": [8], "max_tokens": 2}\n',
    )
    args = ["run", "stall_free", "--workload", "prompts.jsonl", "--outputs", "out.jsonl"]
    assert cli(*args).code == 0
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [(x["request_id"], x["status"], len(x["token_ids"]), x["text"]) for x in lines] == [
        ("r000000", "finished", 4, None),
        ("r000001", "finished", 2, None),
    ]
    answer = cli(*args[:-1], "no/folder/out.jsonl")
    assert answer.code == 2 and "--outputs" in answer.err


def test_a_conversation_needs_a_model_with_a_tokenizer(cli: Cli, write: Write) -> None:
    write("chat.jsonl", '{"messages": [{"role": "user", "content": "hi"}]}\n')
    answer = cli("run", "prefill_first", "--workload", "chat.jsonl")
    assert answer.code == 2
    said = " ".join(answer.err.split())
    assert "chat.jsonl, line 1 (row 1): sim:llama-3.1-8b@h100 has no tokenizer, so it takes no messages" in said
