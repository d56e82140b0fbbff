"""Calibrations: constants are found from what work took, files are read as they were written, and what is wrong is
told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlgraph.backends.enginespec.rates import Rates
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.shape import Shape
from rlgraph.errors import ProgramError
from rlgraph.ir.mesh import make_mesh
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.calibration import Calibration, MeasuredDevice
from rlgraph.passes.cost.constants import HostCosts, default_constants
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.profiles.calibration import read_calibration
from rlgraph.profiles.fit import fit_constants, nonnegative_least_squares
from rlgraph.profiles.profile import TimedSample, fit_rates, predicted_seconds

CPU = default_constants("cpu")

ISLAND = read_cluster("1x2:cpu").islands[0]


def test_a_fit_that_leads_nowhere_keeps_what_was_best() -> None:
    """The first step from 1 goes to 36,789, of which nothing has an exponential."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = fit_constants(lambda at: np.exp(at), [1e5], np.array([1.0]), np.array([0.0]))
    assert found == [1.0]


def test_nonnegative_least_squares() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.random((20, 4))
    wanted = np.array([0.5, 0.0, 2.0, 0.0])
    np.testing.assert_allclose(nonnegative_least_squares(matrix, matrix @ wanted), wanted, atol=1e-9)
    # Without the bound the second would be negative.
    target = matrix @ np.array([0.5, -1.0, 2.0, 0.3])
    found = nonnegative_least_squares(matrix, target)
    assert found[1] == 0
    assert (found >= 0).all()
    pull = matrix.T @ (target - matrix @ found)
    assert pull[found > 0] == pytest.approx(0, abs=1e-9)
    assert (pull <= 1e-9).all()


def test_a_column_of_nothing_gets_nothing() -> None:
    assert nonnegative_least_squares(
        np.array([[1.0, 0.0], [2.0, 0.0]]), np.array([3.0, 6.0])
    ).tolist() == pytest.approx([3, 0])


def test_fit_with_products_of_constants() -> None:
    x = np.linspace(1, 5, 12)

    def model(values: np.ndarray) -> np.ndarray:
        return (values[0] + values[1] * x) * (1 + values[2] * (np.arange(12) % 2))

    found = fit_constants(model, model(np.array([2.0, 0.5, 0.3])).tolist(), np.array([1.0, 1.0, 0.1]), np.zeros(3))
    assert found == pytest.approx([2.0, 0.5, 0.3], rel=1e-3)


# Constants of the cost model


def shape(hidden: int, layers: int, vocab: int) -> Shape:
    return shape_of(
        {
            "model_type": "qwen2",
            "hidden_size": hidden,
            "intermediate_size": 2 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "vocab_size": vocab,
            "max_position_embeddings": 512,
        }
    )


def samples(kind: Any, rates: Rates, deployments: list[Deployment]) -> list[TimedSample]:
    found = []
    for hidden, layers, vocab in ((64, 2, 32), (128, 6, 512), (256, 3, 2048)):
        for rows, tokens in ((8, 8), (64, 16), (64, 64), (192, 40)):
            batch = Batch(float(rows), Lengths((8.0, 12.0)), Lengths((float(tokens),)))
            for deployment in deployments:
                bare = TimedSample(
                    kind, ModelConfig("m", shape(hidden, layers, vocab), "causal_lm"), deployment, batch, 0.0
                )
                found.append(replace(bare, seconds=predicted_seconds(bare, rates)))
    return found


KNOWN = {
    "forward": Rates(0.5, 1.0, call=2e-3, block=1e-3, layer=5e-4, row=2e-5, token=1e-6, reduce=4e-4, crowd=0.25),
    "train": Rates(0.4, 0.7, call=3e-3, block=2e-3, layer=1e-3, row=4e-5, token=3e-6, reduce=3e-4, crowd=0.4),
    "generate": Rates(
        0.8, 0.6, call=5e-3, block=7e-4, layer=2e-4, row=3e-5, begin=2e-4, hidden=2e-7, reduce=1e-4, crowd=0.1
    ),
}


