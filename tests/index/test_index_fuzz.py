"""Damaged and oddly laid out records, held to protobuf; ``tools/hunt/damage.py`` runs long."""

from typing import Any

import fuzz_index
import pytest


def test_damaged_records_are_quarantined_or_mean_what_protobuf_reads():
    report = fuzz_index.run(cases=3_000, seed=3)
    assert report.cases >= 3_000
    assert report.whole > report.cases // 5
    assert report.steps > report.whole
    assert len(report.reasons) > 20


def test_the_trial_notices_a_wrong_frame(monkeypatch: pytest.MonkeyPatch):
    real = fuzz_index.read_tables

    def shifted(path: str, *arguments: Any) -> fuzz_index.ShardTables:
        tables = real(path, *arguments)
        for (kind, _), values in tables.sections.items():
            if kind is fuzz_index.Section.FRAME_OFFSETS:
                values[-1:] -= 1
        return tables

    monkeypatch.setattr(fuzz_index, "read_tables", shifted)
    with pytest.raises(AssertionError):
        fuzz_index.run(cases=400, seed=3)
