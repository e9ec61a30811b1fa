"""Programs that measure jobs on a cluster: one job on all cores, from fork to join, on Spike and on GVSoC."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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

OFFSETS = 10
"""Cores 4 to 7, which share their FPUs with cores 0 to 3, begin each kernel 0 to 9 instructions later than those."""

BEGIN = "BEGIN();"
"""The statement before each kernel."""

NEWLINE = "\n"
_EVENTS = 5
_REPEATS = 3


@dataclass(frozen=True)
class Job:
    """What all cores do. Each line is a statement of C; `BEGIN` stands before each kernel and `qf_barrier();` between two."""

    name: str
    statements: tuple[str, ...]
    instructions: float | None = None
    """What the register blocks predict, on all cores together."""
    shifted: bool = False
    """Whether to measure it with every offset."""
    added: int = 0
    """What it adds to each weight and takes back from the sum: how much less exact it may be."""
    bias: bool = True
    """Whether it adds the bias."""
    zero: bool = True
    """Whether it takes the zero points into account."""


@dataclass(frozen=True)
class Memory:
    """Where operands are. An array is loaded with its values; a number of bytes is a buffer. In C, `AT_<name>` is its address."""

    l1: Mapping[str, Array | int]
    l2: Mapping[str, Array | int] = field(default_factory=dict[str, "Array | int"])

    @property
    def all(self) -> dict[str, Array | int]:
        return {**self.l1, **self.l2}

    @property
    def places(self) -> dict[str, int]:
        """Offsets in L1, one after the other."""
        found: dict[str, int] = {}
        at = 0
        for name, value in self.l1.items():
            found[name] = at
            at += -(-size_of(value) // ALIGNMENT) * ALIGNMENT
        return found

    @property
    def l1_bytes(self) -> int:
        return max(at + size_of(self.l1[name]) for name, at in self.places.items())


def size_of(value: Array | int) -> int:
    return value if isinstance(value, int) else value.nbytes


@dataclass(frozen=True)
class CoreCounts:
    """One core in one job, without waiting: cycles but for `instructions`. On Spike `work` is instructions and the rest is 0."""

    work: int
    instructions: int
    load_use: int
    icache_miss: int
    fpu_contention: int


@dataclass(frozen=True)
class Measured:
    """One job. Times are of core 0, from before the fork to after the join: cycles, or instructions on Spike."""

    cold: int
    second: int
    warm: int
    """The third time: not all code that the second one needs has stayed in the instruction caches."""
    shifted: tuple[int, ...]
    """Warm, for each offset, what makes it included; empty where they were not measured."""
    cores: tuple[CoreCounts, ...]
    output: bytes

    @property
    def spread(self) -> float | None:
        """How much longer the worst offset takes than the best one."""
        return max(self.shifted) / min(self.shifted) - 1 if self.shifted else None


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
    """What each job takes, by simulator of `target`. `output` names the operand to keep; before each run it is overwritten."""
    if memory.l1_bytes > target.scratchpad_bytes:
        raise SystemExit(
            f"{memory.l1_bytes} bytes in L1, target {target.name} has {target.scratchpad_bytes}"
        )
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
            results[name] = _read(out.read_bytes(), jobs, size_of(memory.all[output]), target)
        return results


def _count(target: Target) -> list[str]:
    """Spike's counts leave waiting out. On GVSoC that would add to what is measured, and events do not count in a barrier."""
    return ["-DQFOLD_COUNT"] if target.port == "spike" else []


def _data(memory: Memory, folder: Path) -> str:
    """The values of arrays, in L2."""
    parts = ['.section .rodata.operands, "a", @progbits']
    for name, value in memory.all.items():
        if not isinstance(value, int):
            (folder / f"{name}.bin").write_bytes(np.ascontiguousarray(value).tobytes())
            parts += [".balign 16", f".globl data_{name}", f"data_{name}:", f'.incbin "{name}.bin"']
    return "\n".join([*parts, '.section .note.GNU-stack, "", @progbits', ""])


def _places(memory: Memory) -> str:
    """`AT_` of each operand."""
    lines = [
        f"extern const uint32_t data_{name}[];"
        for name, value in memory.all.items()
        if not isinstance(value, int)
    ]
    lines += [
        f"#define AT_{name} ((char *)qf_l1_base() + {at})" for name, at in memory.places.items()
    ]
    for name, value in memory.l2.items():
        if isinstance(value, int):
            lines += [
                f"static uint32_t in_l2_{name}[{-(-value // 4)}];",
                f"#define AT_{name} ((char *)in_l2_{name})",
            ]
        else:
            lines.append(f"#define AT_{name} ((const char *)data_{name})")
    return "\n".join(lines)


def _function(name: str, statements: Sequence[str]) -> str:
    return (
        "\n    ".join([f"static void {name}(void *unused) {{", "(void)unused;", *statements])
        + "\n}"
    )


