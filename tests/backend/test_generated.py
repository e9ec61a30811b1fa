"""The generated project as a whole: API, types that do not mix, traces, determinism, compilers, sanitizers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from xdsl.parser import Parser

from qfold.backend.build import BuildError, find_compiler
from qfold.backend.c.emit import emit, emit_texts
from qfold.backend.c.program import NotLevel3
from qfold.backend.files import write_directory
from qfold.backend.run import RunError, build, build_module
from qfold.targets import HOST
from tests.backend.level3 import SANITIZED
from tests.backend.networks import POISON, SCALE, WEIGHT, context, small_network, small_reference

X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror"]
ZIG = f"{sys.executable} -m ziglang cc"
COMPILERS = [
    pytest.param("gcc", marks=pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")),
    pytest.param("clang", marks=pytest.mark.skipif(not shutil.which("clang"), reason="no clang")),
    pytest.param(
        ZIG, id="zig", marks=pytest.mark.skipif(not find_spec("ziglang"), reason="no ziglang")
    ),
]


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return emit(small_network())


@pytest.fixture
def project(files: dict[str, bytes], tmp_path: Path) -> Path:
    write_directory(tmp_path / "net", files)
    return tmp_path / "net"


def cc(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*find_compiler(HOST).command, *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) >= 1, f"{old!r} is not in {path.name}"
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("compiler", COMPILERS)
def test_runs_with_each_compiler(compiler: str) -> None:
    executable = build_module(small_network(), cc=compiler)
    found = executable.run({"x/in:0": X})["int"]
    assert np.abs(found - small_reference(X)).max() <= 1e-4 * small_reference(X).max()


def test_emits_the_same_bytes_each_time(files: dict[str, bytes]) -> None:
    assert emit(small_network()) == files
    code = "import sys; from tests.backend.networks import small_network; from qfold.backend.c.emit import emit_texts;"
    code += "sys.stdout.write(''.join(emit_texts(small_network()).values()))"
    root = Path(__file__).resolve().parents[2]
    texts = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": f"{root / 'src'}:{root}"},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert texts == {"".join(emit_texts(small_network()).values())}


def test_every_constant_is_stored_once_and_narrow(files: dict[str, bytes]) -> None:
    blob = files["weights.bin"]
    assert blob.count(POISON) == 1
    dequantised = (SCALE * WEIGHT).astype(np.float32).tobytes()
    assert dequantised not in blob and WEIGHT.astype(np.float32).tobytes() not in blob
    assert b"extern const int8_t w_0[24];" in files["network_buffers.h"]


def test_network_c_has_no_cast(files: dict[str, bytes]) -> None:
    text = files["network.c"].decode()
    run = text[text.index("int net_run") :]
    assert " *)" not in run
    assert "/* 2: layer/Double */" in run


def test_a_node_name_cannot_end_a_comment(files: dict[str, bytes]) -> None:
    for name in ("network.c", "kernels.c"):
        assert b"*/ evil" not in files[name] and b"evil" in files[name]


def test_names_of_the_api(files: dict[str, bytes]) -> None:
    header = files["network.h"].decode()
    for line in (
        '#define NET_IN_0_NAME "x/in:0"',
        "#define NET_IN_0_TYPE float",
        "#define NET_IN_0_SHAPE {4, 8}",
        "#define NET_IN_0_BYTES 128",
        "#define NET_L2_BYTES 192",
        "#define NET_L2_ALIGN 64",
        "const float *x_in_0; /* [4, 8] */",
        "float *x_int; /* [4, 3] */",  # `int` is no name for a member
        "int net_run(net_t *net, const net_in_t *in, net_out_t *out);",
    ):
        assert line in header, line


def test_each_header_stands_alone(project: Path) -> None:
    for header in ("network.h", "network_buffers.h", "kernels.h", "qfold_math.h", "qfold_int.h"):
        (project / "alone.c").write_text(f'#include "{header}"\n#include "{header}"\n')
        done = cc(project, *STRICT, "-pedantic", "-fsyntax-only", "alone.c")
        assert done.returncode == 0, done.stderr


WRONG = [
    # what a mistake in the generated C would look like, and what the compiler calls it
    ("network.c", "net_w_0(net)", "net_w_1(net)", "incompatible pointer type|pointer-sign|incompatible-pointer-types"),
    ("network.c", "net_w_2(net)", "net_w_1(net)", "incompatible pointer type|incompatible-pointer-types"),
    ("network_buffers.h", "extern const int8_t w_0[24];", "extern const float w_0[24];", "incompatible"),
    ("network_buffers.h", "extern const int8_t w_0[24];", "extern const uint8_t w_0[24];", "signedness|incompatible"),
    ("network_buffers.h", "static inline float *net_l2_0_f32", "static inline int8_t *net_l2_0_f32", "incompatible"),
    ("kernels.h", "const int8_t *restrict w", "const float *restrict w", "conflicting types|incompatible"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "old", "new", "message"), WRONG)
def test_a_wrong_type_does_not_compile(
    project: Path, file: str, old: str, new: str, message: str
) -> None:
    import re

    assert cc(project, *STRICT, "-fsyntax-only", "network.c", "kernels.c").returncode == 0
    edit(project / file, old, new)
    done = cc(project, *STRICT, "-fsyntax-only", "network.c", "kernels.c")
    assert done.returncode != 0
    assert re.search(message, done.stderr), done.stderr


def test_nibbles_do_not_pass_for_bytes(project: Path) -> None:
    (project / "nibbles.c").write_text(
        '#include "qfold_int.h"\nvoid f(const int8_t *p);\nvoid g(const qf_i4x2 *p);\nvoid h(const qf_u4x2 *p);\n'
        "void h(const qf_u4x2 *p) { CALL(p); }\n"
    )
    assert cc(project, *STRICT, "-DCALL=h", "-fsyntax-only", "nibbles.c").returncode == 0
    for wrong in ("f", "g"):
        done = cc(project, *STRICT, f"-DCALL={wrong}", "-fsyntax-only", "nibbles.c")
        assert done.returncode != 0 and "incompatible" in done.stderr


def test_a_kernel_for_another_op_is_refused() -> None:
    with pytest.raises(
        NotLevel3, match=r"kernel c\.matmul was selected for qkernel\.dequant_matmul.*memref<8x3xi8"
    ):
        emit(small_network(kernel="c.matmul"))


def test_poisoned_weight_read_as_float_would_be_seen() -> None:
    """The weight's bytes are plausible floats; the result is that of the integers."""
    found = build_module(small_network()).run({"x/in:0": X})["int"]
    as_floats = np.frombuffer(POISON, np.float32)
    assert np.isfinite(as_floats).all() and np.abs(as_floats).max() <= 2
    assert np.allclose(found, small_reference(X), rtol=1e-5, atol=1e-4)


