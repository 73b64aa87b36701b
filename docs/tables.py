"""The tables of these pages that follow the code: ``python docs/tables.py`` writes them anew.

A table stands between ``<!-- table: KEY -->`` and ``<!-- end of table -->``. ``tests/docs`` fails while a page differs
from what this module makes of the code.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from batchwright.card import Card, cost_of
from batchwright.cli.policies import parameters
from batchwright.config import EngineConfig, submodel
from batchwright.config_sources import ENVIRONMENT_PREFIX
from batchwright.lab import METRICS, SyntheticSpec
from batchwright.lab.endpoint.options import EndpointOptions
from batchwright.lab.files.columns import REQUEST_COLUMNS, STEP_COLUMNS, Column
from batchwright.lab.samples import LATENCY_KINDS
from batchwright.limits import Limits
from batchwright.predictors.plugin import register_predictors
from batchwright.replay.batchwright_format import _Request as ReplayedRequest
from batchwright.request import Request
from batchwright.routers.plugin import register_routers
from batchwright.step import Step
from batchwright_backends.sim.backend import SimOptions
from batchwright_backends.sim.gpus import find_gpu, gpu_names
from batchwright_backends.sim.models import model_names
from batchwright_backends.torch.options import TorchOptions
from batchwright_backends.vllm.lab.options import VllmOptions

FOLDER = Path(__file__).parent
REPRODUCED = (
    "sarathi_capacity",
    "hrrn_sessions",
    "vtc_clients",
    "sjf_budget",
    "victim_tax",
    "fastserve_tails",
)
"""Scripts in ``benchmarks/reproduce``, in the order of the page."""
_TABLE = re.compile(r"(<!-- table: (?P<key>[\w. -]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
_ROLE = re.compile(r":\w+:`~?(?:\w+\.)*(\w+)`")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    lines = [list(head), ["---"] * len(list(head)), *(list(row) for row in rows)]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def code(text: str) -> str:
    """A value as code; nothing for nothing."""
    return f"`{text}`" if text else ""


def config() -> str:
    """Every setting, with type, default, meaning and environment name."""

    def rows(model: type[BaseModel], prefix: str = "") -> Iterable[tuple[str, ...]]:
        for name, (kind, default, meaning) in parameters(model).items():
            inner = submodel(model.model_fields[name].annotation)
            if inner is not None:
                yield from rows(inner, f"{prefix}{name}.")
            else:
                factory = model.model_fields[name].default_factory
                shown = json.dumps(factory()) if callable(factory) else default  # type: ignore[call-arg]
                yield code(prefix + name), kind, code(shown), meaning

    return table(("setting", "type", "default", "meaning"), rows(EngineConfig))


def environment() -> str:
    """The environment variable of a few settings."""
    names = ("max_num_seqs", "prefix_cache.visible", "policy.chunk_size")
    variables = [f"{ENVIRONMENT_PREFIX}{name.upper().replace('.', '__')}" for name in names]
    return table(("setting", "variable"), [(code(n), code(v)) for n, v in zip(names, variables, strict=True)])


def of_model(model: type[BaseModel]) -> str:
    """Parameters of a predictor or router."""
    found = parameters(model)
    if not found:
        return "It takes no parameters.\n"
    return table(
        ("parameter", "type", "default", "meaning"), [(code(n), k, code(d), m) for n, (k, d, m) in found.items()]
    )


def router_card(router: type[Any]) -> str:
    """Where a router comes from, as a table."""
    card: Card = router.card
    rows = [("source", card.source)]
    rows += [(f"rule: {rule}", f"in the code: {code(where)}") for rule, where in card.rules.items()]
    rows += [("deviation", text) for text in card.deviations]
    rows += [(f"evidence: {kind}", what) for kind, what in card.evidence.items()]
    rows.append(("cost", (cost_of(router) or "").replace("``", "`")))
    return table(("", ""), rows)


def of_attributes(model: type[Any]) -> str:
    """Options that are documented in a class's ``Attributes``."""
    said = attributes(model)
    rows = [(code(n), k, code(d), said[n]) for n, (k, d, _) in parameters(model).items()]
    return table(("option", "type", "default", "meaning"), rows)


