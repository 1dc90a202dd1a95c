"""LeRobot datasets (v2.0, v2.1, v3.0): Parquet columns, MP4 videos and JSON or Parquet metadata.

Not here: TFDS directories (``formats.metadata``), index tables (``index.lerobot``), decoding
(``decode.video``).
"""
