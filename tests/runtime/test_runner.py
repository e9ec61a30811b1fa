"""The runner, one for every port: inputs, outputs, times, traces, counts, and what it says when one of them is wrong."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from qfold.runtime import port_sources
from qfold.runtime.counts import CountsError, read_counts
from tests.runtime.ports import build, run

X = np.arange(11, dtype=np.float32) / 4 - 1
B = np.arange(-5, 6, dtype=np.int8)
INPUTS = X.tobytes() + B.tobytes()
CORES = {"host": 1, "threads": 3, "qemu": 1}


def outputs(runs: int) -> bytes:
    return (2 * X + B).astype(np.float32).tobytes() + bytes([runs]) + b"\xa5" * 6


def build_network(folder: Path, port: str, *flags: str, l1: int = 4096) -> list[str]:
    (folder / "in.bin").write_bytes(INPUTS)
    scratchpad = ("-DNO_SCRATCHPAD",) if port == "host" else ()
    return build(folder, port, "network.c", *scratchpad, *flags, cores=CORES[port], l1=l1)


@pytest.fixture(scope="module", params=CORES)
def network(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[str], Path]:
    folder = tmp_path_factory.mktemp("network")
    return build_network(folder, request.param), folder


@pytest.mark.parametrize("repeat", [0, 1, 3])
def test_run(network: tuple[list[str], Path], repeat: int) -> None:
    program, folder = network
    done = run(program, "in.bin", "out.bin", str(repeat), folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == repeat
    for line in lines:
        seconds, decimals = line.split(".")
        assert len(decimals) == 9 and 0 <= int(seconds) < 10 and float(line) > 0
    expected = outputs(repeat) if repeat else b"\xa5" * len(outputs(0))
    assert (folder / "out.bin").read_bytes() == expected


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ((), 2, "usage: runner INPUTS OUTPUTS REPEAT [TRACE] [COUNTS]"),
        (("in.bin", "out.bin"), 2, "usage"),
        (("in.bin", "out.bin", "x"), 2, "REPEAT is a number"),
        (("in.bin", "out.bin", "1x"), 2, "REPEAT is a number"),
        (("in.bin", "out.bin", ""), 2, "REPEAT is a number"),
        (("absent.bin", "out.bin", "1"), 2, "the inputs cannot be read"),
        (("short.bin", "out.bin", "1"), 2, "the inputs end early"),
        (("in.bin", "absent/out.bin", "1"), 2, "the outputs cannot be written"),
        (("99.bin", "out.bin", "1"), 1, "net_run returned 5"),
    ],
)
def test_errors(
    network: tuple[list[str], Path], arguments: tuple[str, ...], status: int, message: str
) -> None:
    program, folder = network
    (folder / "short.bin").write_bytes(INPUTS[:-1])
    (folder / "99.bin").write_bytes(X.tobytes() + bytes([99]) + B.tobytes()[1:])
    done = run(program, *arguments, folder=folder)
    assert done.returncode == status
    assert done.stderr.startswith("runner: ") and message in done.stderr


@pytest.mark.parametrize("port", ["threads", "qemu"])
def test_scratchpad_too_small(tmp_path: Path, port: str) -> None:
    done = run(build_network(tmp_path, port, l1=127), "in.bin", "out.bin", "1", folder=tmp_path)
    assert done.returncode == 1
    assert "the network needs more of L1 than there is" in done.stderr


@pytest.mark.parametrize("port", ["threads", "qemu"])
def test_trace(tmp_path: Path, port: str) -> None:
    program = build_network(tmp_path, port, "-DQFOLD_TRACE")
    done = run(program, "in.bin", "out.bin", "2", "trace.bin", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out.bin").read_bytes() == outputs(2)
    raw = (tmp_path / "trace.bin").read_bytes()
    records: list[tuple[int, bytes]] = []
    while raw:
        tag, size = struct.unpack_from("=QQ", raw)
        records.append((tag, raw[16 : 16 + size]))
        raw = raw[16 + size :]
    assert records == [
        (0, b"twice"),
        (1 + 0 * 2 + 0, X.tobytes()),
        (1 + 1 * 2 + 1, (2 * X).tobytes()),
        (0, b"add"),
    ]


@pytest.mark.parametrize("port", ["threads", "qemu"])
def test_counts(tmp_path: Path, port: str) -> None:
    program = build_network(tmp_path, port, "-DQFOLD_COUNT")
    done = run(program, "in.bin", "out.bin", "4", "counts.bin", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out.bin").read_bytes() == outputs(4)
    counts = read_counts((tmp_path / "counts.bin").read_bytes())
    assert counts.work.shape == (4, 2, CORES[port])
    assert counts.elapsed.shape == (4,)
    assert (counts.work > 0).all() and (counts.elapsed > 0).all()
    assert (counts.per_core == counts.work.sum(axis=1)).all()
    # The last core works in the second dispatch, the others next to nothing.
    busy = counts.work[:, 1, -1]
    idle = np.delete(counts.work.reshape(4, -1), -1, axis=1)
    assert (busy > 4 * idle.max(axis=1)).all()
    if port == "qemu":
        assert counts.stack_bytes.tolist() == [8192]
        assert 100 < counts.stack_used[0] < 2048
    else:
        assert not counts.stack_bytes.any() and not counts.stack_used.any()


def test_trace_and_counts(tmp_path: Path) -> None:
    program = build_network(
        tmp_path, "threads", "-DQFOLD_COUNT", "-DQFOLD_TRACE", "-DQFOLD_DEBUG_DMA"
    )
    done = run(program, "in.bin", "out.bin", "1", "trace.bin", "counts.bin", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "trace.bin").stat().st_size > 100
    assert read_counts((tmp_path / "counts.bin").read_bytes()).work.shape == (1, 2, 3)
    done = run(program, "in.bin", "out.bin", "1", folder=tmp_path)
    assert done.returncode == 2 and "counts" in done.stderr


def test_counts_are_checked() -> None:
    good = (
        b"QFCOUNT1"
        + struct.pack("<3Q", 2, 1, 1)
        + struct.pack("<3Q", 9, 4, 5)
        + struct.pack("<2Q", 64, 32)
    )
    counts = read_counts(good)
    assert counts.work.tolist() == [[[4], [5]]] and counts.per_core.tolist() == [[9]]
    assert (counts.stack_bytes.tolist(), counts.stack_used.tolist()) == ([64], [32])
    with pytest.raises(CountsError, match="multiple of 8, got 73"):
        read_counts(good + b"\0")
    with pytest.raises(CountsError, match="1 runs of 2 dispatches on 1 cores are 72 bytes, got 64"):
        read_counts(good[:-8])
    with pytest.raises(CountsError, match="QFCOUNT1"):
        read_counts(b"X" + good[1:])


def test_unknown_port() -> None:
    with pytest.raises(ValueError, match="unknown port 'pulp'; known: host, threads, "):
        port_sources("pulp")
