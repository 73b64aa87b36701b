"""Results of ``vllm bench serve`` as runs: what it says of them is what comes out here."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchwright.errors import ComparisonError, WorkloadError
from batchwright.lab import compare, format_report, summarize
from batchwright.lab.files import Folder, is_vllm_result, read_vllm_result

LATENCIES = ("ttft", "tpot", "itl", "e2el")


def written(num: int = 40, *, failed: tuple[int, ...] = (), bundled: bool = False, seed: int = 0) -> dict[str, Any]:
    """A result as ``benchmark`` and ``calculate_metrics`` of vllm/benchmarks/serve.py, 0.32.0, make it."""
    rng = np.random.default_rng(seed)
    starts = 5000.25 + np.cumsum(rng.exponential(0.2, num))
    good = [i for i in range(num) if i not in failed]
    itls = [rng.lognormal(-4, 0.5, int(rng.integers(0, 30))).tolist() if i in good else [] for i in range(num)]
    ttfts = [float(rng.lognormal(-2, 0.5)) if i in good else 0.0 for i in range(num)]
    output = [(len(gaps) + 1) * (2 if bundled else 1) if i in good else 0 for i, gaps in enumerate(itls)]
    latencies = [t + sum(gaps) for t, gaps in zip(ttfts, itls, strict=True)]
    duration = float(starts.max() - starts.min() + 9)
    inputs = rng.integers(5, 500, num).tolist()
    values = {
        "ttft": [ttfts[i] for i in good],
        "tpot": [(latencies[i] - ttfts[i]) / (output[i] - 1) for i in good if output[i] > 1],
        "itl": [gap for i in good for gap in itls[i]],
        "e2el": [latencies[i] for i in good],
    }
    found: dict[str, Any] = {
        "date": "20261130-031800",
        "endpoint_type": "openai",
        "backend": "openai",
        "label": None,
        "model_id": "HuggingFaceTB/SmolLM2-135M",
        "tokenizer_id": "HuggingFaceTB/SmolLM2-135M",
        "num_prompts": num,
        "request_rate": 5.0,
        "burstiness": 1.0,
        "max_concurrency": None,
        "duration": duration,
        "completed": len(good),
        "failed": len(failed),
        "total_input_tokens": sum(inputs[i] for i in good),
        "total_output_tokens": sum(output),
        "request_throughput": len(good) / duration,
        "request_goodput": None,
        "output_throughput": sum(output) / duration,
        "total_token_throughput": (sum(inputs[i] for i in good) + sum(output)) / duration,
        "input_lens": inputs,
        "output_lens": output,
        "ttfts": ttfts,
        "itls": itls,
        "latencies": latencies,
        "start_times": (starts + rng.normal(0, 1e-4, num)).tolist(),
        "queue_times": [0.0] * num,
        "generated_texts": ["x"] * num,
        "errors": [
            "Traceback (most recent call last):\n  ...\nTimeoutError: gone" if i in failed else "" for i in range(num)
        ],
        "rtfx": 0.0,
    }
    for name, of in values.items():
        found |= {
            f"mean_{name}_ms": float(np.mean(of)) * 1e3,
            f"median_{name}_ms": float(np.median(of)) * 1e3,
            f"std_{name}_ms": float(np.std(of)) * 1e3,
            f"p99_{name}_ms": float(np.percentile(of, 99)) * 1e3,
        }
    return found


def write(folder: Path, *results: dict[str, Any]) -> Path:
    path = folder / "openai-5.0qps.json"
    path.write_text("\n".join(map(json.dumps, results)))
    return path


def test_every_number_of_a_file_that_vllm_itself_wrote_comes_out() -> None:
    """vllm 0.32.0's client wrote it: 30 requests of random lengths at 20 a second to a server of the tests."""
    path = Path(__file__).parent / "vllm_bench_serve_0.32.0.json"
    result = json.loads(path.read_text())
    found = summarize(read_vllm_result(path))
    numbers = [name for name, value in result.items() if isinstance(value, (int, float)) and name in found]
    assert {"mean_itl_ms", "p99_ttft_ms", "max_output_tokens_per_s", "max_concurrent_requests"} <= set(numbers)
    assert len(numbers) >= 26
    for name in numbers:
        assert found[name] == pytest.approx(result[name], rel=1e-6), name


