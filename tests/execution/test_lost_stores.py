"""A core stores nothing beyond its share of an array: not even what is there already, as another core may have changed it since.

Compilers may not do that either, and one did. A race detector does not see it, since what it instruments is the source.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from qfold import runtime
from qfold.backend.c.emit import emit
from qfold.backend.files import write_directory
from qfold.targets import target_named
from qfold.tools.driver import Options, compile_model
from tests.runtime.compiling import compiler

ROWS, K, COLUMNS = 11, 8, 11
"""Blocks of three rows and four columns, with a tail of both: neighbours in a row belong to two cores."""

_WATCH = """
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "kernels.h"

enum {{ CORES = {cores}, SIZE = {size} }};
static uint32_t core;
uint32_t qf_core_id(void) {{ return core; }}
uint32_t qf_num_cores(void) {{ return CORES; }}

{operands}
static void run_core(uint8_t *result) {{ {symbol}({arguments}); }}

static uint8_t own[CORES][SIZE];
static uint8_t shared[SIZE];
static int ended;
static long lost;

/* Plays all of the other cores: stores to every element but those of `core`, and looks whether they stay. */
static void *others(void *unused) {{
    volatile uint8_t *y = shared;
    (void)unused;
    for (uint8_t value = 0; !__atomic_load_n(&ended, __ATOMIC_ACQUIRE); value++) {{
        for (int i = 0; i < SIZE; i++) {{
            if (!own[core][i]) {{
                y[i] = value;
            }}
        }}
        for (int i = 0; i < SIZE; i++) {{
            lost += !own[core][i] && y[i] != value;
        }}
    }}
    return NULL;
}}

int main(void) {{
    static uint8_t one[SIZE], other[SIZE];
    int written = 0;
    for (core = 0; core < CORES; core++) {{
        memset(one, 0x55, SIZE);
        memset(other, 0xaa, SIZE);
        run_core(one);
        run_core(other);
        for (int i = 0; i < SIZE; i++) {{
            own[core][i] = one[i] == other[i];
            written += own[core][i];
        }}
    }}
    for (core = 0; core < CORES; core++) {{
        pthread_t thread;
        ended = 0;
        pthread_create(&thread, NULL, others, NULL);
        for (int turn = 0; turn < 200000; turn++) {{
            run_core(shared);
        }}
        __atomic_store_n(&ended, 1, __ATOMIC_RELEASE);
        pthread_join(thread, NULL);
    }}
    printf("%d %ld", written, lost);
    return 0;
}}
"""


def model() -> bytes:
    """Integers times a constant, requantised."""
    rng = np.random.default_rng(0)
    constants = {
        "sx": np.float32(0.004),
        "zx": np.int8(-128),
        "w": rng.integers(-128, 128, (K, COLUMNS)).astype(np.int8),
        "sw": np.float32(0.004),
        "zw": np.int8(-8),
        "sy": np.float32(0.01),
        "zy": np.uint8(0),
    }
    node = helper.make_node("QLinearMatMul", ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy"], ["y"])
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.INT8, (ROWS, K))],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, (ROWS, COLUMNS))],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )
    opset = helper.make_opsetid("", 21)
    return helper.make_model(graph, opset_imports=[opset], ir_version=10).SerializeToString()


def test_nothing_is_stored_beyond_a_share(tmp_path: Path) -> None:
    target = target_named("threads")
    write_directory(tmp_path, emit(compile_model(model(), Options(target="threads")).kernels))
    header = (tmp_path / "kernels.h").read_text()
    kernel = re.search(r"void (packed_quant_matmul_\w+)\(([^)]*)\);", header)
    assert kernel is not None
    operands = [
        re.fullmatch(r"(?:const )?(\w+) \*restrict (\w+)", p.strip()) for p in kernel[2].split(",")
    ]
    assert all(operands)
    named = [(o[2], o[1]) for o in operands if o is not None]
    assert named[-1] == ("y", "uint8_t")
    source = tmp_path / "watch.c"
    source.write_text(
        _WATCH.format(
            cores=target.cores,
            size=ROWS * COLUMNS,
            operands="\n".join(f"static {type_} {name}[256];" for name, type_ in named[:-1]),
            symbol=kernel[1],
            arguments=", ".join([*(name for name, _ in named[:-1]), "result"]),
        )
    )
    command = [*compiler(), *target.toolchain.flags, f"-DQF_CORES={target.cores}"]
    command += [f"-I{Path(runtime.__file__).parent}", f"-I{tmp_path}", str(tmp_path / "kernels.c")]
    binary = tmp_path / "watch"
    command += [str(source), "-lpthread", "-o", str(binary)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert built.returncode == 0, built.stderr
    done = subprocess.run([str(binary)], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == f"{ROWS * COLUMNS} 0"