def attributes(kind: type[Any]) -> dict[str, str]:
    """Name to text of each entry under ``Attributes:`` in a docstring."""
    _, _, section = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    section = re.split(r"\n\S", section)[0]
    found: dict[str, str] = {}
    for entry in re.split(r"\n?^    (?=\S)", section, flags=re.MULTILINE):
        names, colon, text = entry.partition(": ")
        if colon:
            for name in names.split(", "):
                found[name.strip()] = " ".join(text.split()).replace("``", "`")
    return found


def shown(kind: type[Any]) -> str:
    """What hooks may read of an object: attributes, then properties and methods that its docstring does not list."""
    said = attributes(kind)
    rows = [(code(name), _ROLE.sub(r"`\1`", text)) for name, text in said.items()]
    members = {name: member for cls in reversed(kind.__mro__[:-1]) for name, member in vars(cls).items()}
    for name, member in members.items():
        if not name.startswith("_") and name not in said:
            if isinstance(member, property):
                rows.append((code(name), _first_line(member)))
            elif inspect.isfunction(member):
                arguments = list(inspect.signature(member).parameters.values())[1:]
                call = ", ".join(a.name if a.default is a.empty else f"{a.name}={a.default}" for a in arguments)
                rows.append((code(f"{name}({call})"), _first_line(member)))
    return table(("name", "what it is"), rows)


def _first_line(member: Any) -> str:
    text = " ".join((inspect.getdoc(member) or "").partition("\n\n")[0].split()).replace("``", "`")
    return text[:1].lower() + text[1:]


def synthetic() -> str:
    """Keys of ``synthetic:…``."""
    said = attributes(SyntheticSpec)
    rows = []
    for field in fields(SyntheticSpec):
        default = "" if field.default is MISSING else _lengths(field.default)
        rows.append((code(field.name), code(default), said[field.name]))
    return table(("key", "default", "meaning"), rows)


def _lengths(value: Any) -> str:
    if hasattr(value, "kind"):  # a distribution, or the shape of a rate
        return f"{value.values[0]:g}" if value.values else str(value.kind)
    return "none" if value is None else f"{value:g}"


def latencies() -> str:
    """Every kind of latency."""
    rows = [(code(f"mean_{name}_ms"), kind.label, kind.unit, kind.doc) for name, kind in LATENCY_KINDS.items()]
    return table(("name of the mean", "in tables", "unit", "definition"), rows)


def metrics() -> str:
    """Every metric of a summary that is not of a latency."""
    rows = [
        (code(name), metric.label, metric.unit, metric.better or "", metric.doc)
        for name, metric in METRICS.items()
        if not name.endswith("_ms")
    ]
    return table(("name", "in tables", "unit", "better", "definition"), rows)


def columns(of: Iterable[Column]) -> str:
    """The columns of a Parquet file."""
    kinds = {"times": "list&lt;int64&gt;", "slo": "struct&lt;ttft_s, tpot_s: double&gt;"}
    rows = [(code(c.name), kinds.get(c.kind, c.kind), c.unit, "yes" if c.nullable else "", c.doc) for c in of]
    return table(("column", "type", "unit", "null", "holds"), rows)


def recorded_request() -> str:
    """Fields of a request in ``batchwright-1``."""
    rows = [(code(name), kind, code(default)) for name, (kind, default, _) in parameters(ReplayedRequest).items()]
    return table(("field", "type", "default"), rows)


