"""Clusters from a line and from a file; the table of devices."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlgraph
from rlgraph.catalog.clusters.cluster import Cluster
from rlgraph.catalog.clusters.devices import FIELDS, MAY_BE_ZERO, OPTIONAL, USUAL, device_names_by_alias, known_devices
from rlgraph.catalog.clusters.read import MOST_DEVICES, read_cluster
from rlgraph.catalog.clusters.units import format_exact, format_quantity
from rlgraph.errors import Diagnostic, ProgramError
from rlgraph.passes.cost.lengths import parse_lengths
from tests.counting import calls

ROOT = Path(rlgraph.__file__).parent
PAGE = ROOT.parent / "docs" / "reference" / "clusters.md"
CODES = (ROOT / "errors" / "codes" / "clusters.md").read_text("utf-8")
OWN = (
    "float32=10TFLOP/s, memory=64GiB, bandwidth=1TB/s, link=100GB/s, network=25GB/s, host=32GB/s, price=1, "
    "link_latency=5us, network_latency=15us"
)


def wrong(text: str) -> Diagnostic:
    with pytest.raises(ProgramError) as error:
        read_cluster(text)
    (found,) = error.value.diagnostics
    return found


# A line


def test_a_line_in_full() -> None:
    cluster = read_cluster("4x8:H100(memory=64GiB, price=2)@200Gb/s/node+8 x 4 : h20-96gb ~ 10Gb/s , 5ms")
    first, second = cluster.islands
    assert (first.nodes, first.per_node, first.device_count, first.network) == (4, 8, 32, 200e9 / 8 / 8)
    assert (first.device.name, first.device.memory, first.device.price) == ("h100-80gb", 64 * 2**30, 2)
    assert first.device.network == known_devices()["h100-80gb"].device.network == 50e9
    assert (first.link_latency, first.network_latency) == (3.4e-6, 14e-6)
    assert (second.nodes, second.per_node, second.network) == (8, 4, 50e9)
    assert second.device == known_devices()["h20-96gb"].device
    assert (cluster.between, cluster.between_latency, cluster.device_count) == (1.25e9, 5e-3, 64)
    assert cluster.text == "4x8:h100-80gb(memory=64GiB, price=2)@3.125GB/s + 8x4:h20-96gb ~ 1.25GB/s, 5ms"


def test_the_network_is_of_each_device_or_of_the_node() -> None:
    assert read_cluster("2x8:a100@200Gb/s").islands[0].network == 25e9
    assert read_cluster("2x8:a100@200Gb/s/node").islands[0].network == 25e9 / 8
    assert read_cluster("2x8:a100").islands[0].network == 25e9
    assert read_cluster("1x8:a100 + 1x4:a100 ~ 8Gb/s/node").between == 1e9 / 8


def test_between_groups_is_the_slower_network() -> None:
    cluster = read_cluster("1x8:h100 + 1x8:l4 + 1x1:cpu")
    assert (cluster.between, cluster.between_latency) == (1.25e9, 100e-6)
    assert "~" not in cluster.text


def test_other_numbers_are_those_of_one_group() -> None:
    one, other = read_cluster("1x8:h100(price=1) + 1x8:h100").islands
    assert (one.device.price, other.device.price) == (1, 2.69)
    assert one.device.flops == other.device.flops


def test_a_device_of_ones_own() -> None:
    (island,) = read_cluster(f"2x4:my-gpu({OWN})").islands
    assert (island.device.name, island.device.memory, island.network) == ("my-gpu", 64 * 2**30, 25e9)
    assert island.device.peak_flops("bfloat16") == island.device.peak_flops("float32") == 10e12
    assert (island.link_latency, island.network_latency) == (5e-6, 15e-6)


BANDWIDTHS = st.floats(1, 1e14).map(lambda value: format_exact(value, "bandwidth"))
NETWORKS = st.one_of(
    BANDWIDTHS, BANDWIDTHS.map("{}/node".format), st.integers(1, 10**6).map("{}Gb/s/node".format), st.just("200Gb/s")
)


def field(name: str, value: float) -> str:
    """As text; a share is at most 1."""
    return format_exact(1 / value if name in USUAL else value, FIELDS[name])


GROUPS = st.builds(
    "{}x{}:{}{}{}".format,
    st.integers(1, 500),
    st.integers(1, 16),
    st.sampled_from(sorted(device_names_by_alias())),
    st.dictionaries(st.sampled_from(sorted(FIELDS)), st.floats(1, 1e17)).map(
        lambda fields: (
            f"({', '.join(f'{name}={field(name, value)}' for name, value in fields.items())})" if fields else ""
        )
    ),
    st.one_of(st.just(""), NETWORKS.map("@{}".format)),
)


@given(st.lists(GROUPS, min_size=1, max_size=4), st.one_of(st.none(), NETWORKS), st.floats(0, 10))
def test_a_cluster_is_read_again_from_its_text(groups: list[str], between: str | None, latency: float) -> None:
    text = " + ".join(groups)
    if between and len(groups) > 1:
        text += f" ~ {between}, {format_exact(latency, 'time')}"
    cluster = read_cluster(text)
    assert read_cluster(cluster.text) == cluster
    assert read_cluster(cluster.text.replace(" ", "")) == cluster


@given(st.text(alphabet="0123456789xX:@~+(),=- .ehGBbs/\n\tmoryp", max_size=30))
def test_any_text_is_a_cluster_or_a_mistake(text: str) -> None:
    try:
        found = read_cluster(text)
    except ProgramError as error:
        assert all(d.code in CODES and d.message and d.hint for d in error.diagnostics)
    else:
        assert isinstance(found, Cluster)


@pytest.mark.parametrize(
    ("text", "code", "under", "said"),
    [
        ("", "E0920", "", "empty text"),
        ("h100", "E0920", "h100", "`1x8:h100`"),
        ("8:h100", "E0920", "8:h100", "`1x8:h100`"),
        ("8xH100", "E0920", "H", "`1x8:H100`"),
        ("8x8", "E0920", "8x8", "the device is missing"),
        ("8x:h100", "E0920", ":", "number of devices in a node"),
        ("4x8:h100@", "E0920", "", "bandwidth of the network"),
        ("4x8:h100 8x8:h20", "E0920", "8x8:h20", "does not belong here"),
        ("4x8:h100 + ", "E0920", "", "group of nodes"),
        ("4x8:h100(price=1", "E0920", "", "`)` is expected"),
        ("4x8:h100(price)", "E0920", ")", "`=` is expected"),
        ("4x8:h1000", "E0921", "h1000", "did you mean `h100`?"),
        ("4x8:gtx", "E0921", "gtx", "`mi300x-192gb`"),
        ("0x8:h100", "E0922", "0", "without nodes"),
        ("8x0:h100", "E0922", "0", "without devices"),
        ("8x-2:h100", "E0922", "-2", "`-2` is no number of devices"),
        ("1000000x1:h100", "E0922", "1000000x1", "1,000,000 devices are too many"),
        ("4x8:h100 + 99999999999999x8:h100", "E0922", "99999999999999", "at most 131,072"),
        ("8192x8:h100 + 8192x8:h20 + 1x1:cpu", "E0922", "1x1", "131,073 devices"),
        ("4x8:h100@200", "E0923", "200", "`200` has no unit"),
        ("4x8:h100@200Gbps", "E0923", "200Gbps", "expected a bandwidth such as"),
        ("4x8:h100@5us", "E0923", "5us", "`us` is the wrong unit"),
        ("4x8:h100@0GB/s", "E0923", "0GB/s", "more than 0"),
        ("4x8:h100(price=-1)", "E0923", "-1", "`-1` is negative"),
        ("4x8:h100(memory=80GB/s)", "E0923", "80GB/s", "expected a size"),
        ("4x8:h100 ~ 10Gb/s", "E0923", "10Gb/s", "one group"),
        ("4x8:h100 + 1x1:cpu ~ 10Gb/s, 5", "E0923", "5", "expected a time"),
        ("4x8:h100(memry=64GiB)", "E0924", "memry", "did you mean `memory`?"),
        ("4x8:h100(price=1, price=2)", "E0924", "price", "given twice"),
        ("4x8:mine(price=1)", "E0924", "mine", "has no `float32`, `memory`"),
        ("missing.toml", "E0925", "", "no file `missing.toml`"),
    ],
)
def test_a_caret_stands_under_what_is_wrong(text: str, code: str, under: str, said: str) -> None:
    found = wrong(text)
    assert (found.code, found.span.covered_text.strip()) == (code, under), found.render()
    assert said in found.render()
    assert found.hint


def test_as_many_devices_as_there_may_be() -> None:
    assert read_cluster("16384x8:h100").device_count == MOST_DEVICES


# A file

FILE = """\
between = "10Gb/s/node"
between_latency = "5ms"

