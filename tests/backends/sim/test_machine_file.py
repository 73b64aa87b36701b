"""What a calibration writes: a machine that reads back as it was, and sentences on what was measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from batchwright_backends.sim.coverage import missing_terms, steps_covered, tables_covered
from batchwright_backends.sim.fitting import least_squares
from batchwright_backends.sim.gpus import find_gpu
from batchwright_backends.sim.kernel_tables import AttentionRow, CountRow, KernelTables, MatmulRow
from batchwright_backends.sim.machine_file import as_yaml, machine_text
from batchwright_backends.sim.memory import memory_for, plan_memory
from batchwright_backends.sim.models import find_model, model_names
from batchwright_backends.sim.recorded_steps import RecordedStep
from batchwright_backends.sim.target import parse_target


@given(st.floats(1e-11, 1e17))
def test_floats_read_back_as_floats(value: float) -> None:
    read = yaml.safe_load(as_yaml({"value": value}))["value"]
    assert isinstance(read, float)
    assert read == pytest.approx(value, rel=6e-5)


def test_what_a_fit_drove_to_nothing_is_nothing() -> None:
    assert yaml.safe_load(as_yaml({"term": {"floor_s": 1e-16, "sizes": (1e-14, 2)}})) == {
        "term": {"floor_s": 0.0, "sizes": [0.0, 2]}
    }


def test_a_machine_reads_back_as_it_was(tmp_path: Path) -> None:
    gpu, shape = find_gpu("h200"), find_model("mixtral-8x7b").model_copy(update={"num_hidden_layers": 4})
    file = tmp_path / "mine.yaml"
    file.write_text(
        machine_text(
            shape.model_dump(mode="json", exclude_defaults=True),
            gpu.model_dump(mode="json", exclude_defaults=True),
            tensor_parallel=2,
            options={"host_step_s": 0.002},
            says=["one line", "and\nanother"],
        )
    )
    machine = parse_target(str(file))
    assert machine.shape == shape
    assert machine.gpu == gpu  # its constants have as many digits as a file holds
    assert (machine.tensor_parallel, dict(machine.options)) == (2, {"host_step_s": 0.002})
    assert file.read_text().startswith("# one line\n# and\n# another\nmodel:\n")


@given(st.sampled_from(model_names()), st.integers(1, 10**5), st.sampled_from([8, 16, 256]))
def test_memory_for_so_many_blocks_holds_them(model: str, num_blocks: int, block_size: int) -> None:
    shape = find_model(model)
    gpu = find_gpu("h100").model_copy(update={"memory_bytes": memory_for(shape, num_blocks, block_size, 2048, 64)})
    plan = plan_memory(
        shape, gpu, 1, utilization=0.9, block_size=block_size, max_num_batched_tokens=2048, max_num_seqs=64
    )
    assert plan.num_blocks == num_blocks


def test_what_tables_cover_is_said() -> None:
    tables = KernelTables(
        matmul=[MatmulRow(1, 64, 128, 1.0), MatmulRow(512, 64, 256, 1.0)],
        attention=[AttentionRow(0, 0, 0, 4, 100, 1.0), AttentionRow(0, 0, 0, 8, 900, 1.0)],
        sampling=[CountRow(3, 1.0)],
    )
    assert tables_covered(tables) == [
        "products of other than 1 to 512 rows, or sizes outside 64 to 256, are extrapolated",
        "attention of decodes alone is extrapolated beyond 4 to 8 requests and contexts of 100 to 900 tokens",
        "attention of prompts alone was not measured: the form and the other regimes' constants stand for it",
        "attention of decodes beside prompts was not measured: the form and the other regimes' constants stand for it",
        "sampling is extrapolated beyond 3 rows",
    ]
    assert missing_terms(["gemm", "host"], find_gpu("l4")) == [
        "no rows for decode_attention, chunk_attention, elementwise, sampling, all_reduce: these stay as l4 has them"
    ]


def test_what_steps_cover_is_said() -> None:
    one = RecordedStep(0, np.array([5, 90], dtype=np.int32), np.array([1, 1], dtype=np.int32), 2, 0.1)
    assert steps_covered([one]) == [
        "steps of other than 2 tokens, 2 requests, or contexts outside 6 to 91 tokens are extrapolated",
        "no prefill and no mixed step ran: their times are extrapolated from the others",
    ]


def test_a_prior_keeps_what_rows_say_nothing_of() -> None:
    x = np.linspace(1, 5, 20)

    def predict(c: object) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        assert isinstance(c, dict)
        return np.asarray(c["a"] * x / c["b"], dtype=np.float64)  # only a / b shows

    found = least_squares(predict, {"a": 1.0, "b": 1.0}, 4 * x, prior=0.01)
    assert found["a"] / found["b"] == pytest.approx(4, rel=1e-3)
    assert found["a"] == pytest.approx(2, rel=0.01)  # each moved as little as it could
    assert found["b"] == pytest.approx(0.5, rel=0.01)


def test_rows_count_by_their_weights() -> None:
    measured = np.array([1.0, 1.0, 1.1])
    flat = least_squares(lambda c: np.full(3, c["level"]), {"level": 2.0}, measured)["level"]
    heard = least_squares(
        lambda c: np.full(3, c["level"]), {"level": 2.0}, measured, weights=np.array([1.0, 1.0, 8.0])
    )["level"]
    assert flat == pytest.approx(1.1 ** (1 / 3), rel=1e-4)
    assert heard == pytest.approx(1.1**0.8, rel=1e-4)