def gpus() -> str:
    """The simulator's GPUs and where their constants are from."""
    rows = []
    for name in gpu_names():
        gpu = find_gpu(name)
        kernels = "datasheet times generic efficiencies: uncalibrated" if gpu.uncalibrated else gpu.gemm.source
        rows.append((code(name), gpu.title, kernels))
    return table(("name", "GPU", "constants of dense layers from"), rows)


def residuals() -> str:
    """What the fits left on rows they did not see."""
    rows = []
    for name in gpu_names():
        gpu = find_gpu(name)
        if not gpu.uncalibrated:
            for term in (gpu.gemm, gpu.decode_attention, gpu.chunk_attention):
                for part in term.residual.removeprefix("held-out rows, ").split("; "):
                    regime, _, figures = part.partition(": ")
                    rows.append((code(name), regime, figures))
    return table(("GPU", "regime", "error on held-out rows"), rows)


def models() -> str:
    """The simulator's models."""
    text = (Path(inspect.getfile(SimOptions)).parent / "data" / "models.yaml").read_text(encoding="utf-8")
    entries: Mapping[str, Mapping[str, Any]] = yaml.safe_load(text)
    rows = [(code(name), entries[name]["source"]) for name in model_names()]
    return table(("name", "shape from"), rows)


def scheduler_cost() -> str:
    """The committed figures of ``benchmarks/scheduler.py``: times, and the worst policy's share of each peer's."""
    figures = json.loads((FOLDER.parent / "benchmarks" / "results" / "scheduler.json").read_text(encoding="utf-8"))
    peers = ("nano-vllm", "vllm", "yardstick")
    others = (*peers, "sorts_all")

    def short(value: float) -> str:
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

    rows = []
    for row in figures["rows"]:
        ours = {name: value for name, value in row["medians"].items() if name not in others}
        ends = [short(min(ours.values())), short(max(ours.values()))]
        cells = [row["row"], row["unit"], " to ".join(dict.fromkeys(ends))]
        for peer in peers:
            theirs = row["medians"].get(peer)
            worst = max(ours.values()) / theirs if theirs else 0.0
            cells += [short(theirs) if theirs else "", f"{worst:.2g}" if theirs and peer != "yardstick" else ""]
        rows.append(cells[:-1])
    return table(("row", "unit", "ours", "nano-vLLM", "ours / its", "vLLM", "ours / its", "yardstick"), rows)


def peers_on_cpu() -> str:
    """The committed figures of ``benchmarks/peers_cpu.py``."""
    figures = json.loads((FOLDER.parent / "benchmarks" / "results" / "peers_cpu.json").read_text(encoding="utf-8"))
    names = ("batchwright", "vllm", "transformers")

    def cell(row: Mapping[str, Any], name: str) -> str:
        low, middle, high = row["quartiles"][name]
        return f"{middle:.0f} ({low:.0f} to {high:.0f})"

    rows = [
        [
            row["row"],
            *(cell(row, name) for name in names),
            *(f"{row['ratios'][f'{names[0]}/{name}']:.2f}" for name in names[1:]),
        ]
        for row in figures["rows"]
    ]
    ready = {row["row"].rsplit(", ", 1)[-1]: row["cold_s"] for row in figures["rows"]}
    rows += [
        [f"seconds from start to first answer, {dtype}", *(f"{cold[name]:.0f}" for name in names), "", ""]
        for dtype, cold in ready.items()
    ]
    modes = {name: sorted({row["modes"][name] for row in figures["rows"]}) for name in names[1:]}
    heads = [f"{name}, {' or '.join(modes[name])}" for name in names[1:]]
    return table(("requests", "Batchwright", *heads, "ours / vLLM", "ours / transformers"), rows)


def _sim_speed_rows(unit: str) -> list[Mapping[str, Any]]:
    """The committed figures of ``benchmarks/sim_speed.py``."""
    figures = json.loads((FOLDER.parent / "benchmarks" / "results" / "sim_speed.json").read_text(encoding="utf-8"))
    return [row for row in figures["rows"] if row["unit"] == unit]


