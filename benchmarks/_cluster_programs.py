"""Programs that measure jobs on a cluster: operands in L1, a job on all cores from fork to join, on Spike and on GVSoC."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qfold.backend.build import compile_program
from qfold.backend.simulators import Simulator
from qfold.targets import Target

Array = npt.NDArray[np.generic]
FOLDER = Path(__file__).resolve().parent
ALIGNMENT = 16
TIMEOUT = 300.0

OFFSETS = tuple(range(10))
"""Cycles by which cores 4 to 7, which share their FPUs with cores 0 to 3, begin a kernel later than those."""

_EVENTS = ("WORK", "INSTRUCTIONS", "LOAD_USE", "ICACHE_MISS", "FPU_CONTENTION")


@dataclass(frozen=True)
class Job:
    """What all cores do. Each line is a statement of C; `BEGIN();` stands before each kernel and `qf_barrier();` between two."""

    name: str
    statements: tuple[str, ...]
    instructions: float | None = None
    """What the register blocks predict, on all cores."""


@dataclass(frozen=True)
class Memory:
    """Arrays in L1, one after the other. An array is loaded with its values; a number of bytes is a buffer."""

    arrays: Mapping[str, Array | int]

    @property
    def offsets(self) -> dict[str, int]:
        places: dict[str, int] = {}
        at = 0
        for name, value in self.arrays.items():
            places[name] = at
            at += -(-_size(value) // ALIGNMENT) * ALIGNMENT
        return places

    @property
    def bytes(self) -> int:
        last = list(self.arrays)[-1]
        return self.offsets[last] + _size(self.arrays[last])


@dataclass(frozen=True)
class CoreCounts:
    """One core in one job, without waiting. On Spike `work` is instructions and the rest 0."""

    work: int
    instructions: int
    load_use: int
    icache_miss: int
    fpu_contention: int


@dataclass(frozen=True)
class Measured:
    """One job. Times are of core 0, from before the fork to after the join."""

    cold: int
    warm: int
    """The second time, without an offset."""
    offsets: tuple[int, ...]
    """Warm, for each of `OFFSETS`."""
    cores: tuple[CoreCounts, ...]
    output: bytes


def run_jobs(
    jobs: Sequence[Job],
    memory: Memory,
    output: str,
    target: Target,
    simulators: Mapping[str, Simulator],
    *,
    definitions: str = "",
    assembly: str = "",
) -> dict[str, list[Measured]]:
    """What each job takes, for each simulator of `target`. `output` names the array that is kept; it is overwritten before each run."""
    if memory.bytes > target.scratchpad_bytes:
        raise SystemExit(f"{memory.bytes} bytes of operands, {target.name} has {target.scratchpad_bytes} for tiles")
    with tempfile.TemporaryDirectory(prefix="qfold-kernels-") as scratch:
        folder = Path(scratch)
        (folder / "program.c").write_text(_program(jobs, memory, output, definitions))
        (folder / "kernels.S").write_text(assembly)
        (folder / "data.S").write_text(_data(memory, folder))
        built = compile_program(
            [folder / name for name in ("program.c", "kernels.S", "data.S")],
            target,
            output=folder,
            directory=folder,
            flags=[f"-I{FOLDER}", f"-DON_{target.port.upper()}", *_count(target)],
            runner=False,
        )
        results: dict[str, list[Measured]] = {}
        for name, simulator in simulators.items():
            out = folder / f"out-{name}"
            run = simulator.run(built.binary, [str(out)], target, timeout=TIMEOUT)
            if run.exit_code:
                raise SystemExit(f"{name} ended with {run.exit_code}\n{run.messages}")
            results[name] = _read(out.read_bytes(), len(jobs), memory, output, target)
        return results


def _count(target: Target) -> list[str]:
    """Spike's counts leave waiting out; GVSoC's would add to what is measured, and its event counters stand still in a barrier."""
    return ["-DQFOLD_COUNT"] if target.port == "spike" else []


def _size(value: Array | int) -> int:
    return value if isinstance(value, int) else value.nbytes


def _data(memory: Memory, folder: Path) -> str:
    """The values of arrays, for the program to copy."""
    parts = ['.section .rodata.operands, "a", @progbits']
    for name, value in memory.arrays.items():
        if not isinstance(value, int):
            (folder / f"{name}.bin").write_bytes(np.ascontiguousarray(value).tobytes())
            parts += [".balign 16", f".globl data_{name}", f"data_{name}:", f'.incbin "{name}.bin"']
    return "\n".join([*parts, '.section .note.GNU-stack, "", @progbits', ""])


def _program(jobs: Sequence[Job], memory: Memory, output: str, definitions: str) -> str:
    places = memory.offsets
    defines = "\n".join(f"#define AT_{name} ({at} + qf_l1_base_of())" for name, at in places.items())
    externs = "\n".join(
        f"extern const uint32_t data_{name}[];"
        for name, value in memory.arrays.items()
        if not isinstance(value, int)
    )
    loads = "\n".join(
        f"    copy(AT_{name}, data_{name}, {_size(value)});"
        for name, value in memory.arrays.items()
        if not isinstance(value, int)
    )
    functions = "\n".join(
        f"static void job{i}(void) {{\n    "
        + "\n    ".join(job.statements)
        + "\n}"
        for i, job in enumerate(jobs)
    )
    calls = "\n".join(f"    measure(file, job{i});" for i in range(len(jobs)))
    size = _size(memory.arrays[output])
    return f"""#include "port.h"