def test_trace_holds_what_each_dispatch_read_and_wrote() -> None:
    executable = build_module(small_network(), trace=True)
    outputs = executable.run({"x/in:0": X})
    row_sum, matmul, double, copy = executable.run_traced({"x/in:0": X})
    assert row_sum.symbol == "row_sum" and np.array_equal(row_sum.before[0], X)
    assert row_sum.before[1] is None, "the sum is started by its fill, not read"
    assert np.array_equal(matmul.before[1], WEIGHT) and matmul.before[1].dtype == np.int8
    assert np.array_equal(matmul.before[4], row_sum.after[1])
    assert np.array_equal(double.after[0], 2 * double.before[0])
    assert np.array_equal(double.before[0], matmul.after[5])
    assert np.array_equal(copy.after[1], outputs["int"])
    with pytest.raises(RunError, match="trace=True"):
        build_module(small_network()).run_traced({"x/in:0": X})


def test_trace_finds_a_constant_that_is_not_the_modules(project: Path) -> None:
    blob = bytearray((project / "weights.bin").read_bytes())
    blob[blob.index(POISON) + 5] ^= 1
    (project / "weights.bin").write_bytes(bytes(blob))
    executable = build(project, small_network(), trace=True)
    with pytest.raises(
        RunError, match=r"dispatch 1 \(matmul_relu\) read other bytes than those of @w_0"
    ):
        executable.run_traced({"x/in:0": X})


def test_trace_finds_a_call_of_another_kernel(project: Path) -> None:
    edit(
        project / "network.c",
        "double_in_place(net_l2_64_f32(net));",
        "copy_out(net_l2_64_f32(net), out->x_int);",
    )
    executable = build(project, small_network(), trace=True)
    with pytest.raises(RunError, match="dispatch 2 ran copy_out, the module says double_in_place"):
        executable.run_traced({"x/in:0": X})


def test_sanitizers_find_nothing() -> None:
    found = build_module(small_network(), **SANITIZED).run({"x/in:0": X})["int"]
    assert np.allclose(found, small_reference(X), rtol=1e-5, atol=1e-4)


