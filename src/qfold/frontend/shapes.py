"""The shapes that ONNX's layout operators ask for. All functions raise `ValueError` when a request does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod


def normalize_axis(axis: int, rank: int) -> int:
    """`axis` counted from the front; ONNX allows -rank .. rank - 1."""
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is out of range for {rank} dimensions")
    return axis % rank


def normalize_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """The axes counted from the front, sorted; `ValueError` if one is given twice."""
    normalized = sorted(normalize_axis(int(a), rank) for a in axes)
    if len(set(normalized)) != len(normalized):
        raise ValueError(f"axes {list(axes)} name a dimension twice")
    return tuple(normalized)


def reshape_shape(
    shape: Sequence[int], requested: Sequence[int], *, allow_zero: bool = False
) -> tuple[int, ...]:
    """What Reshape makes of `shape`: 0 copies a dimension (unless `allow_zero`), one -1 is inferred."""
    target: list[int] = []
    for index, size in enumerate(int(d) for d in requested):
        if size == 0 and not allow_zero:
            if index >= len(shape):
                raise ValueError(f"{list(requested)} copies dimension {index} of {list(shape)}")
            target.append(shape[index])
        elif size < -1:
            raise ValueError(f"{list(requested)} has a negative dimension")
        else:
            target.append(size)
    if target.count(-1) > 1:
        raise ValueError(f"{list(requested)} has more than one -1")
    count = prod(shape)
    if -1 in target:
        known = prod(d for d in target if d != -1)
        if known == 0 or count % known:
            raise ValueError(f"{list(shape)} cannot be reshaped to {list(requested)}")
        target[target.index(-1)] = count // known
    if prod(target) != count:
        raise ValueError(f"{list(shape)} cannot be reshaped to {list(requested)}")
    return tuple(target)


def flatten_shape(shape: Sequence[int], axis: int) -> tuple[int, int]:
    """What Flatten makes of `shape`: the dimensions before `axis` merged, and those from it on."""
    rank = len(shape)
    if not -rank <= axis <= rank:
        raise ValueError(f"axis {axis} is out of range for {rank} dimensions")
    split = axis + rank if axis < 0 else axis
    return prod(shape[:split]), prod(shape[split:])


def squeeze_shape(shape: Sequence[int], axes: Sequence[int] | None) -> tuple[int, ...]:
    """`shape` without `axes`, which must have length 1; without all such dimensions when None."""
    if axes is None:
        return tuple(d for d in shape if d != 1)
    dropped = normalize_axes(axes, len(shape))
    for axis in dropped:
        if shape[axis] != 1:
            raise ValueError(f"axis {axis} of {list(shape)} has length {shape[axis]}, not 1")
    return tuple(d for axis, d in enumerate(shape) if axis not in dropped)


def unsqueeze_shape(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """`shape` with dimensions of length 1 so that they are `axes` of the result."""
    rank = len(shape) + len(axes)
    added = normalize_axes(axes, rank)
    rest = iter(shape)
    return tuple(1 if axis in added else next(rest) for axis in range(rank))


def permutation(perm: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """The permutation of Transpose; reversed dimensions when none is given."""
    if perm is None:
        return tuple(reversed(range(rank)))
    if sorted(perm) != list(range(rank)):
        raise ValueError(f"{list(perm)} is not a permutation of {rank} dimensions")
    return tuple(perm)


def auto_pads(
    mode: str,
    spatial: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    explicit: Sequence[int] | None,
) -> list[int]:
    """Padding of a sliding window, begins then ends, for ONNX's `auto_pad` modes; `explicit` is the attribute `pads`."""
    rank = len(spatial)
    if mode == "NOTSET":
        return [0] * (2 * rank) if explicit is None else list(explicit)
    if mode == "VALID":
        return [0] * (2 * rank)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise ValueError(f"auto_pad {mode!r} is not one of NOTSET, VALID, SAME_UPPER, SAME_LOWER")
    begins: list[int] = []
    ends: list[int] = []
    for size, window, stride, dilation in zip(spatial, kernel, strides, dilations, strict=True):
        # As many outputs as ceil(size / stride); an odd element of padding goes to the end, or the beginning.
        extent = (window - 1) * dilation + 1
        total = max((-(-size // stride) - 1) * stride + extent - size, 0)
        small, large = total // 2, total - total // 2
        begins.append(small if mode == "SAME_UPPER" else large)
        ends.append(large if mode == "SAME_UPPER" else small)
    return begins + ends
