"""Image–text records: finding them in files, and the texts and pictures that one has.

Records lie in JSONL files, in JSON lists, in tar shards (WebDataset), or in Parquet files of the
Hugging Face Hub. A record is read where it lies; of Parquet its text goes into the index.

Not here: the dataset (``image_text``), sizes of pictures (``formats.pictures``).
"""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from autoloader.formats import files
from autoloader.formats.files import UnreadableError
from autoloader.host.extras import needs
from autoloader.host.files import read_whole
from autoloader.host.frozen import frozen

MARK = "<image>"
MOST_BYTES = 16 * 2**20
"""Of one record."""
PICTURES = ("jpg", "jpeg", "png", "webp", "gif")
_CHUNK_BYTES = 2**20
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
          "model": "assistant", "system": "system"}  # fmt: skip
_TURNS = ("conversations", "messages")
_TEXTS = ("texts", *_TURNS, "caption", "text")
_VIDEOS = ("video", "videos")
_BLANK = re.compile(rb"\s*")
_BOM = b"\xef\xbb\xbf"
_TAR_BLOCK = 512
_SAID = ("json", "txt")
"""Endings of a sample's text in a tar, the first one first."""
_LINK = -1
"""Bytes of a tar member whose bytes do not lie there as they are."""
_PLAIN = 1
"""Added to the place of a tar member, which is even: the member is a caption, and no JSON."""


@frozen
class Record:
    """Texts and pictures of a record.

    Attributes:
        turns: (role, text) of each turn; a caption is an answer.
        pictures: paths of its pictures, where it names files.
    """

    turns: tuple[tuple[str, str], ...]
    pictures: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: bytes, *, caption: bool = False) -> Record:
        """The record in a text: JSON, or a caption as it is. Raises UnreadableError."""
        try:
            raw = {"caption": text.decode()} if caption else json.loads(text)
        except (ValueError, RecursionError) as error:
            what = "text" if caption else "JSON"
            raise UnreadableError(f"it is not {what}: {error}"[:160]) from error
        if not isinstance(raw, Mapping):
            raise UnreadableError("it is not a JSON object")
        if any(raw.get(key) for key in _VIDEOS):
            raise UnreadableError("it names videos, which are not supported")
        turns = tuple(_turns(raw))
        if not turns:
            raise UnreadableError(f"it has no text: none of the keys {', '.join(_TEXTS)}")
        return cls(turns, tuple(_pictures(raw)))

    @property
    def _before(self) -> int:
        """Number of turns before the first answer."""
        roles = (k for k, (role, _) in enumerate(self.turns) if role == "assistant")
        return next(roles, len(self.turns))

    @property
    def prompt(self) -> str:
        """Turns before the first answer, marks of pictures included."""
        return "\n".join(text for _, text in self.turns[: self._before])

    @property
    def answer(self) -> str:
        """The first answer; "": there is none."""
        return next((text for role, text in self.turns if role == "assistant"), "")

    @property
    def conversation(self) -> str:
        """All turns, as a JSON list of {"role", "text"}."""
        turns = [{"role": role, "text": text} for role, text in self.turns]
        return json.dumps(turns, ensure_ascii=False)

    def check_marks(self, pictures: int) -> None:
        """Refuse marks that disagree with the pictures. Raises UnreadableError."""
        marks = sum(text.count(MARK) for _, text in self.turns)
        if marks and marks != pictures:
            raise UnreadableError(
                f"its text has {MARK} {marks} times, but it names {pictures} pictures"
            )