#include "kernels_in_c.h"
#ifdef ON_GVSOC
#include "ports/gvsoc/events.h"
#endif

static char *qf_l1_base_of(void) {{ return qf_l1_base(); }}
{defines}
{externs}

/* How many instructions later cores 4 to 7 begin. */
static volatile uint32_t offset __attribute__((section(".l1")));

static inline void begin(void) {{
    if (qf_core_id() >= 4) {{
        __asm__ volatile(".option push\\n.option norvc\\n"
                         "la t0, 1f\\n"
                         "sub t0, t0, %0\\n"
                         "jr t0\\n"
                         ".rept {max(OFFSETS)}\\nnop\\n.endr\\n"
                         "1:\\n.option pop"
                         :
                         : "r"(offset * 4)
                         : "t0", "memory");
    }}
}}
#define BEGIN() begin()

{definitions}
{functions}

static void (*volatile current)(void);
static uint32_t counts[QF_CORES][{len(_EVENTS)}];

static void run(void *unused) {{
    (void)unused;
    current();
}}

static void run_counted(void *unused) {{
    uint32_t *mine = counts[qf_core_id()];
    (void)unused;
#ifdef ON_GVSOC
    qf_events_start();
    current();
    qf_events_stop();
    mine[0] = QF_EVENT(QF_EVENT_CYCLES);
    mine[1] = QF_EVENT(QF_EVENT_INSTRUCTIONS);
    mine[2] = QF_EVENT(QF_EVENT_LOAD_USE);
    mine[3] = QF_EVENT(QF_EVENT_ICACHE_MISS);
    mine[4] = QF_EVENT(QF_EVENT_FPU_CONTENTION);
#else
    uint64_t before = qf_work_count();
    current();
    mine[0] = (uint32_t)(qf_work_count() - before);
#endif
}}

static void copy(void *to, const uint32_t *from, uint32_t bytes) {{
    uint8_t *p = to;
    const uint8_t *q = (const uint8_t *)from;
    for (uint32_t i = 0; i < bytes; i++) {{
        p[i] = q[i];
    }}
}}

static void save(int file, const void *data, uint32_t bytes) {{
    if (qf_file_write(file, data, bytes) != (ptrdiff_t)bytes) {{
        qf_exit(3);
    }}
}}

static void clear(void) {{
    uint8_t *p = (uint8_t *)AT_{output};
    for (uint32_t i = 0; i < {size}; i++) {{
        p[i] = 0xA5;
    }}
}}

static uint32_t time_of_run(uint32_t nops) {{
    uint64_t start;
    offset = nops;
    clear();
    start = qf_cycles();
    qf_fork(run, NULL);
    return (uint32_t)(qf_cycles() - start);
}}

static void measure(int file, void (*job)(void)) {{
    uint32_t times[1 + {len(OFFSETS)}];
    current = job;
    times[0] = time_of_run(0);
    for (uint32_t i = 0; i < {len(OFFSETS)}; i++) {{
        times[1 + i] = time_of_run(i);
    }}
    offset = 0;
    clear();
    qf_fork(run_counted, NULL);
    save(file, times, sizeof times);
    save(file, counts, sizeof counts);
    save(file, AT_{output}, {size});
}}

int qf_main(int argc, char **argv) {{
    int file = qf_file_open(argv[argc - 1], 1);
{loads}
{calls}
    return qf_file_close(file);
}}
"""


def _read(
    raw: bytes, jobs: int, memory: Memory, output: str, target: Target
) -> list[Measured]:
    """What the program wrote."""
    times = struct.Struct(f"<{1 + len(OFFSETS)}I")
    core = struct.Struct(f"<{len(_EVENTS)}I")
    size = _size(memory.arrays[output])
    results: list[Measured] = []
    at = 0
    for _ in range(jobs):
        cold, *warm = times.unpack_from(raw, at)
        at += times.size
        cores = [CoreCounts(*core.unpack_from(raw, at + c * core.size)) for c in range(target.cores)]
        at += core.size * target.cores
        results.append(Measured(cold, warm[0], tuple(warm), tuple(cores), raw[at : at + size]))
        at += size
    if at != len(raw):
        raise SystemExit(f"the program wrote {len(raw)} bytes, expected {at}")
    return results
