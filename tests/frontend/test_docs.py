"""The documented list of operators is the registry's."""

from __future__ import annotations

from pathlib import Path

from qfold.frontend import raising, registry
from qfold.frontend.ops import load_importers


def test_the_documented_operators_are_those_registered(repo_root: Path):
    load_importers()
    known = {*registry.supported_ops(), *raising.handled_ops()}
    names = sorted(known)
    text = (repo_root / "docs" / "frontend.md").read_text()
    listed = " ".join(text.rpartition("-->")[2].split()).rstrip(".").split(", ")
    assert listed == [f"{domain}:{name}" if domain else name for domain, name in names]


def test_the_nearest_operator():
    load_importers()
    assert registry.nearest("", "MatMull") == "MatMul"
    assert registry.nearest("com.microsoft", "Gelu") == "com.microsoft:Gelu"
    assert registry.nearest("", "Zzz") is None


def test_the_importer_of_an_opset():
    load_importers()
    softmax = {registry.lookup("", "Softmax", version) for version in (7, 12, 13, 28)}
    assert None not in softmax
    # An operator in an older opset than its own is read as its first version.
    assert registry.lookup("", "LayerNormalization", 12) is registry.lookup(
        "ai.onnx", "LayerNormalization", 17
    )
    assert registry.lookup("com.acme", "Softmax", 13) is None