def sim_speed() -> str:
    """Requests a second, beside DynoSim."""
    rows = []
    for row in _sim_speed_rows("requests/s"):
        medians, ratios = row["medians"], row["ratios"]
        rows.append(
            [
                row["row"],
                f"{row['num_steps']:,}",
                f"{row['mean_batch']:.0f}",
                f"{medians['step by step']:,.0f}",
                f"{medians['with leaps']:,.0f}",
                f"{row['share_leapt']:.0%}",
                f"{medians['dynosim']:,.0f}",
                f"{ratios['step by step/dynosim']:.2f}",
                f"{ratios['with leaps/dynosim']:.2f}",
            ]
        )
    heads = ("arrivals", "steps", "decodes a step", "step by step", "with leaps", "steps leapt", "DynoSim")
    return table((*heads, "step by step / its", "with leaps / its"), rows)


def sim_growth() -> str:
    """Cost of a request and memory, by number of requests."""
    rows = [
        [row["row"], f"{row['medians']['a request']:.0f} µs", f"{row['seconds']:.0f} s", f"{row['peak_mib']:.0f} MiB"]
        for row in _sim_speed_rows("µs")
    ]
    return table(("requests", "a request", "all", "memory at the peak"), rows)


def vllm_overhead() -> str:
    """Cost of a step in vLLM, of its scheduler and of ours: each beside the stock that it is compared with."""
    rows = results("vllm_overhead")["rows"]
    cells = []
    for name in rows[0]["medians"]:
        shown = [f"{row['medians'][name]:,.2f}" for row in rows]
        if name not in ("stock", "stock async"):
            shown = [f"{one} ({row['of_stock'][name]['median']:.2f})" for one, row in zip(shown, rows, strict=True)]
        cells.append([name, *shown])
    heads = {"full": "1,000 wait for a seat", "short": "1,000 wait for blocks"}
    return table(("", *(heads.get(row["row"]) or f"{int(row['row']):,} decodes" for row in rows)), cells)


def vllm_hooks() -> str:
    """Hook, adapter and release of vLLM: what becomes of the hook, and whether all that it needs is there."""
    from batchwright_backends.vllm.honoured import HONOURED
    from batchwright_backends.vllm.surfaces import ADAPTERS
    from batchwright_backends.vllm.versions import is_tested

    releases = json.loads((FOLDER.parent / "benchmarks" / "results" / "vllm_versions.json").read_text(encoding="utf-8"))
    rows = []
    for hook, words in HONOURED.items():
        for adapter in ADAPTERS:
            cells = []
            for one in releases["releases"]:
                lacks = [
                    m for m in one["missing"] if adapter in m["adapters"] and (not m["hooks"] or hook in m["hooks"])
                ]
                there = "lacks" if lacks else "run" if is_tested(one["release"]) else "imports"
                cells.append("" if words[adapter].startswith("refused") else there)
            rows.append([code(hook) if hook != "observers" else hook, adapter, words[adapter], *cells])
    return table(("hook", "adapter", "honoured", *(one["release"] for one in releases["releases"])), rows)


def vllm_lacks() -> str:
    """What releases of vLLM lack of what the adapters use."""
    releases = json.loads((FOLDER.parent / "benchmarks" / "results" / "vllm_versions.json").read_text(encoding="utf-8"))
    by: dict[tuple[str, str], list[str]] = {}
    for one in releases["releases"]:
        for lack in one["missing"]:
            for adapter in lack["adapters"]:
                by.setdefault((adapter, lack["what"]), []).append(one["release"])
    return table(
        ("adapter", "what", "not in"), [[who, code(what), ", ".join(names)] for (who, what), names in by.items()]
    )