def _program(jobs: Sequence[Job], memory: Memory, output: str, definitions: str) -> str:
    loads = "\n".join(
        f"    memcpy(AT_{name}, data_{name}, {value.nbytes});"
        for name, value in memory.l1.items()
        if not isinstance(value, int)
    )
    functions: list[str] = []
    calls: list[str] = []
    for i, job in enumerate(jobs):
        # What shifts the cores is not in the jobs that are timed without.
        functions.append(_function(f"job{i}", [s for s in job.statements if s != BEGIN]))
        shifted = "NULL"
        if job.shifted:
            shifted = f"job{i}_shifted"
            functions.append(_function(shifted, job.statements))
        calls.append(f"    measure(file, job{i}, {shifted});")
    size = size_of(memory.all[output])
    return f"""#include "port.h"
#include "kernels_in_c.h"
#ifdef ON_GVSOC
#include "ports/gvsoc/events.h"
#endif

{_places(memory)}

/* How many instructions later cores 4 to 7 begin. */
static volatile uint32_t offset __attribute__((section(".l1")));

__attribute__((unused)) static inline void begin(void) {{
    if (qf_core_id() >= 4) {{
        __asm__ volatile(".option push\\n.option norvc\\n"
                         "la t0, 1f\\n"
                         "sub t0, t0, %0\\n"
                         "jr t0\\n"
                         ".rept {OFFSETS - 1}\\nnop\\n.endr\\n"
                         "1:\\n.option pop"
                         :
                         : "r"(offset * 4)
                         : "t0", "memory");
    }}
}}
#define BEGIN() begin()

void *memcpy(void *restrict dst, const void *restrict src, size_t bytes);

{definitions}
{NEWLINE.join(functions)}

static void (*volatile current)(void *);
static uint32_t counts[QF_CORES][{_EVENTS}];

static void run_counted(void *unused) {{
    uint32_t *mine = counts[qf_core_id()];
    (void)unused;
#ifdef ON_GVSOC
    qf_events_start();
    current(NULL);
    qf_events_stop();
    mine[0] = QF_EVENT(QF_EVENT_CYCLES);
    mine[1] = QF_EVENT(QF_EVENT_INSTRUCTIONS);
    mine[2] = QF_EVENT(QF_EVENT_LOAD_USE);
    mine[3] = QF_EVENT(QF_EVENT_ICACHE_MISS);
    mine[4] = QF_EVENT(QF_EVENT_FPU_CONTENTION);
#else
    uint64_t before = qf_work_count();
    current(NULL);
    mine[0] = (uint32_t)(qf_work_count() - before);
#endif
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

static uint32_t time_of_run(void) {{
    uint64_t start;
    clear();
    start = qf_cycles();
    qf_fork(current, NULL);
    return (uint32_t)(qf_cycles() - start);
}}

static void measure(int file, void (*job)(void *), void (*shifted)(void *)) {{
    uint32_t offsets = shifted == NULL ? 0 : {OFFSETS};
    uint32_t times[{_REPEATS + OFFSETS}];
    current = job;
    for (uint32_t i = 0; i < {_REPEATS}; i++) {{
        times[i] = time_of_run();
    }}
    current = shifted;
    for (uint32_t i = 0; offsets != 0 && i < {_REPEATS}; i++) {{
        time_of_run();
    }}
    for (uint32_t i = 0; i < offsets; i++) {{
        offset = i;
        times[{_REPEATS} + i] = time_of_run();
    }}
    current = job;
    time_of_run();
    clear();
    qf_fork(run_counted, NULL);
    save(file, times, ({_REPEATS} + offsets) * 4);
    save(file, counts, sizeof counts);
    save(file, AT_{output}, {size});
}}

int qf_main(int argc, char **argv) {{
    int file = qf_file_open(argv[argc - 1], 1);
{loads}
{NEWLINE.join(calls)}
    return qf_file_close(file);
}}
"""


def _read(raw: bytes, jobs: Sequence[Job], size: int, target: Target) -> list[Measured]:
    """What the program wrote; `size`: of the output."""
    core = struct.Struct(f"<{_EVENTS}I")
    results: list[Measured] = []
    at = 0
    for job in jobs:
        times = struct.Struct(f"<{_REPEATS + OFFSETS * job.shifted}I")
        cold, second, warm, *shifted = times.unpack_from(raw, at)
        at += times.size
        cores = [
            CoreCounts(*core.unpack_from(raw, at + c * core.size)) for c in range(target.cores)
        ]
        at += core.size * target.cores
        output = raw[at : at + size]
        results.append(Measured(cold, second, warm, tuple(shifted), tuple(cores), output))
        at += size
    if at != len(raw):
        raise SystemExit(f"the program wrote {len(raw)} bytes, expected {at}")
    return results
