"""Running a compiled network: numpy in, numpy out, and what every dispatch read and wrote."""

from __future__ import annotations

import os
import statistics
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import Attribute

from qfold.backend.build import BuildDirectory, Built, compile_directory
from qfold.backend.c.emit import emit
from qfold.backend.c.layout import span
from qfold.backend.c.program import Port, WeightData
from qfold.backend.c.reader import read_program
from qfold.backend.files import write_directory
from qfold.backend.simulators import SimulationResult, SimulatorError, simulator_for
from qfold.backend.simulators.base import SIGNAL, run_command
from qfold.backend.simulators.profile import Profile
from qfold.dialects.element_types import byte_size, numpy_dtype, pack, unpack
from qfold.ir.layouts import Layout
from qfold.runtime.counts import Counts, read_counts
from qfold.targets import target_named

Array = npt.NDArray[Any]
_TIMEOUT = 600


class RunError(Exception):
    """The network could not be run, or reported an error; the message says which."""


@dataclass(frozen=True)
class DispatchTrace:
    """The operands of one kernel call in the checked build, in the order of its arguments."""

    ordinal: int
    symbol: str
    before: tuple[Array | None, ...]
    """What each operand held before the call; None for one that is written only."""
    after: tuple[Array | None, ...]
    """What each written operand held after it; None for one that is not written."""
    leafs: tuple[str, ...] = ()
    """Symbols of the kernels that a staged dispatch called, one after the other."""


_LEAF = (1 << 64) - 1
"""The tag of a record of `runner.c` that names a kernel which a staged dispatch calls."""


@dataclass(frozen=True)
class RunResult:
    """What came of some runs with the same inputs."""

    outputs: dict[str, Array]
    times: list[float]
    """What each run took, as `Executable.timings`."""
    counts: Counts | None
    """Of a build with `-DQFOLD_COUNT`."""
    profile: Profile | None
    """Where it was asked for."""