[[island]]
nodes = 4
per_node = 8
device = "my-gpu"
network = "200Gb/s/node"  # one adapter

[[island]]
nodes = 2
per_node = 4
device = "h100"

[device.my-gpu]
memory = "64GiB"
bfloat16 = 1e14
float32 = "10TFLOP/s"
bandwidth = "1TB/s"
link = "100GB/s"
network = "25GB/s"
host = "32GB/s"
price = 1
link_latency = "5us"
network_latency = 1.5e-5

[device.h100-80gb]
price = 1.99
"""


def file(folder: Path, text: str) -> str:
    path = folder / "cluster.toml"
    path.write_text(text, "utf-8")
    return str(path)


def test_a_file_says_what_a_line_says(tmp_path: Path) -> None:
    cluster = read_cluster(file(tmp_path, FILE))
    line = f"4x8:my-gpu(bfloat16=100TFLOP/s, {OWN})@200Gb/s/node + 2x4:h100(price=1.99) ~ 10Gb/s/node, 5ms"
    assert cluster == read_cluster(line)
    assert read_cluster(cluster.text) == cluster


def test_an_island_is_enough(tmp_path: Path) -> None:
    least = '[[island]]\nnodes = 1\nper_node = 8\ndevice = "h100"\n'
    assert read_cluster(file(tmp_path, least)) == read_cluster("1x8:h100")


@pytest.mark.parametrize(
    ("old", "new", "code", "line", "said"),
    [
        ("nodes = 4", "nodes = 0", "E0922", "nodes = 0", "without nodes"),
        ("nodes = 2", "nodes = 2.5", "E0922", "nodes = 2.5", "`2.5` is no number of nodes"),
        ("nodes = 2", "nodes = true", "E0922", "nodes = true", "no number of nodes"),
        ("nodes = 2", "nods = 2", "E0924", "nods = 2", "did you mean `nodes`?"),
        ("nodes = 2\n", "", "E0924", "[[island]]", "has no `nodes`"),
        ("between =", "betwen =", "E0924", 'betwen = "10Gb/s/node"', "did you mean `between`?"),
        ("price = 1.99", "price = -1.99", "E0923", "price = -1.99", "`-1.99` is negative"),
        ("price = 1.99", "prize = 1.99", "E0924", "prize = 1.99", "did you mean `price`?"),
        ('memory = "64GiB"\n', "", "E0924", 'device = "my-gpu"', "has no `memory`"),
        ('"64GiB"', '"64Gib"', "E0923", 'memory = "64Gib"', "expected a size"),
        ('"64GiB"', "-1", "E0923", "memory = -1", "is negative"),
        ("1e14", "nan", "E0923", "bfloat16 = nan", "expected a rate"),
        ("1e14", "[1]", "E0923", "bfloat16 = [1]", "expected a rate"),
        ('"200Gb/s/node"', '"200Gb"', "E0923", 'network = "200Gb"', "expected a bandwidth"),
        ('"h100"', '"h1000"', "E0921", 'device = "h1000"', "did you mean `h100`?"),
        ('"h100"', "h100", "E0925", "h", "no TOML"),
        ("[device.my-gpu]", '[device."my gpu"]', "E0924", '[device."my gpu"]', "no name of a device"),
        ("[[island]]", "[[islands]]", "E0924", "[[islands]]", "did you mean `island`?"),
    ],
)
def test_the_line_of_a_file_that_is_wrong(old: str, new: str, code: str, line: str, said: str, tmp_path: Path) -> None:
    found = wrong(file(tmp_path, FILE.replace(old, new)))
    assert (found.code, found.span.covered_text) == (code, line), found.render()
    assert said in found.render()
    assert found.hint


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("", "E0924", "no island"),
        ("island = 3", "E0924", "`island` is no list of tables"),
        ("device = 3\n[[island]]\nnodes=1", "E0924", "`device` is no table"),
        ("[[island]\n", "E0925", "no TOML"),
        ("a = " + "[" * 100_000, "E0925", "no TOML"),
        ("a = 1\nb = " + "9" * 5000, "E0925", "too many digits"),
    ],
)
def test_files_that_are_no_clusters(text: str, code: str, said: str, tmp_path: Path) -> None:
    found = wrong(file(tmp_path, text))
    assert found.code == code
    assert said in found.message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "folder.toml").mkdir()
    assert "no text in UTF-8" in wrong(str(tmp_path / "bytes.toml")).message
    assert "it is a folder" in wrong(str(tmp_path / "folder.toml")).message.lower()


# Devices


@pytest.mark.parametrize("name", known_devices())
def test_a_device_of_the_table_is_whole(name: str) -> None:
    listed = known_devices()[name]
    values = listed.field_values()
    assert set(FIELDS) - set(values) <= set(OPTIONAL)
    assert all(value > 0 or field in MAY_BE_ZERO for field, value in values.items())
    assert listed.title
    assert name == "cpu" or all(source.startswith("https://") for source in listed.sources)
    # What a device has of memory is between its name in GB and 8% more, as GiB are.
    if said := re.search(r"-(\d+)gb$", name):
        assert int(said[1]) * 1e9 <= values["memory"] <= int(said[1]) * 1.08e9
    # A slower way out never beats a faster one further in.
    assert values["bandwidth"] >= values["link"] >= values["network"]
    assert values["bandwidth"] >= values["host"]


def test_the_memory_of_a_host_is_of_each_device_or_of_the_node() -> None:
    """Of a device of one's own that does not say it, as much as it has itself."""
    assert read_cluster("2x4:a100").islands[0].host_memory == 4 * known_devices()["a100-80gb"].device.host_memory
    assert read_cluster("2x4:a100(host_memory=1TiB/node)").islands[0].host_memory == 2**40
    assert read_cluster("2x4:a100(host_memory=100GB)").islands[0].device.host_memory == 100e9
    own = read_cluster(f"1x2:mine({OWN})")
    assert own.islands[0].host_memory == 2 * 64 * 2**30 and "host_memory=64GiB" in own.text
    text = read_cluster("1x8:h100(host_memory=1TiB/node, network=400Gb/s/node)").text
    assert text == "1x8:h100-80gb(network=6.25GB/s, host_memory=128GiB)" and read_cluster(text).text == text
    assert wrong("1x8:h100(host_memory=0GB)").code == "E0923"