@pytest.mark.parametrize("kind", KNOWN)
def test_the_fit_finds_the_constants_again(kind: str) -> None:
    deployments = [Deployment("megatron", ISLAND, make_mesh(dp, tp=tp)) for tp, dp in ((1, 1), (2, 1), (1, 2))]
    measured = samples(kind, KNOWN[kind], deployments)
    found, error = fit_rates(measured)
    assert error < 1e-3
    assert found.crowd == pytest.approx(KNOWN[kind].crowd, rel=0.02)
    for name in ("reduce", "layer"):
        assert getattr(found, name) == pytest.approx(getattr(KNOWN[kind], name), rel=0.05), name
    for sample in measured:
        assert predicted_seconds(sample, found) == pytest.approx(sample.seconds, rel=0.01)


def test_noise_is_averaged() -> None:
    rng = np.random.default_rng(1)
    noisy = [
        replace(sample, seconds=sample.seconds * float(rng.uniform(0.9, 1.1)))
        for sample in samples("forward", KNOWN["forward"], [Deployment("transformers", ISLAND)])
    ]
    found, error = fit_rates(noisy)
    assert error < 0.1
    for sample in samples("forward", KNOWN["forward"], [Deployment("transformers", ISLAND)]):
        assert predicted_seconds(sample, found) == pytest.approx(sample.seconds, rel=0.1)


# Files


def calibration() -> Calibration:
    rates = {("transformers", kind): replace(known, lock=0.5) for kind, known in KNOWN.items()}
    constants = replace(CPU, rates={**CPU.rates, **rates}, host=HostCosts(node=3e-4), sync=0.004)  # type: ignore[arg-type]
    return Calibration(
        constants, MeasuredDevice("cpu", {"float32": 7e10}, 9e9), {"processor": "a small one"}, {"a.train": 0.03}
    )


@pytest.fixture
def document(tmp_path: Path) -> Any:
    """Changes the text of a file, and gives its path."""

    def write(old: str = "", new: str = "") -> Path:
        text = calibration().to_text()
        assert old in text, old
        path = tmp_path / "machine.json"
        path.write_text(text.replace(old, new, 1) if old else text)
        return path

    return write


def test_a_file_is_read_as_it_was_written(document: Any) -> None:
    path = document()
    found, written = read_calibration(path), calibration()
    assert found.constants == replace(written.constants, source=str(path))
    assert replace(found, constants=written.constants) == written
    assert found.to_text() == path.read_text()


def test_bytes_of_a_logit_may_be_many(document: Any) -> None:
    """A quick profile once found 8,669, which no file was read with, since it was held to be seconds."""
    assert read_calibration(document('"logit": 0.0', '"logit": 8669.0')).to_text().count('"logit": 8669.0')


def test_a_file_from_before_some_rates_is_read(document: Any) -> None:
    """What kernels of decoding take came later, as did the host's part: a profile of then had neither."""
    path = document()
    content = json.loads(path.read_text())
    for numbers in content["rates"]["transformers"].values():
        for later in ("products", "host", "host_layer", "host_row"):
            del numbers[later]
    path.write_text(json.dumps(content))
    found = read_calibration(path).constants.rates["transformers", "generate"]
    assert found.products == 0 and found.host == 0


