"""Result files of ``vllm bench serve --save-result --save-detailed``, read as runs.

The schema is that of vLLM 0.32.0: ``benchmark`` and ``main_async`` of vllm/benchmarks/serve.py, and
``RequestFuncOutput`` of vllm/benchmarks/lib/endpoint_request_func.py. Times there are floats in seconds: of a monotonic
clock where a request was sent (``start_times``), from there to the first chunk (``ttfts``), and from chunk to chunk
(``itls``).
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from batchwright.errors import WorkloadError
from batchwright.lab.records import OfferedRecord, RequestRecord
from batchwright.lab.run_record import RunLimits, RunRecord
from batchwright.lab.step_records import StepRecords

DETAILED = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "errors")
"""Lists with a value for each request, which only ``--save-detailed`` writes."""
ABOUT = ("backend", "model_id", "tokenizer_id", "request_rate", "burstiness", "max_concurrency", "date", "label")
"""What a result says of the load and of the server."""

_EXPECTED = "a JSON object that vllm bench serve wrote with --save-result --save-detailed"


def read_vllm_result(path: str | Path, *, arm: str | None = None, which: int | None = None) -> RunRecord:
    """A result of ``vllm bench serve`` as the record of a run.

    Requests stand in the order of the file, which is that of their planned arrivals; times count from the first that
    was sent. As there, TTFT and E2EL count from sending. Nothing is known of steps, of queues in the server, or of
    prompts beyond their lengths: two results are taken for ones of the same load where these agree. Where a stream's
    chunks held several tokens, these are spread evenly over the chunks: TTFT, TPOT and E2EL are vLLM's, and ``notes``
    has its ITL, a gap a chunk.

    Args:
        path: of the file.
        arm: its name in tables; the file's without its ending by default.
        which: of a file with several results (``--append-result``), from 0.

    Raises:
        WorkloadError: there is no such file, it is no such result, or it has several and ``which`` names none of them.
    """
    path = Path(path)
    results = _results(path)
    if which is None:
        if len(results) > 1:
            raise WorkloadError(f"{path} holds {len(results)} results (--append-result): name one, from which=0 on")
        which = 0
    if not 0 <= which < len(results):
        raise WorkloadError(f"{path} holds {len(results)} results, and which is {which}: the first is 0")
    result = results[which]
    lists = _lists(path, result)
    starts = _starts(path, lists)
    requests = [_request(path, lists, i, start) for i, start in enumerate(starts)]
    spread = sum(_is_spread(lists, i) for i in range(len(starts)))
    about = {name: result[name] for name in ABOUT if result.get(name) is not None}
    return RunRecord(
        arm=arm if arm is not None else path.stem,
        policy="the server's own",
        backend=f"vllm bench serve: {result.get('model_id', 'unknown model')}",
        settings={"endpoint": about},
        limits=RunLimits(0, 0, None, None, 0, 0),
        workload={
            "name": path.name,
            "source": str(path),
            "hash": "unknown",
            "speedup": 1.0,
            "arrivals": "as they were sent",
            "num_requests": len(requests),
        },
        declared_max_tokens="by vllm bench serve",
        virtual_time=False,
        offered=[_offered(r) for r in requests],
        requests=requests,
        steps=StepRecords(),
        batches=array("Q"),
        notes=list(_notes(path, lists, spread)),
        duration_ns=_ns(result["duration"]),
    )


def is_vllm_result(path: str | Path) -> bool:
    """Whether a file looks like a result of ``vllm bench serve``, detailed or not."""
    try:
        return all("duration" in r and "request_throughput" in r for r in _results(Path(path)))
    except WorkloadError:
        return False


def _results(path: Path) -> list[dict[str, Any]]:
    """All results of a file, which stand one behind the other."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise WorkloadError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise WorkloadError(f"{path} is not text; expected {_EXPECTED}") from None
    decoder, found, place = json.JSONDecoder(), [], 0
    while text[place:].strip():
        place += len(text[place:]) - len(text[place:].lstrip())
        try:
            value, place = decoder.raw_decode(text, place)
        except ValueError as error:
            raise WorkloadError(f"{path} is not JSON: {error}; expected {_EXPECTED}") from None
        if not isinstance(value, dict):
            raise WorkloadError(f"{path} holds a {type(value).__name__}; expected {_EXPECTED}")
        found.append(value)
    if not found:
        raise WorkloadError(f"{path} is empty; expected {_EXPECTED}")
    return found


