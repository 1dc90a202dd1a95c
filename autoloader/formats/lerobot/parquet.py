"""Reads Parquet files by pyarrow, in the calling thread alone.

Not here: what their columns mean (``episodes``, ``index.lerobot``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autoloader.formats import files
from autoloader.formats.files import told_stand_in
from autoloader.host.extras import needs
from autoloader.storage.faults import LimitError
from autoloader.storage.limits import Limits, check_bytes


class UnreadableParquetError(ValueError):
    """A file is no Parquet file that can be read; the message says why."""


def read_columns(
    path: str | Path, wanted: Callable[[Sequence[str]], Sequence[str]], most: str = ""
) -> Any:
    """A ``pyarrow.Table`` of some columns of a file, all rows.

    Args:
        path: the file; local.
        wanted: chooses columns of those that are there.
        most: field of ``storage.limits.Limits`` that bounds the file, and the values in it.

    Raises:
        UnreadableParquetError: it is damaged, or no Parquet file.
        OSError: it is not there, or may not be read.
        MissingExtraError: pyarrow is not installed.
    """
    with needs("a LeRobot dataset", extra="lerobot"):
        import pyarrow
        import pyarrow.parquet as parquet
    with files.opened_regular(path, most) as source:
        try:
            with parquet.ParquetFile(source, pre_buffer=False) as file:
                names = list(wanted(file.schema_arrow.names))
                if most:
                    _check_values(str(path), file.metadata, len(names), most)
                return file.read(columns=names, use_threads=False)
        except LimitError:
            raise
        except (pyarrow.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
            why = told_stand_in(path) or " ".join(str(error).split())[:160]
            raise UnreadableParquetError(why) from error


def _check_values(path: str, metadata: Any, columns: int, most: str) -> None:
    """Refuse a list that is small as a file, and not in memory."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    unpacked = max(sum(one.total_byte_size for one in groups), 8 * columns * metadata.num_rows)
    check_bytes(path, unpacked, most, Limits.of_environment())