@pytest.mark.parametrize("queues", [0.0, 1.0])
def test_a_file_that_says_queues_has_the_seconds_of_the_host(document: Any, queues: float) -> None:
    """Until the host's seconds were rates of their own it said whether all that a step takes beside was the host's."""
    path = document()
    content = json.loads(path.read_text())
    for engine, numbers in content["rates"].items():
        for kind in numbers.values():
            del kind["host_layer"]
            kind["queues"] = queues * (engine == "transformers")
    content["rates"]["transformers"]["generate"] |= {"block": 1e-3, "layer": 5e-4, "row": 3e-5}
    path.write_text(json.dumps(content))
    read = read_calibration(path)
    found = read.constants.rates["transformers", "generate"]
    device, host = (found.block, found.layer, found.row), (found.host, found.host_layer, found.host_row)
    told, none = (1e-3, 5e-4, 3e-5), (0.0, 0.0, 0.0)
    assert (device, host) == ((none, told) if queues else (told, none))
    assert "queues" not in read.to_text()
    path.write_text(json.dumps(content).replace('"queues": 0.0', '"queues": 2'))
    with pytest.raises(ProgramError, match="queues"):
        read_calibration(path)


def test_a_device_has_the_rates_that_were_measured() -> None:
    known = calibration()
    cpu, gpu = (
        known.with_measured_rates(read_cluster("2x2:cpu")),
        known.with_measured_rates(read_cluster("2x8:a100-80gb")),
    )
    assert cpu.islands[0].device.peak_flops("float32") == 7e10
    assert cpu.islands[0].device.bandwidth == 9e9
    assert gpu == read_cluster("2x8:a100-80gb")


@pytest.mark.parametrize(
    ("old", "new", "code", "said"),
    [
        ('"rlgraph_calibration": 1', '"rlgraph_calibration": 2', "E0941", "version 2"),
        ('"rlgraph_calibration": 1', '"rlgraph_calibration": true', "E0941", "version True"),
        ('"rlgraph_calibration"', '"calibration"', "E0940", "no field"),
        ('"rlgraph_calibration": 1,', '"rlgraph_calibration": 1', "E0940", "no JSON"),
        ('"compute": 0.5', '"compute": -0.5', "E0943", "is -0.5"),
        ('"compute": 0.5', '"compute": 0', "E0943", "is 0"),
        ('"compute": 0.5', '"compute": 1e9', "E0943", "1e+09"),
        ('"compute": 0.5', '"compute": "fast"', "E0943", "no number"),
        ('"compute": 0.5', '"compute": NaN', "E0940", "NaN"),
        ('"call": 0.002', '"call": 7200', "E0943", "7200"),
        ('"call"', '"cal"', "E0942", "`cal`"),
        ('"forward"', '"backward"', "E0942", "`backward`"),
        ('"bandwidth": 9000000000.0', '"bandwidth": null', "E0943", "no number"),
        ('"sync"', '"snyc"', "E0942", "`snyc`"),
        ('"host": {', '"hosts": {', "E0942", "`hosts`"),
        ('"float32": 70000000000.0', '"float32": 0', "E0943", "float32"),
    ],
)
def test_what_is_wrong_is_told(document: Any, old: str, new: str, code: str, said: str) -> None:
    with pytest.raises(ProgramError) as caught:
        read_calibration(document(old, new))
    told = [found.message for found in caught.value.diagnostics if found.code == code]
    assert any(said in message for message in told), [str(found) for found in caught.value.diagnostics]
    assert all(found.span.source.path.endswith("machine.json") for found in caught.value.diagnostics)


def test_a_caret_stands_under_the_number(document: Any) -> None:
    path = document('"layer": 0.0002', '"layer": -1')
    with pytest.raises(ProgramError) as caught:
        read_calibration(path)
    [found] = caught.value.diagnostics
    line = path.read_text().splitlines()[found.span.line - 1]
    assert line[found.span.column - 1 :].startswith("-1")


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b"{", b"null"])
def test_files_that_are_no_calibrations(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "wrong.json"
    path.write_bytes(content)
    with pytest.raises(ProgramError) as caught:
        read_calibration(path)
    assert caught.value.diagnostics[0].code in ("E0940", "E0806")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="no such file"):
        read_calibration(tmp_path / "none.json")


def test_the_text_is_json_without_surprises() -> None:
    told = json.loads(calibration().to_text())
    assert list(told) == ["rlgraph_calibration", "machine", "device", "constants", "host", "rates", "errors"]