class Executable:
    """A network compiled for the machine that runs this, or for a simulator on it.

    Close it, or let it be collected, to remove what was built.
    """

    def __init__(self, module: ModuleOp, built: Built, scratch: BuildDirectory):
        self._program = read_program(module)
        self._scratch = scratch
        self.built = built

    @property
    def inputs(self) -> dict[str, MemRefType[Attribute]]:
        """ONNX name -> type of each input."""
        return {p.name: p.type for p in self._program.inputs}

    @property
    def outputs(self) -> dict[str, MemRefType[Attribute]]:
        return {p.name: p.type for p in self._program.outputs}

    def close(self) -> None:
        self._scratch.close()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs, by ONNX name. `ValueError` for inputs that do not fit, `RunError` when the network fails."""
        return self._run(inputs).outputs

    def benchmark(self, inputs: Mapping[str, Array], repeat: int = 10) -> float:
        """What `timings` measures, for one run: the median of `repeat` runs after one that warms up."""
        return statistics.median(self.timings(inputs, repeat + 1)[1:])

    def timings(self, inputs: Mapping[str, Array], repeat: int) -> list[float]:
        """What each of `repeat` runs took, the first one from cold: seconds, or in a simulator what core 0 counted (instructions,
        cycles).
        """
        return self._run(inputs, repeat).times

    def run_counted(
        self, inputs: Mapping[str, Array], repeat: int = 1
    ) -> tuple[dict[str, Array], Counts]:
        """The outputs, and what each core did in each dispatch of `repeat` runs. `RunError` unless this was built with
        `-DQFOLD_COUNT`.
        """
        if not self.built.counted:
            raise RunError("only a build with -DQFOLD_COUNT counts")
        done = self._run(inputs, repeat)
        assert done.counts is not None
        return done.outputs, done.counts

    def measure(self, inputs: Mapping[str, Array], *, profile: bool = False) -> RunResult:
        """One run with all that this build counts; `profile`: which functions ran with which loads too. `RunError` where the
        target's simulator cannot tell.
        """
        return self._run(inputs, profile=profile)

    def run_traced(self, inputs: Mapping[str, Array]) -> list[DispatchTrace]:
        """What each dispatch read and wrote, in order.

        `RunError` unless this is a checked build (`trace=True`), or when a dispatch was not the one that the module says, or
        read other bytes for a constant than the module has.
        """
        if not self.built.traced:
            raise RunError("only a build with trace=True records its dispatches")
        path = self._scratch.path / "trace.bin"
        try:
            self._run(inputs, trace=path)
            return self._read_trace(path.read_bytes())
        finally:
            path.unlink(missing_ok=True)

    def _run(
        self,
        inputs: Mapping[str, Array],
        repeat: int = 1,
        *,
        trace: Path | None = None,
        profile: bool = False,
    ) -> RunResult:
        given = pack_ports(self._program.inputs, inputs)
        source, result = self._scratch.path / "inputs.bin", self._scratch.path / "outputs.bin"
        counts = self._scratch.path / "counts.bin" if self.built.counted else None
        source.write_bytes(given)
        files = [p for p in (trace, counts) if p is not None]
        done = self._execute([str(source), str(result), str(repeat), *map(str, files)], profile)
        code = done.exit_code
        if code:
            how = f"signal {code - SIGNAL}" if code > SIGNAL else f"exit code {code}"
            raise RunError(f"the network stopped with {how}\n{done.messages}".strip())
        return RunResult(
            unpack_ports(self._program.outputs, result.read_bytes()),
            [float(line) for line in done.stdout.split()],
            None if counts is None else read_counts(counts.read_bytes()),
            done.profile,
        )

    def _execute(self, arguments: Sequence[str], profile: bool) -> SimulationResult:
        target = target_named(self._program.target)
        binary = self.built.binary
        try:
            if target.isa is not None:
                simulator = simulator_for(target)
                return simulator.run(binary, arguments, target, timeout=_TIMEOUT, profile=profile)
            command = [part.format(binary=binary) for part in target.toolchain.run]
            return run_command([*command, *arguments], _TIMEOUT, name="the machine")
        except SimulatorError as e:
            raise RunError(str(e)) from None

    def _read_trace(self, raw: bytes) -> list[DispatchTrace]:
        at = 0
        calls: list[tuple[str, dict[tuple[int, int], bytes], list[str]]] = []
        while at < len(raw):
            tag, size = struct.unpack_from("=QQ", raw, at)
            body = raw[at + 16 : at + 16 + size]
            at += 16 + size
            if tag == 0:
                calls.append((body.decode(), {}, []))
            elif tag == _LEAF:
                calls[-1][2].append(body.decode())
            else:
                calls[-1][1][divmod(tag - 1, 2)] = body
        if len(calls) != len(self._program.dispatches):
            raise RunError(
                f"{len(calls)} kernels ran, the module has {len(self._program.dispatches)} dispatches"
            )
        traces: list[DispatchTrace] = []
        for dispatch, (symbol, records, leafs) in zip(self._program.dispatches, calls, strict=True):
            if symbol != dispatch.kernel.symbol:
                raise RunError(
                    f"dispatch {dispatch.ordinal} ran {symbol}, the module says {dispatch.kernel.symbol}"
                )
            before: list[Array | None] = []
            after: list[Array | None] = []
            for i, place in enumerate(dispatch.operands):
                type_ = place.type
                held = records.get((i, 0))
                if held is not None and isinstance(place.root, WeightData):
                    start = place.bytes
                    if place.root.weight.raw[start : start + len(held)] != held:
                        raise RunError(
                            f"dispatch {dispatch.ordinal} ({symbol}) read other bytes than those of @{place.root.symbol}"
                        )
                before.append(None if held is None else view_of_bytes(held, type_))
                held = records.get((i, 1))
                after.append(None if held is None else view_of_bytes(held, type_))
            traces.append(
                DispatchTrace(dispatch.ordinal, symbol, tuple(before), tuple(after), tuple(leafs))
            )
        return traces


def view_of_bytes(raw: bytes, type_: MemRefType[Any]) -> Array:
    """The elements of a memref whose memory, from its first element on, is `raw`."""
    element = type_.get_element_type()
    layout = Layout.of(type_)
    flat = unpack(raw, element, (span(type_),))
    if flat.size == 0:
        return np.empty(layout.shape, numpy_dtype(element))
    strides = [s * flat.itemsize for s in layout.strides]
    return as_strided(flat, layout.shape, strides, writeable=False)


def pack_ports(ports: Sequence[Port], values: Mapping[str, Array]) -> bytes:
    """The bytes of every port's value in order. `ValueError` naming what is missing, unknown, or of another shape or type."""
    names = [p.name for p in ports]
    missing = [n for n in names if n not in values]
    unknown = [n for n in values if n not in names]
    if missing or unknown:
        known = ", ".join(f"{p.name} {list(p.type.get_shape())}" for p in ports)
        what = [f"missing {', '.join(missing)}"] if missing else []
        what += [f"unknown {', '.join(unknown)}"] if unknown else []
        raise ValueError(f"inputs: {'; '.join(what)}; the network takes {known}")
    parts: list[bytes] = []
    for port in ports:
        array = np.asarray(values[port.name])
        shape, element = port.type.get_shape(), port.type.get_element_type()
        if array.shape != shape:
            raise ValueError(
                f"input {port.name} has shape {list(array.shape)}, expected {list(shape)}"
            )
        dtype = numpy_dtype(element)
        if array.dtype != dtype:
            raise ValueError(f"input {port.name} is {array.dtype}, expected {dtype} ({element})")
        parts.append(pack(array, element))
    return b"".join(parts)


def _stored_bytes(port: Port) -> int:
    count = 1
    for extent in port.type.get_shape():
        count *= extent
    return byte_size(port.type.get_element_type(), count)


def unpack_ports(ports: Sequence[Port], raw: bytes) -> dict[str, Array]:
    """The inverse of `pack_ports`; the arrays are writeable copies."""
    values: dict[str, Array] = {}
    at = 0
    for port in ports:
        size = _stored_bytes(port)
        element = port.type.get_element_type()
        array = unpack(raw[at : at + size], element, port.type.get_shape())
        values[port.name] = np.array(array, numpy_dtype(element))
        at += size
    return values


def build(
    directory: str | os.PathLike[str],
    module: ModuleOp,
    *,
    cc: str | None = None,
    trace: bool = False,
    extra_cflags: Sequence[str] = (),
    native: bool = True,
) -> Executable:
    """Compile what `emit(module)` wrote to `directory` (see `compile_directory`)."""
    scratch = BuildDirectory()
    target = target_named(read_program(module).target)
    built = compile_directory(
        directory,
        target,
        output=scratch.path,
        cc=cc,
        trace=trace,
        extra_cflags=extra_cflags,
        native=native,
    )
    return Executable(module, built, scratch)


def build_module(
    module: ModuleOp,
    *,
    cc: str | None = None,
    trace: bool = False,
    extra_cflags: Sequence[str] = (),
    native: bool = True,
) -> Executable:
    """`emit`, write to a scratch directory, compile."""
    scratch = BuildDirectory()
    source = scratch.path / "source"
    write_directory(source, emit(module))
    built = compile_directory(
        source,
        target_named(read_program(module).target),
        output=scratch.path,
        cc=cc,
        trace=trace,
        extra_cflags=extra_cflags,
        native=native,
    )
    return Executable(module, built, scratch)