def test_dense_rates_in_bfloat16() -> None:
    """Those by which verl counts the utilisation of a device: verl/utils/flops_counter.py."""
    verl = {
        "h100": 989e12,
        "h800": 989e12,
        "h200": 989e12,
        "a100": 312e12,
        "a100-40gb": 312e12,
        "a800": 312e12,
        "h20": 148e12,
        "b200": 2.25e15,
        "mi300x": 1307e12,
        "l40s": 362e12,
        "a40": 149.7e12,
    }
    assert {name: known_devices()[device_names_by_alias()[name]].device.peak_flops("bfloat16") for name in verl} == verl


def test_names_are_of_one_device_each() -> None:
    aliases = [alias for listed in known_devices().values() for alias in listed.aliases]
    assert (
        len(set(aliases) | set(known_devices())) == len(aliases) + len(known_devices()) == len(device_names_by_alias())
    )


def table() -> str:
    """The table of the page."""
    head = ("name", "bfloat16", "memory", "bandwidth", "link", "network", "host", "host_memory", "$/h")
    rows = [head, tuple("---" for _ in head)]
    for name, listed in known_devices().items():
        device = listed.device
        links = (device.bandwidth, device.link, device.network, device.host)
        called = ", ".join(f"`{each}`" for each in (name, *listed.aliases))
        shown = [f"{device.memory / 2**30:.1f}GiB", *(format_quantity(value, "bandwidth") for value in links)]
        shown.append(f"{device.host_memory / 2**30:.0f}GiB")
        rows.append((called, format_quantity(device.peak_flops("bfloat16"), "rate"), *shown, f"{device.price:.2f}"))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def test_the_page_has_the_table(request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text("utf-8")
    now = re.sub(r"(<!-- devices -->\n)(?:.*\n)*?(<!-- end -->)", lambda found: found[1] + table() + found[2], text)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(now, "utf-8")
    assert PAGE.read_text("utf-8") == now, "`pytest --update-golden tests/passes/cost/test_clusters.py` writes it anew"


# The page, and what is said of codes


def test_the_examples_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lengths.txt").write_text("3\n", "utf-8")
    lines, lengths, *_ = re.findall("```text\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    (toml,) = re.findall("```toml\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    for line in lines.splitlines():
        read_cluster(re.split(r"\s{4,}", line)[0])
    for line in lengths.splitlines():
        parse_lengths(re.split(r"\s{4,}", line)[0])
    assert read_cluster(file(tmp_path, toml)).device_count == 96


@pytest.mark.parametrize("section", CODES.split("## ")[1:], ids=lambda section: section[:5])
def test_the_examples_of_a_code(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (kind, bad), (_, good) = re.findall("```(text|toml)\n(.*?)```", section, flags=re.DOTALL)
    read = read_cluster if section[:5] < "E0926" else parse_lengths
    given = [file(tmp_path, text) if kind == "toml" else text.strip() for text in (good,)]
    read(given[0])
    with pytest.raises(ProgramError) as error:
        read(file(tmp_path, bad) if kind == "toml" else bad.strip())
    assert [d.code for d in error.value.diagnostics] == [section[:5]]


def test_a_cluster_is_read_without_counting_its_devices() -> None:
    first, small, large = (f"{nodes}x8:h100(price=2) + {nodes}x8:h20 ~ 10Gb/s" for nodes in (200, 100, 900))
    read_cluster(first)  # The table of devices, and what finds numbers in a text, are made once.
    assert calls(lambda: read_cluster(small)) == calls(lambda: read_cluster(large))


def test_nothing_heavy_is_loaded() -> None:
    script = (
        "import sys, rlgraph.catalog.clusters.read, rlgraph.passes.cost.lengths\n"
        "print([m for m in ('torch', 'numpy', 'transformers', 'click') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT.parent, capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "[]", ran.stdout + ran.stderr