def _lists(path: Path, result: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    """The lists of values a request, checked."""
    if not isinstance(result.get("duration"), (int, float)):
        raise WorkloadError(f"{path} has no duration: it is no result of vllm bench serve; expected {_EXPECTED}")
    missing = [name for name in DETAILED if not isinstance(result.get(name), list)]
    if missing:
        how = (
            "it was saved without --save-detailed, or is not of a benchmark of generated text"
            if "input_lens" in missing
            else "it is of another release than 0.32, whose schema is read here"
        )
        raise WorkloadError(f"{path} has no {', '.join(missing)}: {how}; expected {_EXPECTED}")
    lists: dict[str, Sequence[Any]] = {name: result[name] for name in DETAILED}
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise WorkloadError(f"{path}: its lists are of different lengths ({said}); expected a value for each request")
    if not lists["input_lens"]:
        raise WorkloadError(f"{path} has no request")
    return lists


def _starts(path: Path, lists: Mapping[str, Sequence[Any]]) -> list[int]:
    """Nanoseconds from the first sending; a request that was never sent has 0 there, and counts as sent first."""
    try:
        known = [float(start) for start in lists["start_times"]]
    except (TypeError, ValueError) as error:
        raise WorkloadError(f"{path}: start_times holds something else than seconds: {error}") from None
    first = min((start for start in known if start), default=0.0)
    return [_ns(start - first) if start else 0 for start in known]


def _request(path: Path, lists: Mapping[str, Sequence[Any]], i: int, start_ns: int) -> RequestRecord:
    try:
        prompt, output = int(lists["input_lens"][i]), int(lists["output_lens"][i])
        chunks = list(accumulate([float(lists["ttfts"][i]), *map(float, lists["itls"][i])]))
        error = lists["errors"][i] or None
    except (TypeError, ValueError) as problem:
        raise WorkloadError(f"{path}, request {i}: {problem}; expected numbers of tokens and seconds") from None
    # As there: a request that failed has no output tokens, whatever of it came before.
    done = output > 0
    last = len(chunks) - 1
    spread = (min(k * last // (output - 1), last) if output > 1 else last for k in range(output))
    times = array("q", [start_ns + _ns(chunks[k]) for k in spread])
    return RequestRecord(
        request_id=f"r{i:06d}",
        client_id=None,
        priority=0,
        arrival_ns=start_ns,
        first_scheduled_ns=None,
        token_times_ns=times,
        finish_ns=times[-1] if done else None,
        num_prompt_tokens=prompt,
        num_output_tokens=output,
        num_cached_tokens=0,
        num_recomputed_tokens=0,
        num_preemptions=0,
        slo=None,
        status="finished" if done else "failed",
        finish_reason=None if done else "error",
        error=None if done else _last_line(error),
    )


def _offered(record: RequestRecord) -> OfferedRecord:
    """Prompts are not in the file, but for their lengths."""
    length = max(1, record.num_output_tokens)
    prompt = f"length {record.num_prompt_tokens}"
    return OfferedRecord(record.request_id, record.arrival_ns, prompt, length, length)


def _is_spread(lists: Mapping[str, Sequence[Any]], i: int) -> bool:
    output = int(lists["output_lens"][i])
    return output > 0 and len(lists["itls"][i]) + 1 != output


def _notes(path: Path, lists: Mapping[str, Sequence[Any]], spread: int) -> Iterator[str]:
    yield f"{path.name} was measured by vllm bench serve: its latencies count from sending, and steps are not known"
    if spread:
        gaps = [float(gap) for i, own in enumerate(lists["itls"]) if lists["output_lens"][i] for gap in own]
        mean = f"{1e3 * sum(gaps) / len(gaps):.2f} ms on average" if gaps else "undefined"
        yield (
            f"{path.name}: {spread} answers have more or fewer tokens than chunks, and their tokens are spread evenly "
            f"over these; by chunks, as vllm bench serve counts, ITL is {mean}"
        )


def _last_line(error: object) -> str:
    """Of a traceback, what it was about."""
    lines = str(error).strip().splitlines() if error else []
    return lines[-1] if lines else "failed without a word"


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