def fleet_mooncake() -> str:
    """The committed figures of ``benchmarks/fleet_mooncake.py``: routers in rows, for each size of the KV pools."""
    figures = json.loads((FOLDER.parent / "benchmarks" / "results" / "fleet_mooncake.json").read_text(encoding="utf-8"))
    rows = []
    for size in figures["sizes"]:
        tokens = f"{next(iter(size['routers'].values()))['kv_tokens'] / size['replicas'] / 1000:,.0f}k"
        for router, found in size["routers"].items():
            cells = [f"{100 * found['cache_hit_rate']:.1f}"]
            cells += [
                f"{found[name]:,.0f}" for name in ("mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms", "mean_e2el_ms")
            ]
            rows.append([tokens, code(router), *cells, f"{found['busy_imbalance']:.3f}"])
        bounds = f"one cache of their size: {100 * size['pooled']:.1f}; without a bound: {100 * size['unbounded']:.1f}"
        rows.append([tokens, "", bounds, "", "", "", "", ""])
    heads = ("hits (%)", "mean TTFT (ms)", "median", "p99", "mean E2EL (ms)", "busiest / mean")
    return table(("KV tokens of a replica", "router", *heads), rows)


def results(name: str) -> Any:
    """What a benchmark has committed."""
    return json.loads((FOLDER.parent / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def seconds(value: float) -> str:
    """Seconds, or milliseconds where that reads better."""
    return f"{value:.4g} s" if value >= 1 else f"{1e3 * value:.3g} ms"


def fidelity(name: str, heads: Mapping[str, str]) -> str:
    """The committed figures of ``benchmarks/fidelity.py``: one measured run, and each prediction's error.

    Args:
        name: of the file.
        heads: of the columns, by the prediction's name.
    """
    (run,) = results(name)["runs"]
    predictions = run["predictions"]

    def cells(row: Mapping[str, Any]) -> list[str]:
        said = [seconds(row["predicted_s"]), f"{100 * row['error']:+.1f}%"]
        if "least_error" in predictions[0]["figures"][0]:
            said.append(f"{100 * row['least_error']:+.1f} to {100 * row['largest_error']:+.1f}")
        return said

    rows = [
        [row[0]["figure"], seconds(row[0]["measured_s"]), *(cell for one in row for cell in cells(one))]
        for row in zip(*(p["figures"] for p in predictions), strict=True)
    ]
    columns = [(heads[p["name"]], "error", "with noise")[: len(cells(p["figures"][0]))] for p in predictions]
    return table(("", "measured", *(head for column in columns for head in column)), rows)


def agreement_on_cpu() -> str:
    """The committed figures of ``benchmarks/agree_cpu.py``."""

    def said(one: Mapping[str, Any]) -> str:
        return f"{100 * one['relative']:+.0f}% ({100 * one['low']:+.0f} to {100 * one['high']:+.0f})"

    rows = [
        [
            f"{code(row['other'])} against {code(row['base'])}",
            code(row["metric"]),
            said(row["simulated"]),
            "; ".join(said(one) for one in row["real"]),
            "agrees" if row["holds"] else ", ".join(row["signs"]),
        ]
        for row in results("agree_cpu")["rows"]
    ]
    return table(("pair", "metric", "simulated", "SmolLM2 on the CPU, round by round", "sign"), rows)


def false_verdicts() -> str:
    """The committed figures of ``benchmarks/aa.py``."""
    figures = results("aa")
    pairs, shifted = figures["pairs"], figures["shifted"]
    rows = []
    for num, found in figures["by_seeds"].items():
        false, width = found["false"], found["false"]["half_width"]
        counts = [f"{false[where]} of {pairs}" for where in ("declared", "primary", "table", "all")]
        rows.append([num, f"±{100 * width:.1f}%", *counts, f"{found['shift']['found']} of {shifted}"])
    head = (
        "seeds",
        "interval of mean ITL (median)",
        "false in mean ITL",
        "in any primary metric",
        "in any of the table",
        "in any at all",
        "shift of 3% found",
    )
    return table(head, rows)


def reproduced() -> str:
    """Every result of ``benchmarks/reproduce``: where it is from, and whether it comes out."""
    rows = []
    for name in REPRODUCED:
        found = results(f"reproduce/{name}")
        held = sum(claim["holds"] for claim in found["claims"])
        claims = f"{held} of {len(found['claims'])}"
        rows.append([found["title"], found["source"], claims, found["comes_out"], code(f"{name}.py")])
    return table(("result", "source", "claims that hold", "comes out", "script"), rows)


def reproduction(name: str) -> str:
    """One result of ``benchmarks/reproduce``: figures and claims, and what is as in its source."""
    found = results(f"reproduce/{name}")
    figures = table(("", "theirs", "ours"), [(row["what"], row["theirs"], row["shown"]) for row in found["rows"]])
    claims = table(("claim", "holds"), [(c["words"], "yes" if c["holds"] else "**no**") for c in found["claims"]])
    lists = [
        f"{head}:\n\n" + "".join(f"- {sentence}\n" for sentence in found[key])
        for key, head in (("setup", "Setup"), ("same", "As in the source"), ("other", "Not as in the source"))
    ]
    ran = f"All runs on {found['date']}, at commit `{found['commit'][:12]}`, with {found['seeds']} seeds.\n"
    return "\n".join([*lists, ran, figures, claims])


def makers() -> dict[str, Callable[[], str]]:
    """What makes the table of each key."""
    return {
        "step": lambda: shown(Step),
        "request": lambda: shown(Request),
        "limits": lambda: shown(Limits),
        "config": config,
        "environment": environment,
        "synthetic": synthetic,
        "metrics": metrics,
        "latencies": latencies,
        "request columns": lambda: columns(REQUEST_COLUMNS),
        "step columns": lambda: columns(STEP_COLUMNS),
        "recorded request": recorded_request,
        "sim options": lambda: of_attributes(SimOptions),
        "torch options": lambda: of_attributes(TorchOptions),
        "endpoint options": lambda: of_attributes(EndpointOptions),
        "vllm options": lambda: of_attributes(VllmOptions),
        "gpus": gpus,
        "residuals": residuals,
        "models": models,
        "scheduler cost": scheduler_cost,
        "peers_cpu": peers_on_cpu,
        "fidelity vllm": lambda: fidelity(
            "fidelity_rtx4090", {"uncalibrated": "from kernel tables", "calibrated": "host from the log"}
        ),
        "fidelity cpu": lambda: fidelity("fidelity_cpu", {"calibrated": "predicted"}),
        "agree cpu": agreement_on_cpu,
        "aa": false_verdicts,
        "sim speed": sim_speed,
        "sim growth": sim_growth,
        "fleet mooncake": fleet_mooncake,
        "reproduce": reproduced,
        **{f"reproduce {name}": (lambda name=name: reproduction(name)) for name in REPRODUCED},
        "vllm overhead": vllm_overhead,
        "vllm hooks": vllm_hooks,
        "vllm lacks": vllm_lacks,
        **{f"predictor {n}": (lambda k=k: of_model(k.Params)) for n, k in register_predictors().items()},
        **{f"router {n}": (lambda k=k: of_model(k.Params)) for n, k in register_routers().items()},
        **{f"card of {n}": (lambda k=k: router_card(k)) for n, k in register_routers().items()},
    }


def filled(text: str, made: Mapping[str, Callable[[], str]]) -> str:
    """A page with all its tables made anew.

    Raises:
        KeyError: a table of a key that nothing makes.
    """
    return _TABLE.sub(lambda m: f"{m[1]}\n{made[m['key']]()}\n{m[3]}", text)


def main() -> int:
    """Write all pages; returns 0."""
    made = makers()
    for page in sorted(FOLDER.glob("*.md")):
        old = page.read_text(encoding="utf-8")
        new = filled(old, made)
        if new != old:
            page.write_text(new, encoding="utf-8")
            print(f"{page.name}: tables written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
