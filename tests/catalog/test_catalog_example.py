"""The walker of tf.train.Example records: right values, or the malformed error, and nothing else.

The encoder is the protobuf runtime with the message declared by hand, so that TensorFlow is not
needed and the reference is not ours.
"""

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st
from rlds_files import tagged

from autoloader.formats import records as module
from autoloader.formats.records import FeatureValue, MalformedRecordError, parse_example


def example_class() -> type[Any]:
    """The message class of tf.train.Example, under another package name."""
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto

    def add(owner: Any, name: str, number: int, kind: int, many: bool = False, of: str = "") -> Any:
        label = kinds.LABEL_REPEATED if many else kinds.LABEL_OPTIONAL
        return owner.field.add(
            name=name, number=number, type=kind, label=label, type_name=of or None
        )

    for name, kind in (
        ("BytesList", kinds.TYPE_BYTES),
        ("FloatList", kinds.TYPE_FLOAT),
        ("Int64List", kinds.TYPE_INT64),
    ):
        add(file.message_type.add(name=name), "value", 1, kind, many=True)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("BytesList", "FloatList", "Int64List"), start=1):
        list_name = name.replace("List", "_list").lower()
        entry = add(feature, list_name, number, kinds.TYPE_MESSAGE, of=f".t.{name}")
        entry.oneof_index = 0
    features = file.message_type.add(name="Features")
    pair = features.nested_type.add(name="FeatureEntry")
    pair.options.map_entry = True
    add(pair, "key", 1, kinds.TYPE_STRING)
    add(pair, "value", 2, kinds.TYPE_MESSAGE, of=".t.Feature")
    map_type = ".t.Features.FeatureEntry"
    add(features, "feature", 1, kinds.TYPE_MESSAGE, many=True, of=map_type)
    example = file.message_type.add(name="Example")
    add(example, "features", 1, kinds.TYPE_MESSAGE, of=".t.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))


Example = example_class()


def encode(values: Mapping[str, tuple[str, list[Any]]]) -> bytes:
    record = Example()
    for key, (kind, items) in values.items():
        feature = record.features.feature[key]
        if kind != "missing":
            part = getattr(feature, f"{kind}_list")
            part.SetInParent()
            part.value.extend(items)
    return bytes(record.SerializeToString())


def plain(value: FeatureValue, buffer: bytes) -> tuple[str, list[Any]]:
    if value.kind == "bytes":
        return "bytes", [bytes(buffer[start:stop]) for start, stop in value.ranges]
    return value.kind, [] if value.values is None else value.values.tolist()


def walk(record: bytes) -> dict[str, tuple[str, list[Any]]]:
    return {key: plain(value, record) for key, value in parse_example(record).items()}


def reference(record: bytes) -> dict[str, tuple[str, list[Any]]]:
    parsed = Example.FromString(record)
    found = {}
    for key, feature in parsed.features.feature.items():
        name = feature.WhichOneof("kind")
        items = list(getattr(feature, name).value) if name else []
        found[key] = (name.removesuffix("_list") if name else "missing", items)
    return found


lists = st.one_of(
    st.tuples(st.just("bytes"), st.lists(st.binary(max_size=20), max_size=6)),
    st.tuples(st.just("float"), st.lists(st.floats(width=32, allow_nan=False), max_size=9)),
    st.tuples(st.just("int64"), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9)),
    st.tuples(st.just("missing"), st.just([])),
)
examples = st.dictionaries(st.text(max_size=12), lists, max_size=6)

SMALL = encode(
    {
        "steps/image": ("bytes", [b"x" * 200, b"", b"yy"]),
        "steps/action": ("float", [1.0, -2.5]),
        "steps/is_first": ("int64", [1, 0, -1, 2**40]),
    }
)


def with_feature(feature: bytes, key: bytes = b"k") -> bytes:
    return tagged(0x0A, tagged(0x0A, tagged(0x0A, key) + tagged(0x12, feature)))


@given(examples)
def test_values_are_those_that_were_written(values: dict[str, tuple[str, list[Any]]]):
    assert walk(encode(values)) == values


@given(examples, st.data())
def test_damaged_records_are_malformed_or_mean_what_protobuf_reads(
    values: dict[str, tuple[str, list[Any]]], data: st.DataObject
):
    record = bytearray(encode(values))
    for _ in range(data.draw(st.integers(1, 3))):
        if record:
            place = data.draw(st.integers(0, len(record) - 1))
            record[place] = data.draw(st.integers(0, 255))
    record = record[: data.draw(st.integers(0, len(record)))]
    try:
        found = walk(bytes(record))
    except MalformedRecordError:
        return
    expected = reference(bytes(record))
    assert found.keys() == expected.keys()
    assert repr(sorted(found.items())) == repr(sorted(expected.items()))  # NaN equals NaN


@given(st.binary(max_size=60))
def test_any_bytes_are_malformed_or_mean_what_protobuf_reads(record: bytes):
    try:
        found = walk(record)
    except MalformedRecordError:
        return
    assert repr(sorted(found.items())) == repr(sorted(reference(record).items()))


def test_a_mapping_and_a_memoryview_serve_as_buffers(tmp_path: Path):
    path = tmp_path / "record"
    path.write_bytes(SMALL)
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        found = parse_example(mapping)
        viewed = parse_example(memoryview(SMALL))
        mapping.close()  # would fail if a value held on to it
    assert found["steps/is_first"].values.tolist() == [1, 0, -1, 2**40]
    assert viewed["steps/action"].values.tolist() == [1.0, -2.5]


def test_a_key_that_is_no_text_is_malformed():
    with pytest.raises(MalformedRecordError, match="UTF-8"):
        parse_example(with_feature(b"", key=b"\xff"))


def test_a_hostile_number_of_pieces_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_STRINGS", 3)
    monkeypatch.setattr(module, "MAX_SEGMENTS", 3)
    monkeypatch.setattr(module, "MAX_KEYS", 3)
    assert len(parse_example(with_feature(tagged(0x0A, b"\x0a\x00" * 3)))["k"]) == 3
    with pytest.raises(MalformedRecordError, match="more than 3 strings"):
        parse_example(with_feature(tagged(0x0A, b"\x0a\x00" * 4)))
    for tag, piece in ((0x1A, b"\x01"), (0x12, b"\x00" * 4)):
        with pytest.raises(MalformedRecordError, match="too many pieces"):
            parse_example(with_feature(tagged(tag, tagged(0x0A, piece) * 4)))
    with pytest.raises(MalformedRecordError, match="more than 3 keys"):
        parse_example(encode({name: ("missing", []) for name in "abcd"}))
