"""``keep``: which t of a dataset give samples, beyond what windows allow, and how many these are.

Theory of operation. Every rule becomes a set of steps for each episode (``Ranges``), from
the texts that it looks at; the sets are intersected one after the other, so that what each rule
costs can be told. The index holds the texts of all episodes (``sets_of``); who reads a record on
its own asks for that one (``allows``).

Rules speak of steps before the stride: t is kept where step t · stride is. With a transform they
speak of what it gives: its features, its steps.

All ranges of such sets lie in flat arrays, episode after episode, ascending and disjoint
within each. Shifted by episode · 2³² they are one ascending row of disjoint ranges. So two sets are
intersected, and the k-th number of an episode is found, by a binary search over arrays.
An episode costs 8 bytes and a range 32, however long it is.

Not here: the language (``spec.sample``), the texts of all episodes (``autoloader.index``), what a
plan does with the sets (``sampling.plan``).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import groupby
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, Field, ValidationError

from autoloader.errors import SourceError, SpecError
from autoloader.formats import Feature, files
from autoloader.host.frozen import frozen
from autoloader.samples.draws import Bools, Ints
from autoloader.samples.transforms.fields import (
    check_encoding,
    check_language,
    find_feature,
    stored_as,
    stored_texts,
    text_role,
    unfit,
)
from autoloader.samples.windows import dropped_edges
from autoloader.spec import KeepSpec, SampleSpec
from autoloader.spec.block import adapter, wrong
from autoloader.spec.reading import complaint
from autoloader.spec.sample import key_parts, matcher

Pairs = tuple[tuple[int, int], ...]
ALL_STEPS = 2**31 - 1
"""Steps that a text of the whole episode covers."""


@frozen
class TextRuns:
    """The texts of one feature.

    Attributes:
        runs: [K, 4] int64: episode, first step, the step behind the last, which text; steps before
            the stride. Episodes in order.
        texts: every text once, UTF-8.
    """

    runs: Ints
    texts: tuple[bytes, ...]


_Texts = Mapping[str, TextRuns]
_Says = Callable[[str], bool]
_Key = Sequence[tuple[str, Feature | None]]
"""``keep.ranges.key``: words, each with the feature whose text follows them, if one does."""


@frozen
class RuleLoss:
    """Loss by one rule, of what the rules before it have left.

    Attributes:
        rule: path of the rule in the dataset's spec, such as "keep.language".
        episodes: that had a valid t and have none any more.
        samples: valid t of a pass.
    """

    rule: str
    episodes: int
    samples: int


class Keep:
    """The rules of one dataset, bound to its features; immutable.

    Args:
        spec: rules of the dataset's ``keep`` block.
        features: features of the dataset, or those that its transform gives.
        language: the features that its language is drawn from.
        speaks: tells for the path of a language feature whether a stored text says something.
        where: path of the dataset in the spec.

    Attributes:
        identity: hash of what the file of ranges held when it was read; the spec only names it.

    Raises:
        SpecError: a feature is missing or holds no text; the ranges' file cannot be read.
    """

    def __init__(
        self,
        spec: KeepSpec,
        features: Mapping[str, Feature],
        language: Sequence[Feature],
        speaks: Callable[[str], _Says],
        *,
        where: str,
    ) -> None:
        self.identity = ""
        self._asked: list[Feature] = []
        self._ranges: tuple[_Key, Mapping[str, Pairs]] = [], {}
        self._rules: list[tuple[str, Callable[[int, _Texts], Ranges]]] = []

        def asked(path: str, rule: str, check: Callable[..., None]) -> Feature:
            feature = find_feature(features, path, field=f"{where}.{rule}")
            check(feature, field=f"{where}.{rule}")
            self._asked.append(feature)
            return feature

        if spec.language is not None:
            self._asked += language
            spoken = [(one, speaks(one.path)) for one in language]
            told = [partial(self._matching, *one) for one in spoken]
            if spec.language == "anywhere":
                told = [partial(self._anywhere, spoken)]
            self._rules += [("keep.language", one) for one in told]
        for path, pattern in spec.match.items():
            text = asked(path, rule := f"keep.match.{path}", check_language)
            self._rules.append((rule, partial(self._matching, text, matcher(pattern))))
        for path in spec.flags:
            flag = asked(path, rule := f"keep.flags.{path}", _check_flag)
            self._rules.append((rule, partial(self._matching, flag, "1".__eq__)))
        if spec.ranges is not None:
            parts = [
                (words, None if named is None else asked(named, "keep.ranges.key", _check_key))
                for words, named in key_parts(spec.ranges.key)
            ]
            listed = _ranges_of_file(spec.ranges.file, field=f"{where}.keep.ranges.file")
            plain = json.dumps(sorted(listed.items()), separators=(",", ":"))
            self.identity = hashlib.sha256(plain.encode()).hexdigest()
            self._ranges = parts, listed
            self._rules.append(("keep.ranges", partial(self._listed, parts, listed)))

    @property
    def features(self) -> tuple[Feature, ...]:
        """Features whose texts the rules look at."""
        return tuple(dict.fromkeys(self._asked))

    def sets_of(self, rows: int, texts: _Texts) -> tuple[tuple[str, Ranges], ...]:
        """(rule, steps that it and those before it leave of each episode), in order; not empty.

        Args:
            rows: number of episodes E.
            texts: texts of each of ``features``, by key.
        """
        left: Ranges | None = None
        sets: dict[str, Ranges] = {}
        for name, rule in self._rules:
            one = rule(rows, texts)
            left = sets[name] = one if left is None else left.both(one)
        return tuple(sets.items())

    def excludes(self, values: Mapping[str, str]) -> bool:
        """True if ``ranges`` name no step of an episode, as far as these features tell it.

        Args:
            values: values of the episode, by key.
        """
        parts, listed = self._ranges
        if not parts or any(one is not None and one.key not in values for _, one in parts):
            return False
        key = "".join(text + ("" if one is None else values[one.key]) for text, one in parts)
        return not listed.get(key)

    def allows(self, steps: int, values: Mapping[str, Any]) -> Bools:
        """[T] which of an episode's ``steps`` the rules leave.

        Args:
            steps: number of steps T in the episode.
            values: values of each of ``features``, by key: byte strings, or integers, flat.
        """
        texts = {one.key: runs_of_episode(values[one.key], one) for one in self.features}
        whole = Ranges.spans(np.zeros(1, np.int64), np.full(1, steps, np.int64))
        kept = np.zeros(steps, dtype=np.bool_)
        kept[self.sets_of(1, texts)[-1][1].both(whole).numbers(0)] = True
        return kept

    @staticmethod
    def _matching(feature: Feature, matches: _Says, rows: int, texts: _Texts) -> Ranges:
        found = texts[feature.key]
        fits = [matches(one.decode("utf-8", "replace")) for one in found.texts]
        kept = found.runs[np.asarray(fits, dtype=np.bool_)[found.runs[:, 3]]]
        return Ranges.of(rows, kept[:, 0], kept[:, 1], kept[:, 2])

    @staticmethod
    def _anywhere(spoken: Sequence[tuple[Feature, _Says]], rows: int, texts: _Texts) -> Ranges:
        some = np.zeros(rows, dtype=np.bool_)
        for feature, speaks in spoken:
            some |= Keep._matching(feature, speaks, rows, texts).counts() > 0
        return Ranges.spans(np.zeros(rows, np.int64), np.where(some, ALL_STEPS, 0))

    @staticmethod
    def _listed(parts: _Key, listed: Mapping[str, Pairs], rows: int, texts: _Texts) -> Ranges:
        keys = [""] * rows
        whole = np.ones(rows, dtype=np.bool_)
        for text, feature in parts:
            keys = [key + text for key in keys]
            if feature is None:
                continue
            found = texts[feature.key]
            words = [one.decode("utf-8", "replace") for one in found.texts]
            there = np.zeros(rows, dtype=np.bool_)
            for row, word in found.runs[:, [0, 3]].tolist():
                keys[row] += words[word]
                there[row] = True
            whole &= there
        found_ranges = [
            (row, start, stop)
            for row in np.flatnonzero(whole).tolist()
            for start, stop in listed.get(keys[row], ())
        ]
        columns = np.asarray(found_ranges, dtype=np.int64).reshape(-1, 3)
        return Ranges.of(rows, columns[:, 0], columns[:, 1], columns[:, 2])


def left_by_rules(
    windows: Ranges, sets: Iterable[tuple[str, Ranges]], stride: int
) -> tuple[Ranges, tuple[RuleLoss, ...]]:
    """Steps t that rules leave, and the loss by each rule.

    Args:
        windows: the valid t without them.
        sets: (rule, steps that it and those before it leave), in order.
        stride: every how many steps.
    """
    left, before, losses = windows, windows.counts(), []
    for rule, steps in sets:
        left = windows.both(steps.strided(stride))
        counts = left.counts()
        episodes = int(((before > 0) & (counts == 0)).sum())
        losses.append(RuleLoss(rule, episodes, int((before - counts).sum())))
        before = counts
    return left, tuple(losses)


def _check_key(feature: Feature, *, field: str) -> None:
    """Refuse a feature that is no text or integer of an episode."""
    whole = feature.kind == "tensor" and not feature.shape and "int" in feature.dtype
    if feature.per_step:
        remedy = "name features of the episode, such as {episode_metadata/file_path}"
        raise unfit(
            feature,
            field,
            "is a feature of the steps, and a key takes features of the episode",
            remedy,
        )
    if whole:
        check_encoding(feature, (None, "none"), field=field)
    else:
        check_language(feature, field=field)


def _check_flag(feature: Feature, *, field: str) -> None:
    """Refuse a feature that is no single boolean."""
    if feature.kind != "tensor" or feature.dtype != "bool" or feature.shape:
        remedy = "give a boolean, such as success; for a text use keep.match"
        raise unfit(feature, field, "is not one boolean", remedy)


def _ranges_of_file(path: str, *, field: str) -> Mapping[str, Pairs]:
    """Ranges in a file, by key; ``SpecError`` where it cannot be read."""
    try:
        stat = os.stat(path)  # noqa: PTH116
        return _parsed(path, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise SpecError(
            f"{field}: {path}: {error.strerror or error}",
            remedy="give the path of a readable JSON file, relative to the spec's folder",
        ) from error
    except ValidationError as error:
        what, remedy, key = complaint(error, {})
        remedy = remedy.partition(", or one line")[0]  # which is YAML
        raise SpecError(
            f"{field}: {path}{', under the key' if key else ':'} {what}; {remedy}",
            remedy='write {"KEY": [[start, end], …], …} with whole steps, 0 ≤ start ≤ end',
        ) from error


def _in_order(pair: tuple[int, int]) -> tuple[int, int]:
    """A range within all steps; one that ends before its start is refused."""
    if pair[0] > pair[1]:
        raise wrong(f"the range {list(pair)} ends before its start", "put the smaller one first")
    return min(pair[0], ALL_STEPS), min(pair[1], ALL_STEPS)


_Step = Annotated[int, Field(strict=True, ge=0)]
_Pair = Annotated[tuple[_Step, _Step], AfterValidator(_in_order)]
_Ranges = dict[str, tuple[_Pair, ...]]


@lru_cache(maxsize=8)
def _parsed(path: str, size: int, mtime_ns: int) -> Mapping[str, Pairs]:
    """Ranges in a file, by key; parsed once as long as the file stays as it is."""
    ranges: _Ranges = adapter(_Ranges).validate_json(files.read_local(path, "list_bytes"))
    return ranges


def runs_of_episode(values: Any, feature: Feature) -> TextRuns:
    """The texts of one episode, as those of episode 0."""
    ids, texts = stored_texts(values, stored_as(feature, text_role(feature)))
    runs: list[tuple[int, int, int, int]] = []
    step = 0
    for number, same in groupby(ids.tolist()):
        stop = step + len(list(same)) if feature.per_step else ALL_STEPS
        runs.append((0, step, stop, number))
        step = stop
    return TextRuns(np.asarray(runs, np.int64).reshape(-1, 4), tuple(texts))


_SHIFT = 1 << 32
_MOST_NUMBERS = 20


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """For each of E episodes a set of numbers in [0, 2³²), as R ranges in all.

    Attributes:
        first: [E + 1] int64; episode e has ranges first[e] … first[e + 1] − 1.
        start, stop: [R] int64; ascending, disjoint and not empty within an episode.
        before: [R + 1] int64, numbers in all ranges before each, derived.
        low: [R] int64, start of each range in the one ascending row of all, derived.
    """

    first: Ints
    start: Ints
    stop: Ints
    before: Ints = field(init=False, repr=False)
    low: Ints = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", self.episode() * _SHIFT + self.start)
        before = np.zeros(len(self.start) + 1, dtype=np.int64)
        np.cumsum(self.stop - self.start, out=before[1:])
        object.__setattr__(self, "before", before)

    @classmethod
    def of(cls, episodes: int, episode: Ints, start: Ints, stop: Ints) -> Ranges:
        """From any ranges [R] of episodes: they are sorted, joined where they overlap or touch."""
        some = np.flatnonzero(stop > start)
        low = episode[some] * _SHIFT + start[some]
        order = np.argsort(low, kind="stable")
        low = low[order]
        high = np.maximum.accumulate((episode[some] * _SHIFT + stop[some])[order], dtype=np.int64)
        begins = np.ones(len(low), dtype=np.bool_)
        begins[1:] = low[1:] > high[:-1]
        at = np.flatnonzero(begins)
        ends = np.append(at[1:], len(low))[: len(at)] - 1
        return cls._of_row(episodes, low[at], high[ends])

    @classmethod
    def spans(cls, start: Ints, stop: Ints) -> Ranges:
        """Ranges of E episodes of which each has one, which may be empty."""
        return cls.of(len(start), np.arange(len(start), dtype=np.int64), start, stop)

    @classmethod
    def _of_row(cls, episodes: int, low: Ints, high: Ints) -> Ranges:
        """From the shifted, ascending row of disjoint ranges."""
        episode = low // _SHIFT
        first = np.searchsorted(episode, np.arange(episodes + 1))
        return cls(first.astype(np.int64), low - episode * _SHIFT, high - episode * _SHIFT)

    @property
    def episodes(self) -> int:
        """E."""
        return len(self.first) - 1

    def episode(self) -> Ints:
        """[R] the episode of each range."""
        return np.repeat(np.arange(self.episodes, dtype=np.int64), np.diff(self.first))

    def counts(self) -> Ints:
        """[E] numbers of each episode."""
        return np.asarray(np.diff(self.before[self.first]))

    def both(self, other: Ranges) -> Ranges:
        """Intersection with ``other``, which has the same episodes."""
        low, high = self.low, self.low + (self.stop - self.start)
        other_low, other_high = other.low, other.low + (other.stop - other.start)
        begin = np.searchsorted(other_high, low, side="right")
        end = np.searchsorted(other_low, high, side="left")
        each = np.maximum(end - begin, 0)
        mine = np.repeat(np.arange(len(low)), each)
        theirs = np.arange(len(mine)) - np.repeat(np.cumsum(each) - each - begin, each)
        return self._of_row(
            self.episodes,
            np.maximum(low[mine], other_low[theirs]),
            np.minimum(high[mine], other_high[theirs]),
        )

    def strided(self, stride: int) -> Ranges:
        """Every t for which t · stride is in the set."""
        if stride == 1:
            return self
        start, stop = -(-self.start // stride), -(-self.stop // stride)
        return Ranges.of(self.episodes, self.episode(), start, stop)

    def numbers(self, episode: int) -> Ints:
        """The numbers of one episode, ascending."""
        at = range(int(self.first[episode]), int(self.first[episode + 1]))
        parts = [np.arange(self.start[k], self.stop[k], dtype=np.int64) for k in at]
        return np.concatenate([np.empty(0, dtype=np.int64), *parts])

    def nth(self, episode: Ints, place: Ints) -> Ints:
        """The ``place``-th number [n] of each of some episodes [n], counted from 0."""
        wanted = self.before[self.first[episode]] + place
        at = np.searchsorted(self.before, wanted, side="right") - 1
        return np.asarray(self.start[at] + wanted - self.before[at])

    def place(self, episode: Ints, number: Ints) -> Ints:
        """Which of its episode's numbers [n] each is, −1 where it is none: ``nth``'s inverse."""
        at = np.searchsorted(self.low, episode * _SHIFT + number, side="right") - 1
        some = at >= self.first[episode]
        some[some] = number[some] < self.stop[at[some]]
        found = np.full(len(number), -1, dtype=np.int64)
        at, own = at[some], episode[some]
        found[some] = self.before[at] - self.before[self.first[own]] + number[some] - self.start[at]
        return found


@frozen
class DatasetCount:
    """Counts of one dataset: episodes, valid steps, samples.

    Attributes:
        episodes: records of the split that can be read.
        frames: number of the episodes' frames, before the stride.
        samples: samples of a pass.
        size: factor of a weight with ``natural_scaled``: samples of a pass that takes every valid
            t, whatever ``per_episode`` draws; or the steps of recorded statistics.
        short_episodes: episodes that give no sample because no window fits.
        damaged: records that cannot be read, with their reasons.
        estimated: whether samples are an estimate from a probe.
        frames_estimated: True if the number of frames is an estimate.
        lost: samples that each rule of ``keep`` leaves out, in order.
        notes: remarks on the files, for people.
        bad_episodes: numbers of the damaged episodes, where episodes have numbers.
        blanks: (clause, remedy) of each text and camera that its samples have and that is "", or
            absent, in all of them.
        files: features of the index, and a hash of what it holds of the files; ("", "") of an
            estimate.
    """

    episodes: int
    frames: int
    samples: int
    size: int
    short_episodes: int
    damaged: tuple[str, ...]
    estimated: bool
    lost: tuple[RuleLoss, ...] = ()
    frames_estimated: bool = False
    blanks: tuple[tuple[str, str], ...] = ()
    bad_episodes: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    files: tuple[str, str] = ("", "")


def too_many_bad(
    dataset: str, bad: int, records: int, ratio: float, last: str, which: str = "", whole: str = ""
) -> SourceError | None:
    """The error of a dataset with too many bad records; ``None`` where a run bears them.

    Args:
        dataset: name of the dataset, for errors.
        bad: records that cannot be used.
        records: records of the split, by shard.
        ratio: ``errors.max_corrupt_ratio``; one bad record is always borne.
        last: place of one of these records, and the reason why it is bad.
        which: numbers of the bad episodes, where episodes have numbers.
        whole: numbers of the whole ones.
    """
    if bad <= max(1, int(ratio * records)):
        return None
    which = which and f" ({which})"
    keep = whole and f"set datasets[{dataset}].episodes: [{whole}], the good ones, "
    return SourceError(
        f"dataset {dataset!r}: {bad} of the {records} episodes in this split are bad{which}, more "
        f"than errors.max_corrupt_ratio={ratio} allows; the last: {last}",
        remedy=f"{keep}repair the dataset, remove it from the spec, or raise "
        "errors.max_corrupt_ratio",
    )


def few(numbers: Sequence[object]) -> str:
    """The first numbers, such as "0, 3" or "0, 1, …"."""
    return ", ".join([*map(str, numbers[:_MOST_NUMBERS]), *["…"] * (len(numbers) > _MOST_NUMBERS)])


def samples_per_episode(sample: SampleSpec, strided: Ints, kept: Ranges | None = None) -> Ints:
    """[E] samples that episodes of ``strided`` [E] frames give in a pass.

    Args:
        sample: windows, and how many t of an episode are drawn.
        strided: frames after the stride.
        kept: valid t of the episodes where rules leave some out; ``None``: they leave none out.
    """
    counted = valid_per_episode(sample, strided, kept)
    return counted if sample.per_episode == "all" else np.minimum(counted, sample.per_episode)


def valid_per_episode(sample: SampleSpec, strided: Ints, kept: Ranges | None = None) -> Ints:
    """[E] valid t of episodes, before ``sample.per_episode`` draws some of them.

    ``samples_per_episode`` counts those that are drawn, and has the same arguments.
    """
    if kept is not None:
        return np.asarray(kept.counts(), dtype=np.int64)
    first, end = dropped_edges(sample)
    if len(strided) and strided.strides == (0,):  # all alike: one number stands for all
        return np.broadcast_to(np.maximum(strided[:1] - (first + end), 0)[0], strided.shape)
    return np.maximum(strided - (first + end), 0).astype(np.int64)