API_TEST = r"""
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "network.h"

static float x[32];
static float expected[12];

static void *thread(void *arg) {
    net_t net;
    net_mem_t mem;
    net_in_t in = {x};
    float y[12];
    net_out_t out = {y};
    (void)arg;
    mem.weights = NULL;
    if (posix_memalign(&mem.l2, NET_L2_ALIGN, NET_L2_BYTES) != 0) abort();
    assert(net_init(&net, &mem) == NET_OK);
    for (int i = 0; i < 2000; i++) {
        memset(y, 0, sizeof y);
        assert(net_run(&net, &in, &out) == NET_OK);
        assert(memcmp(y, expected, sizeof y) == 0);
    }
    free(mem.l2);
    return NULL;
}

int main(void) {
    static const int shape[] = NET_OUT_0_SHAPE;
    pthread_t threads[4];
    net_t net;
    net_mem_t mem;
    net_in_t in = {x};
    net_out_t out = {expected};
    char *block = aligned_alloc(NET_L2_ALIGN, 2 * NET_L2_BYTES);
    assert(shape[0] == 4 && shape[1] == 3 && NET_OUT_0_ELEMENTS == 12);
    for (int i = 0; i < 32; i++) x[i] = (float)(i % 7) - 3.0f;
    mem.l2 = NULL;
    mem.weights = NULL;
    assert(net_init(NULL, &mem) == NET_ERR_NULL);
    assert(net_init(&net, NULL) == NET_ERR_NULL);
    assert(net_init(&net, &mem) == NET_ERR_NULL);
    mem.l2 = block + 4;
    assert(net_init(&net, &mem) == NET_ERR_ALIGN);
    mem.l2 = block;
    assert(net_init(&net, &mem) == NET_OK);
    in.x_in_0 = NULL;
    assert(net_run(&net, &in, &out) == NET_ERR_NULL);
    in.x_in_0 = x;
    assert(net_run(&net, &in, NULL) == NET_ERR_NULL);
    assert(net_run(&net, &in, &out) == NET_OK);
    for (int i = 0; i < 4; i++) assert(pthread_create(&threads[i], NULL, thread, NULL) == 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    printf("good\n");
    return 0;
}
"""


def test_api_checks_its_arguments_and_runs_in_parallel(project: Path) -> None:
    (project / "api.c").write_text(API_TEST)
    sources = ["api.c", "network.c", "kernels.c", "weights.S"]
    done = cc(project, "-std=gnu11", "-O1", "-pthread", *sources, "-o", "api")
    assert done.returncode == 0, done.stderr
    ran = subprocess.run([project / "api"], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "good\n"), ran.stderr


def test_weights_may_come_from_memory(project: Path) -> None:
    (project / "memory.c").write_text(
        r"""
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include "network.h"
int main(void) {
    static float x[32], y[12];
    net_t net;
    net_in_t in = {x};
    net_out_t out = {y};
    net_mem_t mem;
    FILE *file = fopen("weights.bin", "rb");
    char *weights = aligned_alloc(64, (NET_WEIGHTS_BYTES + 63) / 64 * 64);
    mem.l2 = aligned_alloc(NET_L2_ALIGN, NET_L2_BYTES);
    mem.weights = NULL;
    assert(net_init(&net, &mem) == NET_ERR_NULL);
    mem.weights = weights;
    assert(fread(weights, 1, NET_WEIGHTS_BYTES, file) == NET_WEIGHTS_BYTES);
    assert(net_init(&net, &mem) == NET_OK);
    for (int i = 0; i < 32; i++) x[i] = 1.0f;
    assert(net_run(&net, &in, &out) == NET_OK);
    for (int i = 0; i < 12; i++) printf("%.9g ", (double)y[i]);
    return 0;
}
"""
    )
    flags = ["-std=gnu11", "-DNET_WEIGHTS_IN_MEMORY", "-O1"]
    done = cc(project, *flags, "memory.c", "network.c", "kernels.c", "-o", "memory")
    assert done.returncode == 0, done.stderr
    ran = subprocess.run(
        [project / "memory"], capture_output=True, text=True, timeout=60, cwd=project, check=True
    )
    expected = small_reference(np.ones((4, 8)))
    assert np.allclose(
        np.array(ran.stdout.split(), float).reshape(4, 3), expected, rtol=1e-5, atol=1e-4
    )


@pytest.mark.skipif(not shutil.which("make"), reason="no make")
def test_makefile_builds_the_example(project: Path, tmp_path: Path) -> None:
    subprocess.run(["make", "-s"], cwd=project, check=True, capture_output=True, timeout=120)
    (tmp_path / "x.bin").write_bytes(X.tobytes())
    command = [project / "network", tmp_path / "x.bin"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    name, _, numbers = ran.stdout.partition(":")
    assert name == "int (4x3)"
    shown = np.array(numbers.replace("...", "").split(), float)
    assert np.allclose(shown, small_reference(X).reshape(-1)[: shown.size], rtol=1e-5, atol=1e-4)
    assert (project / "libnetwork.a").is_file()


def test_inputs_that_do_not_fit() -> None:
    executable = build_module(small_network(), native=False, extra_cflags=["-O0"])
    for inputs, message in (
        ({}, r"missing x/in:0; the network takes x/in:0 \[4, 8\]"),
        ({"x/in:0": X, "y": X}, "unknown y"),
        ({"x/in:0": X[:2]}, r"shape \[2, 8\], expected \[4, 8\]"),
        ({"x/in:0": X.astype(np.float64)}, r"float64, expected float32 \(f32\)"),
    ):
        with pytest.raises(ValueError, match=message):
            executable.run(inputs)


def test_no_compiler_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="'nosuchcc', is not an executable"):
        find_compiler(HOST, "nosuchcc")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("qfold.backend.build.find_spec", lambda name: None)
    with pytest.raises(BuildError, match=r"no C compiler: .*cc, gcc, clang.*pip install ziglang"):
        find_compiler(HOST)
    monkeypatch.setattr("qfold.backend.build.find_spec", lambda name: object())
    assert find_compiler(HOST).command[1:] == ("-m", "ziglang", "cc")
    monkeypatch.setenv("CC", f"{sys.executable} -m ziglang cc")
    assert find_compiler(HOST).command == (sys.executable, "-m", "ziglang", "cc")