@pytest.mark.parametrize("failed", [(), (0, 7, 8)])
def test_every_number_that_vllm_gives_comes_out(tmp_path: Path, failed: tuple[int, ...]) -> None:
    result = written(failed=failed)
    record = read_vllm_result(write(tmp_path, result))
    found = summarize(record)
    names = [f"{kind}_{name}_ms" for name in LATENCIES for kind in ("mean", "median", "std", "p99")]
    names += ["duration", "completed", "failed", "total_input_tokens", "total_output_tokens"]
    names += ["request_throughput", "output_throughput", "total_token_throughput"]
    for name in names:
        assert found[name] == pytest.approx(result[name], rel=1e-6, abs=1e-6), name
    assert found["num_steps"] is found["mean_scheduling_delay_ms"] is found["cache_hit_rate"] is None
    assert [r.error for r in record.requests if r.error] == ["TimeoutError: gone"] * len(failed)


def test_requests_are_in_the_order_of_the_file_and_times_count_from_the_first(tmp_path: Path) -> None:
    result = written()
    record = read_vllm_result(write(tmp_path, result))
    assert [r.num_prompt_tokens for r in record.requests] == result["input_lens"]
    first = min(result["start_times"])
    assert [r.arrival_ns / 1e9 for r in record.requests] == pytest.approx([t - first for t in result["start_times"]])


def test_chunks_of_several_tokens_leave_all_but_single_gaps_as_they_are(tmp_path: Path) -> None:
    result = written(bundled=True)
    record = read_vllm_result(write(tmp_path, result))
    found = summarize(record)
    for name in ("ttft", "tpot", "e2el"):
        assert found[f"mean_{name}_ms"] == pytest.approx(result[f"mean_{name}_ms"])
    assert found["total_output_tokens"] == result["total_output_tokens"]
    for tokens, gaps in zip(record.requests, result["itls"], strict=True):
        in_chunk = Counter(tokens.token_times_ns)
        assert len(in_chunk) == len(gaps) + 1
        assert set(in_chunk.values()) <= {1, 2, 3}  # evenly: two a chunk
    assert any(f"ITL is {result['mean_itl_ms']:.2f} ms on average" in note for note in record.notes)


def test_two_results_are_compared_and_kept_in_a_folder(tmp_path: Path) -> None:
    one = read_vllm_result(write(tmp_path, written(200)), arm="a")
    slower = written(200)
    slower["ttfts"] = [1.5 * t for t in slower["ttfts"]]
    slower["start_times"] = [t + 0.001 for t in slower["start_times"][:9]] + slower["start_times"][
        9:
    ]  # never just alike
    two = read_vllm_result(write(tmp_path, slower), arm="b")
    found = compare([one, two])
    assert found.verdict("mean_ttft_ms").words == "worse"
    assert "measured by vllm bench serve" in format_report(found)
    other = written(200)
    other["input_lens"][3] += 1
    with pytest.raises(ComparisonError, match="1 of 200 offered requests differ: r000003"):
        compare([one, read_vllm_result(write(tmp_path, other), arm="c")])
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'batchwright[parquet]'")
    Folder(tmp_path / "out").write_run("a", one)
    assert Folder(tmp_path / "out").read_run("a") == one


def test_a_file_with_several_results(tmp_path: Path) -> None:
    path = write(tmp_path, written(10), written(20))
    assert is_vllm_result(path)
    with pytest.raises(WorkloadError, match=r"holds 2 results .*which=0"):
        read_vllm_result(path)
    assert len(read_vllm_result(path, which=1).requests) == 20
    with pytest.raises(WorkloadError, match="holds 2 results, and which is 2"):
        read_vllm_result(path, which=2)


def without(*names: str) -> str:
    return json.dumps({name: value for name, value in written(5).items() if name not in names})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty; expected a JSON object that vllm bench serve wrote with --save-result --save-detailed"),
        ("[1]", "holds a list; expected a JSON object"),
        ("{", "is not JSON"),
        ('{"a": 1}', "has no duration: it is no result of vllm bench serve"),
        (without("input_lens", "output_lens", "ttfts", "itls", "start_times", "errors"), "without --save-detailed"),
        (without("start_times"), "has no start_times: it is of another release than 0.32"),
        (json.dumps({**written(5), "ttfts": [0.1]}), r"different lengths \(input_lens 5, output_lens 5, ttfts 1"),
        (
            json.dumps({**written(5), "ttfts": ["soon"] * 5}),
            "request .: .*soon.*; expected numbers of tokens and seconds",
        ),
        (json.dumps({**written(5), "start_times": [None] * 5}), "start_times holds something else than seconds"),
        (json.dumps({name: [] if isinstance(v, list) else v for name, v in written(5).items()}), "has no request"),
    ],
)
def test_what_is_no_such_file_is_refused_with_what_was_expected(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=says):
        read_vllm_result(path)


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"cannot read .*none\.json"):
        read_vllm_result(tmp_path / "none.json")
    (tmp_path / "b.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(WorkloadError, match="is not text"):
        read_vllm_result(tmp_path / "b.json")
    assert not is_vllm_result(tmp_path / "b.json")
