"""Networks on the cluster of threads: the same results as on the host, no rule of the DMA broken, no race; and that breaking the
generated orchestration is seen.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qfold import runtime
from qfold.backend.c.emit import emit
from qfold.backend.c.program import Program
from qfold.backend.c.reader import read_program
from qfold.backend.files import write_directory
from qfold.backend.run import build_module, pack_ports, unpack_ports
from qfold.frontend import LoadedModel, load_model
from qfold.targets import target_named
from qfold.tools.driver import Options, compile_loaded
from tests.networks.builders import mlp, transformer
from tests.networks.weight_only import Scheme, quantize_weights
from tests.runtime.compiling import compiler

Array = npt.NDArray[Any]
RUNTIME = Path(runtime.__file__).parent
DEBUG = "-DQFOLD_DEBUG_DMA"
THREAD_SANITIZER = "-fsanitize=thread"


@dataclass
class Network:
    """A network for `threads` as objects, so that one file can be replaced by a broken one."""

    program: Program
    folder: Path
    inputs: dict[str, Array]
    expected: dict[str, Array]
    """What the host computes."""

    @property
    def dispatches(self) -> str:
        return (self.folder / "dispatches.c").read_text()

    def build(self, *flags: str, dispatches: str | None = None) -> Path:
        """The program; `dispatches`: in place of dispatches.c. What is compiled once with the same flags is kept."""
        objects = self.folder / "_".join(("objects", *flags)).replace("/", "_")
        objects.mkdir(exist_ok=True)
        target = target_named(self.program.target)
        command = [
            *compiler(),
            *target.toolchain.flags,
            "-O1",
            *flags,
            f"-DQF_CORES={target.cores}",
        ]
        command += [f"-DQF_L1_BYTES={target.scratchpad_bytes}", f"-I{RUNTIME}", f"-I{self.folder}"]
        port = runtime.port_sources("threads", debug_dma=DEBUG in flags)
        sources = [self.folder / n for n in ("network.c", "dispatches.c", "kernels.c", "weights.S")]
        sources += [RUNTIME / n for n in port]
        if dispatches is not None:
            broken = objects / "broken.c"
            broken.write_text(dispatches)
            sources[1] = broken
        linked: list[str] = []
        for source in sources:
            result = objects / f"{source.name}.o"
            linked.append(str(result))
            if not result.exists() or source.name == "broken.c":
                _call([*command, "-c", str(source), "-o", str(result)], self.folder)
        binary = objects / "runner"
        _call([*command, *linked, "-lpthread", "-o", str(binary)], self.folder)
        return binary

    def run(self, binary: Path) -> subprocess.CompletedProcess[str]:
        (self.folder / "in.bin").write_bytes(pack_ports(self.program.inputs, self.inputs))
        command = [str(binary), "in.bin", "out.bin", "2"]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=120)

    def assert_good(self, done: subprocess.CompletedProcess[str]) -> None:
        assert (done.returncode, done.stderr) == (0, "")
        outputs = unpack_ports(self.program.outputs, (self.folder / "out.bin").read_bytes())
        for name, value in self.expected.items():
            np.testing.assert_allclose(outputs[name], value, rtol=1e-4, atol=1e-5)


def _call(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


MODELS = {
    "int8": (transformer, Scheme("axis", "int8", asymmetric=True)),
    "int4": (mlp, Scheme("block", "int4", asymmetric=True)),
}


@cache
def on_host(name: str) -> tuple[LoadedModel, dict[str, Array], dict[str, Array]]:
    """A network of `MODELS`, inputs, and what the host makes of them."""
    make, scheme = MODELS[name]
    model, _ = quantize_weights(make(), scheme)
    loaded = load_model(model.SerializeToString())
    host = build_module(compile_loaded(loaded).kernels)
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.standard_normal(type_.get_shape()).astype(np.float32)
        for name, type_ in host.inputs.items()
    }
    return loaded, inputs, host.run(inputs)


def make_network(folder: Path, target: str, name: str = "int8") -> Network:
    loaded, inputs, expected = on_host(name)
    kernels = compile_loaded(loaded, Options(target=target)).kernels
    write_directory(folder, emit(kernels))
    return Network(read_program(kernels), folder, inputs, expected)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Network:
    """With little enough L1 that operands come in tiles."""
    return make_network(tmp_path_factory.mktemp("network"), "threads:cores=4,l1=12288")


def replace_first(pattern: str, by: str, text: str) -> str:
    text, count = re.subn(pattern, by, text, count=1)
    assert count == 1, f"generated code has no {pattern}"
    return text


@pytest.mark.parametrize("flags", [(DEBUG,), (THREAD_SANITIZER,), (THREAD_SANITIZER, DEBUG)])
def test_generated_code_keeps_the_rules(network: Network, flags: tuple[str, ...]) -> None:
    network.assert_good(network.run(network.build(*flags)))


@pytest.mark.parametrize("cores", [1, 16])
def test_any_number_of_cores(tmp_path: Path, cores: int) -> None:
    network = make_network(tmp_path, f"threads:cores={cores}")
    network.assert_good(network.run(network.build(DEBUG)))


def test_half_a_byte_at_the_end(tmp_path: Path) -> None:
    """Weights of 17 x 33 four-bit integers: the last byte of a transfer is half used."""
    network = make_network(tmp_path, "threads:cores=3", "int4")
    assert re.search(r"qf_dma_start\(w_tile, w, 281\)", network.dispatches)
    network.assert_good(network.run(network.build(DEBUG)))


def lines_with(text: str, part: str) -> list[int]:
    return [i for i, line in enumerate(text.splitlines()) if part in line]


def raced(network: Network, dispatches: str) -> subprocess.CompletedProcess[str]:
    """The first of ten runs in which ThreadSanitizer reports a race: it sees none between threads that happen to run one after
    the other."""
    program = network.build(THREAD_SANITIZER, DEBUG, dispatches=dispatches)
    done = network.run(program)
    for _ in range(9):
        if done.returncode:
            break
        done = network.run(program)
    return done


@pytest.mark.parametrize("part", range(4))
def test_removed_wait(network: Network, part: int) -> None:
    """Any of them: four, all over the network."""
    lines = network.dispatches.splitlines(keepends=True)
    waits = lines_with(network.dispatches, "qf_dma_wait(")
    assert len(waits) > 50
    at = waits[part * (len(waits) - 1) // 3]
    lines[at] = lines[at].replace("qf_dma_wait(", "(void)(")
    done = network.run(network.build(DEBUG, dispatches="".join(lines)))
    assert done.returncode == 70
    assert re.match(r"DMA: core 0, fork 0, .*: ", done.stderr)
    # The dispatch that the line is in.
    inside = re.findall(r"^void (\w+)\(", "".join(lines[:at]), flags=re.MULTILINE)[-1]
    assert f" of {inside}: " in done.stderr


def test_swapped_buffers_of_an_operand(network: Network) -> None:
    """The next tile is brought to where the cores read the one before: poison, and a race."""
    text = replace_first(r"qf_dma_start\(a_tile_2, ", "qf_dma_start(a_tile, ", network.dispatches)
    done = network.run(network.build(DEBUG, dispatches=text))
    assert done.returncode == 0
    outputs = unpack_ports(network.program.outputs, (network.folder / "out.bin").read_bytes())
    assert all(np.isnan(value).any() for value in outputs.values())
    done = raced(network, text)
    assert done.returncode == 66
    assert "data race" in done.stderr and "packed_matmul_axis" in done.stderr


def test_swapped_buffers_of_a_result(network: Network) -> None:
    """The buffer that is sent is the one that the cores write next."""
    text = replace_first(
        r"qf_dma_start_2d\((\w+), y_tile, ", r"qf_dma_start_2d(\1, y_tile_2, ", network.dispatches
    )
    done = network.run(network.build(DEBUG, dispatches=text))
    assert done.returncode == 70
    assert "the source changed during the transfer" in done.stderr


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_removed_barrier(network: Network, after: bool) -> None:
    """Around a kernel: the tile has to be there before it, the result after it."""
    lines = network.dispatches.splitlines(keepends=True)
    kernel = next(
        i for i, line in enumerate(lines) if line.lstrip().startswith("packed_matmul_axis_")
    )
    barriers = lines_with(network.dispatches, "qf_barrier();")
    at = (
        next(i for i in barriers if i > kernel)
        if after
        else [i for i in barriers if i < kernel][-1]
    )
    del lines[at]
    done = raced(network, "".join(lines))
    assert done.returncode in (66, 70)
    assert "data race" in done.stderr and "packed_matmul_axis" in done.stderr
