"""Reads Parquet files by pyarrow, in the calling thread alone.

Not here: what their columns mean (``episodes``, ``index.lerobot``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autoloader.catalog.files import told_stand_in
from autoloader.extras import needs


class UnreadableParquetError(ValueError):
    """A file is no Parquet file that can be read; the message says why."""


def read_columns(path: str | Path, wanted: Callable[[Sequence[str]], Sequence[str]]) -> Any:
    """A ``pyarrow.Table`` of some columns of a file, all rows.

    Args:
        path: the file; local.
        wanted: chooses columns of those that are there.

    Raises:
        UnreadableParquetError: it is damaged, or no Parquet file.
        OSError: it is not there, or may not be read.
        MissingExtraError: pyarrow is not installed.
    """
    with needs("a LeRobot dataset", extra="lerobot"):
        import pyarrow
        import pyarrow.parquet as parquet
    with Path(path).open("rb") as source:
        try:
            with parquet.ParquetFile(source, pre_buffer=False) as file:
                names = list(wanted(file.schema_arrow.names))
                return file.read(columns=names, use_threads=False)
        except (pyarrow.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
            why = told_stand_in(path) or " ".join(str(error).split())[:160]
            raise UnreadableParquetError(why) from error
