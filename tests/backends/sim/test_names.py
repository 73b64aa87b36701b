"""How models, GPUs and machines are named, and what a wrong name gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchwright.errors import ConfigError
from batchwright_backends.sim.gpus import find_gpu, gpu_names, make_gpu
from batchwright_backends.sim.models import find_model, model_names, published_parameters
from batchwright_backends.sim.target import parse_target


@pytest.mark.parametrize("name", model_names())
def test_shape_has_the_published_number_of_parameters(name: str) -> None:
    assert find_model(name).num_parameters == published_parameters(name)


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct", "LLAMA3-8B", "Meta-Llama-3.1-8B"]
)
def test_a_model_has_aliases_in_any_case(name: str) -> None:
    assert find_model(name).name == "llama-3.1-8b"


def test_an_unknown_model_gets_the_nearest_names() -> None:
    with pytest.raises(ConfigError, match=r"no model 'lama-3.1-8b' \(did you mean 'llama-3.1-8b'.*config.json"):
        find_model("lama-3.1-8b")


@pytest.mark.parametrize("name", ["h100", "H100", "NVIDIA-H100", "h100-sxm"])
def test_a_gpu_has_aliases_in_any_case(name: str) -> None:
    assert find_gpu(name).name == "h100"


def test_an_unknown_gpu_gets_the_nearest_names() -> None:
    with pytest.raises(ConfigError, match=r"no GPU 'h10' \(did you mean 'h100'"):
        find_gpu("h10")


def test_only_gpus_with_fitted_constants_are_calibrated() -> None:
    calibrated = [name for name in gpu_names() if not find_gpu(name).uncalibrated]
    assert calibrated == ["a100", "h100", "h200", "rtx4090"]
    assert {"l4", "l40s", "a10", "b200", "v100"} <= set(gpu_names())


@pytest.mark.parametrize("name", gpu_names())
def test_every_constant_says_where_it_is_from(name: str) -> None:
    gpu = find_gpu(name)
    for term in ("gemm", "decode_attention", "chunk_attention"):
        constants = getattr(gpu, term)
        assert constants.source
        assert gpu.uncalibrated or ("held-out" in constants.residual and constants.date)
    for term in ("elementwise", "sampling", "all_reduce", "host"):
        assert getattr(gpu, term).source


@pytest.mark.parametrize(
    ("target", "gpu", "tensor_parallel"),
    [
        ("llama-3.1-8b@h100", "h100", 1),
        ("llama-3.1-8b@H100x4", "h100", 4),
        ("llama-3.1-8b@rtx4090", "rtx4090", 1),
        ("llama-3.1-8b@rtx4090x2", "rtx4090", 2),
        ("meta-llama/Llama-3.1-8B@A100X8", "a100", 8),
    ],
)
def test_target(target: str, gpu: str, tensor_parallel: int) -> None:
    machine = parse_target(target)
    assert (machine.gpu.name, machine.tensor_parallel) == (gpu, tensor_parallel)
    assert machine.shape.name == "llama-3.1-8b"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("llama-3.1-8b", "says no GPU; write sim:MODEL@GPU"),
        ("llama-3.1-8b@", "says no GPU"),
        ("@h100", "says no model"),
        ("llama-3.1-8b@h100x0", "asks for 0 GPUs"),
        (
            "llama-3.1-8b@h100x3",
            "cannot be split over 3 GPUs: 32 query heads and 8 KV heads go over 1, 2, 4,",
        ),
        ("llama-3.1-8b@rtx5070", "no GPU 'rtx5070'"),
        ("llama-3.1-8b@g100x2", "no GPU 'g100'"),
        ("nothing.yaml", "there is no file 'nothing.yaml'"),
        ("nothing/config.json@h100", "there is no file 'nothing/config.json'"),
    ],
)
def test_a_wrong_target_is_refused_with_a_way_on(target: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_target(target)
    assert message in str(refused.value)


def test_a_file_describes_a_machine(tmp_path: Path) -> None:
    file = tmp_path / "machine.yaml"
    file.write_text(
        "model: {base: llama-3.1-8b, num_hidden_layers: 16}\n"
        "gpu:\n  base: h100\n  name: half\n  gemm: {flops: 4.0e+14}\n"
        "tensor_parallel: 2\noptions: {gpu_memory_utilization: 0.8}\n"
    )
    machine = parse_target(str(file))
    h100 = find_gpu("h100")
    assert machine.shape.num_hidden_layers == 16
    assert machine.shape.hidden_size == 4096
    assert machine.gpu.gemm.flops == 4e14
    assert machine.gpu.gemm.bandwidth == h100.gemm.bandwidth
    assert machine.gpu.decode_attention == h100.decode_attention
    assert machine.tensor_parallel == 2
    assert machine.options == {"gpu_memory_utilization": 0.8}


def test_a_gpu_may_be_a_datasheet() -> None:
    gpu = make_gpu({"name": "mine", "memory_bytes": 8e9, "peak_flops": 1e14, "peak_bandwidth": "4e11"}, "here")
    assert gpu.uncalibrated
    assert gpu.gemm.flops == pytest.approx(0.8e14)
    assert gpu.gemm.bandwidth == pytest.approx(0.85 * 4e11)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: llama-3.1-8b\n", "'gpu' is missing"),
        ("model: llama-3.1-8b\ngpu: h100\ngpus: 2\n", "there is no 'gpus': did you mean 'gpu'?"),
        ("model: llama-3.1-8b\ngpu: {base: h100, gem: {flops: 1}}\n", "there is no 'gem': did you mean 'gemm'?"),
        ("model: llama-3.1-8b\ngpu: {base: h100, gemm: {flop: 1}}\n", "no 'gemm.flop': did you mean 'flops'?"),
        ("model: llama-3.1-8b\ngpu: {base: h100, gemm: {flops: -1}}\n", "gemm.flops = -1: Input should be greater"),
        ("model: llama-3.1-8b\ngpu: {name: x, memory_bytes: 1}\n", "'peak_flops' is missing; give it, or a base"),
        ("model: {hidden: 3}\ngpu: h100\n", "there is no 'hidden': did you mean 'hidden_size'?"),
        ("- model\n", "must hold a mapping"),
        ("model: [\n", "cannot be read as YAML"),
    ],
)
def test_a_wrong_file_is_refused_by_key(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "machine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        parse_target(str(file))
    assert message in str(refused.value)
    assert "machine.yaml" in str(refused.value)
