"""Damaged models: bytes that are no longer a model, and models whose parts do not fit any more."""

from __future__ import annotations

from random import Random

import onnx
from onnx import AttributeProto, TensorProto

_NUMBERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 2**16, 2**31, 2**40, 2**63 - 1)


def mutate_bytes(data: bytes, random: Random) -> bytes:
    """A few bytes changed, cut, repeated or moved."""
    changed = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 4, 16])):
        if not changed:
            break
        at = random.randrange(len(changed))
        size = random.choice([1, 2, 8, 64])
        match random.randrange(6):
            case 0:
                changed[at] = random.randrange(256)
            case 1:
                changed[at] ^= 1 << random.randrange(8)
            case 2:
                del changed[at : at + size]
            case 3:
                changed[at:at] = changed[at : at + size]
            case 4:
                changed[at:at] = random.randbytes(size)
            case _:
                del changed[at:]
    return bytes(changed)


def mutate_model(model: onnx.ModelProto, random: Random) -> bytes:
    """One to three parts of a model changed for others that protobuf allows."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for _ in range(random.randint(1, 3)):
        graph = model.graph
        try:
            random.choice(_MUTATIONS)(graph, model, random)
        except IndexError:  # nothing there to change
            continue
    return model.SerializeToString()


def _names(graph: onnx.GraphProto) -> list[str]:
    names = ["", "nobody"]
    for node in graph.node:
        names += [*node.input, *node.output]
    return names + [t.name for t in graph.initializer]


def _rewire(graph: onnx.GraphProto, model: onnx.ModelProto, random: Random) -> None:
    node = random.choice(graph.node)
    names = _names(graph)
    where = node.input if random.random() < 0.8 else node.output
    if random.random() < 0.2:
        where.append(random.choice(names))
    elif random.random() < 0.2:
        del where[random.randrange(len(where) or 1)]
    else:
        where[random.randrange(len(where) or 1)] = random.choice(names)


def _rename(graph: onnx.GraphProto, model: onnx.ModelProto, random: Random) -> None:
    other = random.choice(graph.node).op_type
    node = random.choice(graph.node)
    choices = [other, "Nope", "MatMul", "Conv", "Reshape", "If", "Loop", "Split", "ConstantOfShape"]
    node.op_type = random.choice(choices)


def _attribute(graph: onnx.GraphProto, model: onnx.ModelProto, random: Random) -> None:
    attributes = [a for n in graph.node for a in n.attribute]
    attribute = random.choice(attributes)
    match random.randrange(6):
        case 0:
            attribute.i = random.choice(_NUMBERS)
        case 1 if attribute.ints:
            attribute.ints[random.randrange(len(attribute.ints))] = random.choice(_NUMBERS)
        case 2:
            attribute.ints.append(random.choice(_NUMBERS))
        case 3:
            attribute.type = random.choice(list(AttributeProto.AttributeType.values()))
        case 4:
            attribute.f = random.choice([float("nan"), float("inf"), -1.0, 0.0, 1e38])
        case _:
            attribute.name = random.choice(
                ["axis", "axes", "perm", "group", "to", "block_size", "x"]
            )


def _tensor(graph: onnx.GraphProto, model: onnx.ModelProto, random: Random) -> None:
    tensor: TensorProto = random.choice(graph.initializer)
    match random.randrange(5):
        case 0:
            tensor.dims.append(random.choice(_NUMBERS))
        case 1:
            tensor.dims[random.randrange(len(tensor.dims) or 1)] = random.choice(_NUMBERS)
        case 2:
            tensor.data_type = random.randrange(30)
        case 3:
            tensor.raw_data = mutate_bytes(tensor.raw_data, random)
        case _:
            tensor.data_location = TensorProto.EXTERNAL
            entry = tensor.external_data.add()
            entry.key = random.choice(["location", "offset", "length", "nonsense"])
            entry.value = random.choice(
                ["../x", "/etc/hostname", "-1", "99999999999999", "", "a\0b", "weights"]
            )


def _interface(graph: onnx.GraphProto, model: onnx.ModelProto, random: Random) -> None:
    info = random.choice([*graph.input, *graph.output])
    type_ = info.type.tensor_type
    match random.randrange(5):
        case 0:
            type_.elem_type = random.randrange(30)
        case 1:
            type_.shape.dim.add().dim_value = random.choice(_NUMBERS)
        case 2:
            random.choice(type_.shape.dim).dim_value = random.choice(_NUMBERS)
        case 3:
            random.choice(type_.shape.dim).dim_param = random.choice(["n", "", "N M"])
        case _:
            info.name = random.choice(_names(graph))


def _structure(graph: onnx.GraphProto, model: onnx.ModelProto, random: Random) -> None:
    match random.randrange(6):
        case 0:
            del graph.node[random.randrange(len(graph.node) or 1)]
        case 1:
            graph.node.append(random.choice(graph.node))
        case 2:
            graph.initializer.append(random.choice(graph.initializer))
        case 3:
            model.opset_import[0].version = random.choice([*_NUMBERS, 5, 9, 11])
        case 4:
            random.choice(graph.node).domain = random.choice(["ai.onnx", "com.microsoft", "x"])
        case _:
            graph.output.append(random.choice([*graph.input, *graph.output]))


_MUTATIONS = [_rewire, _rename, _attribute, _attribute, _tensor, _interface, _structure]