def _turns(raw: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(role, text) of each turn."""
    key = next((key for key in _TEXTS if raw.get(key)), "")
    said = raw.get(key)
    if isinstance(said, str):
        yield "assistant", said
        return
    for turn in said if isinstance(said, list) else ():
        if not isinstance(turn, Mapping):
            raise UnreadableError(f"a turn of {key} is not a JSON object")
        if key == "texts":
            pairs = [(role, turn.get(role)) for role in ("user", "assistant")]
        else:
            pairs = [(turn.get("from", turn.get("role")), turn.get("value", turn.get("content")))]
        for role, text in pairs:
            if not isinstance(text, str) or not isinstance(role, str) or role not in _ROLES:
                raise UnreadableError(
                    f"a turn of {key} has no text, or an unknown role: {role!r:.40}"
                )
            yield _ROLES[role], text


def _pictures(raw: Mapping[str, Any]) -> Iterator[str]:
    named = raw.get("images") or raw.get("image") or []
    for one in named if isinstance(named, list) else [named]:
        if not isinstance(one, str) or not one or "\0" in one:
            raise UnreadableError("the path of a picture is empty or not text")
        yield one


@frozen
class Found:
    """A record that was found in a file.

    Attributes:
        place: place of its text in the file.
        text: its text; b"": there is none.
        caption: whether the text is a caption, and no JSON.
        fault: reason why it cannot be used; "": it can.
        pictures: (place, bytes) of pictures that lie in the same file.
    """

    place: int
    text: bytes = b""
    caption: bool = False
    fault: str = ""
    pictures: Sequence[tuple[int, int]] = ()


def records_in(path: str) -> Iterator[Found]:
    """The records of a JSONL, JSON or tar file, in their order.

    Raises:
        UnreadableError: the file is no such file.
        OSError: the file cannot be read.
    """
    if path.endswith(".tar"):
        yield from _in_tar(path)
        return
    with files.opened_regular(path) as file:
        front = file.read(_CHUNK_BYTES)
        begin = len(_BOM) if front.startswith(_BOM) else 0
        blank = _BLANK.match(front, begin)
        at = blank.end() if blank else begin
        if front[at : at + 1] == b"[":
            yield from _in_list(file, at + 1)
        else:
            file.seek(begin)
            yield from _in_lines(file, begin)


def _in_lines(file: BinaryIO, at: int) -> Iterator[Found]:
    while line := file.readline(MOST_BYTES):
        place, at = at, at + len(line)
        fault = ""
        while len(line) == MOST_BYTES and not line.endswith(b"\n"):
            fault = f"it has more than {MOST_BYTES} bytes"
            line = file.readline(MOST_BYTES)
            at += len(line)
        if fault or line.strip():
            yield Found(place, b"" if fault else line, fault=fault)


def _in_list(file: BinaryIO, at: int) -> Iterator[Found]:
    """Records of a JSON list, whose first may begin at ``at``; bytes count as letters."""
    decoder = json.JSONDecoder(strict=False)
    file.seek(at)
    text, base, k, ended, comma = "", at, 0, False, True
    while True:
        while k < len(text) and text[k] in " \t\r\n," and (text[k] != "," or not comma):
            comma = comma or text[k] == ","
            k += 1
        if k < len(text) and text[k] == "]":
            if text[k + 1 :].strip() or file.read(_CHUNK_BYTES).strip():
                raise UnreadableError(
                    f"there is more text after the end of the JSON list, at byte {base + k}"
                )
            return
        size = _CHUNK_BYTES
        end = -1
        if k < len(text) and comma:
            try:
                end = decoder.raw_decode(text, k)[1]
            except (ValueError, RecursionError):
                size = max(size, len(text) - k)
        if end < 0 or (end == len(text) and not ended):
            more = "" if ended else file.read(size).decode("latin-1")
            ended = not more
            if (ended and end < 0) or len(text) - k > 2 * MOST_BYTES:
                raise UnreadableError(f"the JSON list is broken from byte {base + k} on")
            text, base, k = text[k:] + more, base + k, 0
            continue
        whole = end - k <= MOST_BYTES
        fault = "" if whole else f"it has more than {MOST_BYTES} bytes"
        yield Found(base + k, text[k:end].encode("latin-1") if whole else b"", fault=fault)
        k, comma = end, False


def _in_tar(path: str) -> Iterator[Found]:
    """Samples of a tar: neighbours with one name up to the first dot."""
    with files.opened_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            tar = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115
        except (tarfile.TarError, EOFError) as error:
            raise UnreadableError(f"it is not a tar file: {error}"[:160]) from error
        known, members = "", dict[str, tuple[int, int]]()
        while True:
            try:
                member = tar.next()
            except (tarfile.TarError, ValueError, OverflowError, EOFError) as error:
                raise UnreadableError(f"a file in it is damaged: {error}"[:160]) from error
            tar.__dict__["members"] = []  # it would keep them all
            if member is None:  # tarfile ends at a damaged header, too
                rest = os.pread(file.fileno(), _TAR_BLOCK, tar.offset)
                if rest.strip(b"\0") or 0 < len(rest) < _TAR_BLOCK:
                    raise UnreadableError(f"it is damaged or cut off at byte {tar.offset}")
            elif not member.isreg() and _ending(member.name.lower()) not in (*PICTURES, *_SAID):
                continue
            name = "" if member is None else member.name
            folder, _, last = name.rpartition("/")
            stem, _, suffix = last.partition(".")
            if members and (member is None or f"{folder}/{stem}" != known):
                yield _sample(file, known, members)
                members = {}
            if member is None:
                return
            stored = member.size if member.isreg() and not member.issparse() else _LINK
            if member.offset_data + stored > size:
                raise UnreadableError(f"it is cut off in {name[:80]}")
            known = f"{folder}/{stem}"
            key = suffix.lower()
            members[key] = member.offset_data, _LINK if key in members else stored


def _sample(file: BinaryIO, name: str, members: Mapping[str, tuple[int, int]]) -> Found:
    shown = [members[key] for key in sorted(members, key=natural) if _ending(key) in PICTURES]
    text = next((key for end in _SAID for key in members if _ending(key) == end), "")
    if any(size == _LINK for _, size in members.values()):
        lost = "a link, a sparse file, or two files of one name"
        return Found(0, fault=f"{name.strip('/')[:80]} has {lost}")
    if not text:
        return Found(0, fault=f"{name.strip('/')[:80]} has no .json and no .txt", pictures=shown)
    place, size = members[text]
    caption = _ending(text) == "txt"
    if size > MOST_BYTES:
        return Found(place + caption, fault=f"its text has {size} bytes")
    found = bytearray(size)
    read_whole(file.fileno(), memoryview(found), place)
    return Found(place + caption, bytes(found), caption, pictures=shown)


def _ending(suffix: str) -> str:
    return suffix.rpartition(".")[2]


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key by which a number counts as a whole, letters before digits."""
    return [(int(a or 0), b) for a, b in re.findall(r"(\d*)(\D*)", name)]


def texts_at(path: str, places: NDArray[np.int64], ends: NDArray[np.int64]) -> list[Record]:
    """Records whose texts lie at places of a file, up to ``ends`` where it is no tar.

    Raises:
        UnreadableError: the file is another one by now.
        OSError: the file cannot be read.
    """
    found = []
    with files.opened(path) as file:
        for place, end in zip(places.tolist(), ends.tolist(), strict=True):
            caption = False
            if path.endswith(".tar"):
                caption, place = bool(place & _PLAIN), place & ~_PLAIN
                header = os.pread(file, _TAR_BLOCK, place - _TAR_BLOCK)
                try:
                    size = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape").size
                except tarfile.TarError as error:
                    raise UnreadableError(
                        "its files do not lie where they did when it was indexed"
                    ) from error
                end = place + min(size, MOST_BYTES)
            text = os.pread(file, end - place, place)
            found.append(Record.parse(text if caption else _trimmed(text), caption=caption))
    return found


def _trimmed(text: bytes) -> bytes:
    """A record of a list, without what stands between it and the next."""
    text = text.rstrip()
    while text[-1:] in (b",", b"]"):
        text = text[:-1].rstrip()
    return text


def rows_of_parquet(path: str) -> tuple[int, str]:
    """(rows of a Parquet file, the name of its column of pictures or "").

    Raises:
        UnreadableError: it is no Parquet file, or has lists of pictures.
        OSError: it is not there.
        MissingExtraError: pyarrow is not installed.
    """
    with _parquet(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
    from pyarrow import types

    if not set(_TEXTS) & set(schema.names):
        raise UnreadableError(f"it has none of the text columns {', '.join(_TEXTS)}")
    for name in {"image", "images"} & set(schema.names):
        of = schema.field(name).type
        if types.is_list(of) and types.is_struct(of.value_type):
            raise UnreadableError(
                f"{name} holds lists of pictures; in Parquet, a row has one picture"
            )
        if types.is_struct(of):
            return rows, name
    return rows, ""


@contextmanager
def _parquet(path: str) -> Iterator[Any]:
    """A Parquet file, open. Raises as ``rows_of_parquet``."""
    with needs("an image-text dataset", extra="lerobot"):
        import pyarrow
        from pyarrow import parquet
    try:
        with files.opened_regular(path) as source, parquet.ParquetFile(source) as file:
            yield file
    except FileNotFoundError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise UnreadableError(f"it is not a Parquet file, or is damaged: {error}"[:160]) from error


def names_pictures(path: str, column: str) -> NDArray[np.bool_]:
    """[rows] whether each row of a Parquet file has a picture's path. Raises UnreadableError."""
    with _parquet(path) as file:
        if file.schema_arrow.field(column).type.get_field_index("path") < 0:
            return np.zeros(file.metadata.num_rows, np.bool_)
        every = file.iter_batches(4096, columns=[f"{column}.path"], use_threads=False)
        pictures = (picture for batch in every for picture in batch.column(0).to_pylist())
        return np.fromiter((bool(one and one["path"]) for one in pictures), np.bool_)  # "" is none


def rows_at(path: str) -> Iterator[bytes]:
    """The text of each row of a Parquet file, as JSON. Raises UnreadableError."""
    with _parquet(path) as file:
        schema = file.schema_arrow
        names = [one for one in (*_TEXTS, *_VIDEOS) if one in schema.names]
        named = [one for one in ("image", "images") if one in schema.names]
        names += [one for one in named if "struct" not in str(schema.field(one).type)]
        for batch in file.iter_batches(256, columns=names, use_threads=False):
            for row in batch.to_pylist():
                yield json.dumps(row, default=str).encode()
