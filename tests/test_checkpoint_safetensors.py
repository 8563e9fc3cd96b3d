"""The safetensors reader: what it reads, and that nothing damaged or pickled gets through."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from twinspark.actors.checkpoint.opening import open_head, open_target
from twinspark.actors.checkpoint.safetensors_source import SafetensorsSource
from twinspark.actors.errors import CheckpointError

TENSORS = {
    "a": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "b": torch.arange(6).reshape(2, 3).to(torch.bfloat16),
    "c": torch.arange(4).to(torch.float16),
    "ids": torch.arange(5),
    "flags": torch.tensor([True, False]),
    "scalar": torch.tensor(2.5),
    "empty": torch.zeros(0, 3),
}


def save_single(directory: Path, tensors: dict[str, torch.Tensor] = TENSORS) -> Path:
    directory.mkdir(exist_ok=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory / "model.safetensors"


def save_sharded(directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    weight_map = {}
    for i, (name, tensor) in enumerate(TENSORS.items()):
        shard = f"model-{i % 2 + 1:05}-of-00002.safetensors"
        weight_map[name] = shard
        others = {n: t for n, t in TENSORS.items() if weight_map.get(n) == shard}
        save_file({**others, name: tensor}, directory / shard)
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return index


def with_header(path: Path, change: Callable[[dict[str, dict[str, object]]], None]) -> None:
    """Rewrites the header of `path` in place; the data stays."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    change(header)
    new = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(new)) + new + raw[8 + length :])


@pytest.mark.parametrize("save", [save_single, save_sharded])
def test_every_tensor_comes_back_as_stored(tmp_path: Path, save: Callable[[Path], Path]) -> None:
    save(tmp_path)
    source = SafetensorsSource(tmp_path)
    infos = source.infos()
    assert set(infos) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert infos[name].shape == tuple(tensor.shape)
        assert infos[name].stored_bytes == tensor.numel() * tensor.element_size()
        loaded = source.load(name)
        assert loaded.dtype == tensor.dtype
        assert torch.equal(loaded, tensor)


def test_rows_come_in_the_order_asked_for(tmp_path: Path) -> None:
    save_single(tmp_path)
    source = SafetensorsSource(tmp_path)
    assert torch.equal(source.load_rows("a", [2, 0]), TENSORS["a"][[2, 0]])
    for rows in ([3], [-1], []):
        with pytest.raises(CheckpointError, match="rows of a"):
            source.load_rows("a", rows)


def test_an_absent_tensor_is_named(tmp_path: Path) -> None:
    save_single(tmp_path)
    with pytest.raises(CheckpointError, match="nowhere"):
        SafetensorsSource(tmp_path).load("nowhere")


def test_no_directory_and_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="must be a directory"):
        SafetensorsSource(tmp_path / "absent")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        SafetensorsSource(tmp_path)


@pytest.mark.parametrize("kept_bytes", [0, 5, 60, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, kept_bytes: int) -> None:
    path = save_single(tmp_path)
    path.write_bytes(path.read_bytes()[:kept_bytes])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        SafetensorsSource(tmp_path)


@pytest.mark.parametrize("length", [2**63, 100_000_001, 5000])
def test_a_header_longer_than_the_file_is_refused_before_it_is_read(tmp_path: Path, length: int) -> None:
    path = save_single(tmp_path)
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])
    with pytest.raises(CheckpointError, match=f"got a length of {length}"):
        SafetensorsSource(tmp_path)


def test_a_header_over_the_limit_is_refused_even_where_the_file_could_hold_it(tmp_path: Path) -> None:
    path = save_single(tmp_path)
    path.write_bytes(struct.pack("<Q", 100_000_001) + path.read_bytes()[8:])
    os.truncate(path, 120_000_000)  # sparse: takes no room
    with pytest.raises(CheckpointError, match="got a length of 100000001"):
        SafetensorsSource(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data_offsets": [0, 10**9]}, "data_offsets must be within"),
        ({"data_offsets": [-4, 44]}, "data_offsets must be within"),
        ({"data_offsets": [48, 0]}, "data_offsets must be within"),
        ({"data_offsets": [0, 44]}, "48 bytes apart"),
        ({"data_offsets": [True, 48]}, "two integers"),
        ({"data_offsets": None}, "two integers"),
        ({"shape": [3, -4]}, "shape must be"),
        ({"shape": "3x4"}, "shape must be"),
        ({"dtype": "F8_E4M3"}, "dtype must be one of"),
        ({"dtype": None}, "dtype must be"),
    ],
)
def test_a_header_that_cannot_be_is_refused(tmp_path: Path, change: dict[str, object], words: str) -> None:
    path = save_single(tmp_path)
    with_header(path, lambda header: header["a"].update(change))
    with pytest.raises(CheckpointError, match=words):
        SafetensorsSource(tmp_path)


@pytest.mark.parametrize("header", [b"[1]", b"{", b"\xff\xfe", b'{"a": 1}', b'{"a": {}, "a": {}}', b"[" * 200_000])
def test_a_header_that_is_no_object_of_objects_is_refused(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(CheckpointError, match=r"header|must be"):
        SafetensorsSource(tmp_path)


def test_an_index_with_a_missing_shard_or_tensor_is_refused(tmp_path: Path) -> None:
    index = save_sharded(tmp_path)
    content = json.loads(index.read_text())
    content["weight_map"]["ghost"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="must hold ghost"):
        SafetensorsSource(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors missing"):
        SafetensorsSource(tmp_path)


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/x.safetensors", "weights.bin", 7])
def test_an_index_cannot_point_elsewhere(tmp_path: Path, shard: object) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(CheckpointError, match="a must be"):
        SafetensorsSource(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": 3}'])
def test_a_broken_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match="index"):
        SafetensorsSource(tmp_path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 700), byte=st.integers(0, 255), cut=st.integers(0, 900))
def test_whatever_the_damage_the_error_is_ours(tmp_path: Path, position: int, byte: int, cut: int) -> None:
    path = save_single(tmp_path / "model")
    raw = bytearray(path.read_bytes())
    raw[position % len(raw)] = byte
    path.write_bytes(bytes(raw[: max(0, len(raw) - cut)] if cut % 3 == 0 else raw))
    try:
        source = SafetensorsSource(path.parent)
        for name in source.infos():
            source.load(name)
    except CheckpointError:
        pass


class Trap:
    """Unpickled, it creates the file named."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth", "last.ckpt", "model.safetensors"])
def test_nothing_is_ever_unpickled(tmp_path: Path, name: str) -> None:
    marker = tmp_path / "sprung"
    model = tmp_path / "model"
    model.mkdir()
    trap = pickle.dumps(Trap(marker))
    (model / name).write_bytes(trap)
    (model / "config.json").write_text("{}")
    attempts: list[Callable[[], object]] = [
        lambda: open_target(model),
        lambda: open_head(model),
        lambda: open_target(model / name),
        lambda: open_head(model / name),
    ]
    for attempt in attempts:
        with pytest.raises(CheckpointError) as caught:
            attempt()
        assert name in str(caught.value)
    if name != "model.safetensors":
        with pytest.raises(CheckpointError, match="nothing is ever unpickled"):
            open_target(model)
        save_single(model)  # with a readable file beside it the pickle is just ignored
        assert torch.equal(SafetensorsSource(model).load("a"), TENSORS["a"])
    assert not marker.exists()
    pickle.loads(trap)
    assert marker.exists(), "the trap must be a live one, or this test proves nothing"