def test_a_compiler_error_is_shown(project: Path) -> None:
    edit(project / "kernels.c", "float acc", "flot acc")
    with pytest.raises(BuildError, match="unknown type name"):
        build(project, small_network())


RESIDUAL = """
builtin.module attributes {qmm.target = "host"} {
  func.func private @copy_in(%x: memref<5x40xf32, 2 : i64>, %y: memref<5x40xf32, 2 : i64>) attributes {qmm.kernel = "c.loops"} {
    "memref.copy"(%x, %y) : (memref<5x40xf32, 2 : i64>, memref<5x40xf32, 2 : i64>) -> ()
    func.return
  }
  func.func private @residual(%a: memref<5x3xf32, 2 : i64>, %b: memref<3x40xf32, 2 : i64>, %y: memref<5x40xf32, 2 : i64>)
      attributes {qmm.kernel = "c.matmul"} {
    qkernel.matmul %a, %b epilogue(%y) outs(%y) maps [affine_map<(d0, d1) -> (d0, d1)>]
        : (memref<5x3xf32, 2 : i64>, memref<3x40xf32, 2 : i64>, memref<5x40xf32, 2 : i64>, memref<5x40xf32, 2 : i64>) -> () {
    ^bb0(%acc: f32, %old: f32):
      %s = arith.addf %acc, %old : f32
      qmm.yield %s : f32
    }
    func.return
  }
  func.func @main(%arena: memref<800xi8, 2 : i64> {qmm.role = "arena"},
      %x: memref<5x40xf32, 2 : i64> {qmm.name = "x", qmm.role = "input"},
      %a: memref<5x3xf32, 2 : i64> {qmm.name = "a", qmm.role = "input"},
      %b: memref<3x40xf32, 2 : i64> {qmm.name = "b", qmm.role = "input"},
      %y: memref<5x40xf32, 2 : i64> {qmm.name = "y", qmm.role = "output"}) {
    %c0 = arith.constant 0 : index
    %t = "memref.view"(%arena, %c0) : (memref<800xi8, 2 : i64>, index) -> memref<5x40xf32, 2 : i64>
    func.call @copy_in(%x, %t) : (memref<5x40xf32, 2 : i64>, memref<5x40xf32, 2 : i64>) -> ()
    func.call @residual(%a, %b, %t) : (memref<5x3xf32, 2 : i64>, memref<3x40xf32, 2 : i64>, memref<5x40xf32, 2 : i64>) -> ()
    func.call @residual(%a, %b, %t) : (memref<5x3xf32, 2 : i64>, memref<3x40xf32, 2 : i64>, memref<5x40xf32, 2 : i64>) -> ()
    func.call @copy_in(%t, %y) : (memref<5x40xf32, 2 : i64>, memref<5x40xf32, 2 : i64>) -> ()
    func.return
  }
}
"""


def test_a_residual_in_place_is_added_once_per_call() -> None:
    module = Parser(context(), RESIDUAL).parse_module()
    module.verify()
    rng = np.random.default_rng(1)
    shapes = {"x": (5, 40), "a": (5, 3), "b": (3, 40)}
    values = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    executable = build_module(module, trace=True)
    expected = values["x"] + 2 * (values["a"].astype(np.float64) @ values["b"])
    assert np.allclose(executable.run(values)["y"], expected, rtol=1e-5, atol=1e-5)
    traced = executable.run_traced(values)
    assert np.array_equal(traced[1].before[2], values["x"])
    assert np.array_equal(traced[2].before[2], traced[1].after[2])


def test_operands_that_overlap_are_not_restrict() -> None:
    header = emit_texts(Parser(context(), RESIDUAL).parse_module())["kernels.h"]
    assert "void copy_in(const float *restrict x, float *restrict y);" in header
    text = RESIDUAL.replace("call @copy_in(%t, %y)", "call @copy_in(%t, %t)")
    header = emit_texts(Parser(context(), text).parse_module())["kernels.h"]
    assert "void copy_in(const float *x, float *y);" in header
