"""``autoloader peek``: a contact sheet of a mixture, as it reaches the model.

An HTML page (``peek.html.jinja``). A dataset has a section: labelled frames, the fields of its
first episodes as lines over time with removed steps, and histograms. Histograms have a column for
each number of a field: as stored, behind each op, and as the model gets it. For histograms and
lines the first records are read as they lie. The witness does to them what a loader does, one op
at a time.

Not here: what a sample holds (``samples``), a mixture whose datasets come evenly (``cli.verify``).
"""

from __future__ import annotations

import base64
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from autoloader.cli.inspect import column_range
from autoloader.cli.output import answered, check_writable, emit, note, progress_bar, write_output
from autoloader.cli.verify import evenly, labels_of
from autoloader.cli.witness import Episode, stages
from autoloader.errors import UsageError
from autoloader.formats import Feature
from autoloader.formats.features import RAGGED
from autoloader.formats.plain import Step
from autoloader.formats.records import MalformedRecordError
from autoloader.host.extras import require
from autoloader.loader import AutoLoader
from autoloader.process.augmentation import augmenter
from autoloader.samples.resolve import ResolvedDataset
from autoloader.samples.transforms.fields import BETWEEN, is_text
from autoloader.samples.transforms.rlds import read_values
from autoloader.spec import DatasetSpec, FieldTerm, PipelineSpec
from autoloader.telemetry.charts import render

_RANGE = ("low", "high", "mean", "values")
MOST_SHOWN = 3
"""Samples of a dataset whose frames are shown."""
STORED = "stored"
"""The stage before any op."""
MOST_DRAWN = 32
"""Columns of a field that are drawn; ``--json`` has all."""
_COLOURS = "viridis"
_GRIPPER_WORDS = ("gripper", "grasp", "open", "close")
_GRIPPER_OPS = ("rel2abs", "binarise")
_ARM_WIDTHS = (7, 8)
"""Widths of an action whose last column is a gripper where no name says otherwise."""
_BINS = 20


def show_sheet(
    declared: PipelineSpec,
    output: Path,
    title: str,
    samples: int,
    episodes: int,
    given: Mapping[str, Any],
) -> None:
    """Draw a contact sheet, and say what stands out.

    Args:
        declared: spec of the mixture.
        output: file of the page.
        title: text at the top of the page.
        samples: number of samples of each dataset in the histograms.
        episodes: number of episodes of each dataset whose ops and rules are shown.
        given: arguments of the loader, by name.
    """
    require("matplotlib", "the contact sheet")
    if output.suffix != ".html":
        raise UsageError(
            f"--output {output}: peek writes an HTML page",
            remedy=f"write -o {output.with_suffix('.html')}; print the page to make a PDF or a "
            "picture of it",
        )
    check_writable(output)  # before samples are read
    panels = _panels(declared, samples, episodes, given)
    write_output(output, _page(panels, title))
    odd = [f"{name}: {line}" for name, panel in panels.items() for line in _odd(panel)]
    datasets = {name: _plain(panel) for name, panel in panels.items()}
    if not answered({"sheet": output, "datasets": datasets, "odd": odd}):
        emit(str(output))
    for line in odd:
        note(line)


Scale = tuple[float, float]
"""Values that the first and the last colour of depth frames stand for."""


@dataclass
class Shown:
    """One sample's frames.

    Attributes:
        cameras: camera → [F, H, W, 3] uint8.
        labels: labels of the F frames: "t", "t+5", "goal t+9"; "" for a frame that is alone.
        absent: cameras that the dataset lacks, or whose frames are all padding.
        t: step of the episode at which the sample stands.
        text: instruction of the sample.
        scales: depth camera → values that its colours stand for.
    """

    cameras: Mapping[str, NDArray[np.uint8]]
    labels: Sequence[str]
    absent: frozenset[str]
    t: int
    text: str
    scales: Mapping[str, Scale] = field(default_factory=dict)


@dataclass
class FilteredEpisode:
    """Steps that rules remove of one episode.

    Attributes:
        steps: number of steps in the file, or as the transform leaves them.
        removed: rule → steps that it removes; a step stands under the first that does.
        lines: "action" and "state" → each column [steps] behind the ops; NaN at steps that
            ``steps`` of the spec takes away.
    """

    steps: int
    removed: dict[str, list[int]]
    lines: dict[str, list[NDArray[np.float32]]] = field(default_factory=dict)

    @property
    def removed_steps(self) -> list[int]:
        """Every step that a rule removes."""
        return sorted(step for steps in self.removed.values() for step in steps)


@dataclass
class Column:
    """One column of a field.

    Attributes:
        name: its number and where it comes from; without a number where an op took it away.
        stages: (what was done, its values [n]), as stored first.
        normalised: whether the statistics bring it to a scale; ``None`` where the spec has none.
        flag: remark on values that stand out; "": none do.
        own: whether it is a column of the field; an op may take one away.
        gripper: whether it is a gripper's, by its own name, or else by the name and the ops of its
            term, which has two columns at most; ``None``: neither says so.
    """

    name: str
    stages: list[tuple[str, NDArray[np.float32]]] = field(default_factory=list)
    normalised: bool | None = None
    flag: str = ""
    own: bool = True
    gripper: bool | None = None

    def plain(self) -> dict[str, Any]:
        """Document of the column for ``--json``."""
        stages = [
            {"after": label} | {key: column_range(values)[key] for key in _RANGE}
            for label, values in self.stages
        ]
        told = {"name": self.name, "normalised": self.normalised, "flag": self.flag or None}
        return {**told, "stages": stages}


@dataclass
class Panel:
    """Section of the page: one dataset.

    Attributes:
        shown: samples whose frames are drawn.
        fields: "action" and "state" → columns.
        episodes: first episodes of the dataset.
        rows: "action" and "state" → rows as the model gets them, a sample each.
        samples: number of samples that were taken.
        bright: camera → whether any of its frames is not black; absent where it gave none.
        says: "language" and text features → whether any of their texts is not blank.
        flags: camera → path of the flag that says whether it is present, where there is one.
    """

    shown: list[Shown] = field(default_factory=list)
    fields: dict[str, list[Column]] = field(default_factory=dict)
    episodes: list[FilteredEpisode] = field(default_factory=list)
    rows: dict[str, list[Any]] = field(default_factory=lambda: {"action": [], "state": []})
    samples: int = 0
    bright: dict[str, bool] = field(default_factory=dict)
    says: dict[str, bool] = field(default_factory=dict)
    flags: dict[str, str] = field(default_factory=dict)

    @property
    def absent(self) -> dict[str, str]:
        """Camera → its flag, of cameras that gave no frame."""
        return {camera: flag for camera, flag in self.flags.items() if camera not in self.bright}

    @property
    def black(self) -> list[str]:
        """Cameras of the dataset with black frames only."""
        return [camera for camera, bright in self.bright.items() if not bright]

    @property
    def silent(self) -> list[str]:
        """Text features of the dataset, and "language", that are blank in all samples."""
        return sorted(name for name, says in self.says.items() if not says)

    def removed(self) -> dict[str, int]:
        """Rule → number of steps that it removes of all these episodes."""
        found: Counter[str] = Counter()
        for episode in self.episodes:
            found.update({rule: len(steps) for rule, steps in episode.removed.items()})
        return dict(found)


def _panels(
    asked: PipelineSpec, samples: int, episodes: int, given: Mapping[str, Any]
) -> dict[str, Panel]:
    """Read samples and episodes, and give a section of the page for each dataset.

    Args:
        asked: spec whose datasets are shown.
        samples: number of samples of each dataset.
        episodes: number of episodes of each dataset.
        given: arguments of the loader, by name.
    """
    augment, found = augmenter(asked, given["split"]), dict[str, Panel]()
    with (
        AutoLoader(
            evenly(asked),
            **given,
            rank=0,
            world_size=1,
            output="torch" if augment.active else "numpy",
        ) as loader,
        progress_bar("reading samples") as advance,
    ):
        mixture, wanted, done = loader.plan.mixture, samples * len(loader.dataset_names), 0
        for batch in loader:
            indices = batch["dataset_index"].tolist()
            for k, index in enumerate(indices):
                dataset = mixture.datasets[index]
                if (panel := found.get(dataset.name)) is None:
                    texts = [name for name, of in dataset.held.items() if is_text(of)]
                    texts += ["language"] * bool(dataset.language)
                    flags = {camera: flag.path for camera, flag in dataset.present.items()}
                    panel = Panel(says=dict.fromkeys(texts, False), flags=flags)
                    found[dataset.name] = panel
                _take(batch, k, panel)
                if len(panel.shown) < MOST_SHOWN:
                    alone: Any = {
                        "images": {name: of[k : k + 1] for name, of in batch["images"].items()},
                        "provenance": batch["provenance"][k : k + 1],
                    }
                    pictures = {name: of[0] for name, of in augment(alone)["images"].items()}
                    goal = dataset.sample.goal != "none"
                    panel.shown.append(_shown(batch, pictures, k, goal=goal))
            done += len(indices)
            advance(min(done, wanted), wanted)
            if done >= wanted:
                break
    ordered = [one for one in mixture.datasets if one.name in found]
    for dataset in ordered:
        _look_into(found[dataset.name], dataset, asked, episodes)
    return {one.name: found[one.name] for one in ordered}


def _take(batch: Mapping[str, Any], k: int, panel: Panel) -> None:
    """Count a sample of a batch in."""
    panel.samples += 1
    for name, rows in panel.rows.items():
        values, mask = (np.asarray(batch[key][k]) for key in (name, f"{name}_mask"))
        width = int(mask.any(axis=tuple(range(mask.ndim - 1))).sum())
        rows.append(values[mask.any(axis=-1)][:, :width].copy())
    for camera, frames in batch["images"].items():
        there = np.asarray(batch["frame_mask"][camera][k])
        if there.any():
            panel.bright[camera] = panel.bright.get(camera, False) or bool(
                np.asarray(frames[k])[there].any()
            )
    for name, texts in {"language": batch["language"], **batch.get("features", {})}.items():
        if name in panel.says:
            panel.says[name] = panel.says[name] or bool("".join(texts[k]).strip())


def _shown(batch: Mapping[str, Any], pictures: Mapping[str, Any], k: int, *, goal: bool) -> Shown:
    """Pictures and labels of sample ``k`` of a batch."""
    offsets = np.asarray(batch["frame_offset"][k]).tolist()
    labels = [f"t{offset:+d}" if offset else "t" for offset in offsets]
    if goal:
        labels[-1] = f"goal {labels[-1]}"
    labels = [""] if labels == ["t"] else labels
    masks = {name: np.asarray(mask[k]) for name, mask in batch["frame_mask"].items()}
    cameras = {name: np.asarray(of).copy() for name, of in pictures.items()}
    depth = {name: coloured(of) for name, of in cameras.items() if of.shape[-1] == 1}
    return Shown(
        cameras={**cameras, **{name: of for name, (of, _) in depth.items()}},
        labels=labels,
        absent=frozenset(name for name, mask in masks.items() if not mask.any()),
        t=int(batch["provenance"][k][4]),
        text=batch["language"][k],
        scales={name: scale for name, (_, scale) in depth.items() if scale is not None},
    )


def _look_into(panel: Panel, dataset: ResolvedDataset, asked: PipelineSpec, episodes: int) -> None:
    """Add the first episodes, and the columns of both fields."""
    found: dict[str, list[Column]] = {}
    if dataset.remote:
        note(f"{dataset.name}: remote; ops and removed steps are shown of local data alone")
    else:
        found, panel.episodes = look_at(dataset, asked.dataset(dataset.name), episodes)
    for name, bound in (("action", dataset.action), ("state", dataset.state)):
        if bound is None:
            continue
        model = np.concatenate(panel.rows[name])
        columns = found.get(name) or [Column(str(at)) for at in range(model.shape[1])]
        own = [column for column in columns if column.own]
        scaling, how = dataset.scaling.get(name), asked.normalize_of(dataset.name, name)
        for at, column in enumerate(own):
            column.normalised = None if scaling is None else bool(scaling.active[at])
        for column in gripper_columns(own) if name == "action" and name in found else ():
            column.flag = not_binary(column.stages[-1][1])
        for column, values in zip(own, model.T, strict=False):
            label = f"to the model: {how.method}" if how and column.normalised else "to the model"
            column.stages.append((label, values))
        panel.fields[name] = columns


def _odd(panel: Panel) -> list[str]:
    """Things that stand out, a sentence each."""
    found = [
        f"camera {camera} is black in every sample: a placeholder? Leave it out of images, or name "
        "the flag that says where it is there (present)"
        for camera in panel.black
    ]
    for camera, flag in panel.absent.items():
        told = f"camera {camera} is absent in all samples: {flag} is 0"
        found.append(f'{told}; take out "present", or choose another camera')
    found += [f"{name} is empty in all {panel.samples} samples" for name in panel.silent]
    for name, columns in panel.fields.items():
        found += [
            f"{name} {column.name.replace(f'{at}: {name} {at}', str(at))}: {column.flag} → to have "
            "it open or closed, make it binary by an op (binarise, clip); leave it if it is a width"
            for at, column in enumerate(columns)
            if column.flag
        ]
    return found


def _plain(panel: Panel) -> dict[str, Any]:
    """The panel as values of JSON."""
    return {
        "samples": panel.samples,
        "language": [one.text for one in panel.shown],
        "frames": [{"t": one.t, "labels": list(one.labels), "cameras": list(one.cameras),
                    "absent": sorted(one.absent),
                    "depth": {name: {"low": low, "high": high}
                              for name, (low, high) in one.scales.items()}}
                   for one in panel.shown],
        "black": panel.black,
        "absent": panel.absent,
        "silent": panel.silent,
        "fields": {name: [column.plain() for column in columns]
                   for name, columns in panel.fields.items()},
        "removed": panel.removed(),
        "episodes": [{"number": number, "steps": one.steps, "removed": one.removed}
                     for number, one in enumerate(panel.episodes)],
    }  # fmt: skip


def gripper_columns(columns: Sequence[Column]) -> list[Column]:
    """Columns of an action that are a gripper's, as far as names, ops and masks tell."""
    masks = any(column.normalised for column in columns)
    found = [
        column
        for column in columns
        if column.gripper or (column.gripper is None and masks and not column.normalised)
    ]
    last = columns[-1:] if len(columns) in _ARM_WIDTHS else ()
    return found or [column for column in last if column.gripper is None]


def look_at(
    dataset: ResolvedDataset, declared: DatasetSpec, count: int
) -> tuple[dict[str, list[Column]], list[FilteredEpisode]]:
    """Look at the first ``count`` episodes that are whole: columns of each field, removed steps.

    Raises:
        SourceError: a file cannot be read.
    """
    every = {"action": declared.action, "state": declared.state}
    terms = [(name, term) for name, one in every.items() if one is not None for term in one.terms]
    parts: list[list[list[NDArray[np.float32]]]] = [[] for _ in terms]
    episodes, said = list[FilteredEpisode](), declared.steps
    for _, payload in dataset.directory.records(dataset.slices):
        if len(episodes) == count:
            break
        try:
            steps, valid = _steps(dataset, payload)
        except MalformedRecordError:
            continue
        taken = range(len(steps))[said.drop_first :: said.every]
        left = list(taken[: max(0, len(taken) - said.drop_last)])
        episode = Episode(steps, declared, dataset.sample, valid=valid, labels=labels_of(dataset))
        episodes.append(_filtered(episode, len(steps), len(left)))
        for part, (name, term) in zip(parts, terms, strict=True) if taken else ():
            behind = stages([steps[at] for at in taken], term)
            part.append([np.stack(rows)[: len(left)] for rows in behind])
            lines = np.full((part[-1][-1].shape[1], len(steps)), np.nan, np.float32)
            lines[:, left] = part[-1][-1].T
            episodes[-1].lines.setdefault(name, []).extend(lines)
    fields: dict[str, list[Column]] = {}
    for part, (name, term) in zip(parts, terms, strict=True) if any(parts) else ():
        joined = [np.concatenate(values) for values in zip(*part, strict=True)]
        feature = None if dataset.transform else dataset.directory.features.get(term.path or "")
        names = feature.columns[term.slice()] if feature else ()
        fields.setdefault(name, []).extend(_columns(term, names, joined))
    for columns in fields.values():
        columns.sort(key=lambda column: not column.own)
        for at, column in enumerate(columns):
            column.name = f"{at}: {column.name}" if column.own else column.name
    return fields, episodes


def _columns(
    term: FieldTerm, names: Sequence[str], behind: Sequence[NDArray[np.float32]]
) -> list[Column]:
    """Columns of a term, with those that an op takes away, from its values behind each op."""
    constant = f"{'ones' if term.value else 'zeros'}: {term.constants}"
    path = (constant if term.path is None else term.text()).rpartition("/")[2]
    widths = [of.shape[1] for of in behind]
    by_term = _is_gripper(term.path or "") or any(op.name in _GRIPPER_OPS for op in term.ops)
    gripper = True if by_term and widths[-1] <= 2 else None
    named = {len(names)} == {*widths}
    every = list(zip([STORED, *map(_named, term.ops)], behind, strict=True))
    return [
        Column(
            names[at] if named else f"{path} {at}",
            [(label, of[:, at]) for label, of in every if at < of.shape[1]],
            own=at < widths[-1],
            gripper=_is_gripper(names[at]) if named else gripper,
        )
        for at in range(max(widths))
    ]


def _steps(dataset: ResolvedDataset, payload: bytes) -> tuple[list[Step], list[bool]]:
    """An episode as the user's function leaves it, as the witness takes it."""
    if dataset.transform is None:
        given: Mapping[str, Feature] = dataset.directory.features
        found, _ = read_values(payload, given, None)
    else:
        given = dataset.transform.given
        found, _ = dataset.transform.by_function(payload, None, None)
    rows = {}
    for path, feature in given.items() if found.steps else ():
        value: Any = found.values.get(feature.key, ())
        if isinstance(value, list) and feature.encoding == RAGGED:
            value = [np.asarray(one.split(BETWEEN), object) for one in value]
        elif isinstance(value, np.ndarray) or len(value) > found.steps:
            value = np.asarray(value).reshape(found.steps if feature.per_step else 1, -1)
        if len(value):
            rows[path] = value if feature.per_step else [value[0]] * found.steps
    steps: list[Step] = [{path: of[t] for path, of in rows.items()} for t in range(found.steps)]
    return steps, found.valid.tolist()


def _filtered(episode: Episode, steps: int, left: int) -> FilteredEpisode:
    """Each step under the first rule that removes it.

    Args:
        episode: episode as the witness has it.
        steps: number of its steps before any rule.
        left: number of steps that ``steps`` leaves.
    """
    said, stride = episode.declared.steps, episode.declared.stride
    removed: defaultdict[str, list[int]] = defaultdict(list)
    for step in range(steps):
        at, between = divmod(step - said.drop_first, said.every)
        if at < 0:
            rule: str | None = "steps.drop_first"
        elif between:
            rule = "steps.every"
        elif at >= left:
            rule = "steps.drop_last"
        elif (rule := episode.rule(at)) is None:
            rule = "stride" if at % stride else episode.edge(at // stride)
        if rule is not None:
            removed[rule].append(step)
    return FilteredEpisode(steps, dict(removed))


def _is_gripper(name: str) -> bool:
    """True if the name of a feature or a column speaks of a gripper."""
    return any(word in name.lower() for word in _GRIPPER_WORDS)


def _named(op: Any) -> str:
    """An op as words: its name and values."""
    plain = op.plain()
    return plain if isinstance(plain, str) else " ".join(map(str, *plain.items()))


def not_binary(values: NDArray[np.float32]) -> str:
    """Say why a gripper's values are not 0 and 1; "" where they are."""
    finite = values[np.isfinite(values)]
    if np.isin(finite, (0.0, 1.0)).all():
        return ""
    told = column_range(finite)
    few = ", ".join(f"{one:g}" for one in told["values"] or ())
    if told["low"] >= 0 and told["high"] <= 1:
        return "gripper has values between 0 and 1" + (f": {few}" if few else "")
    return f"gripper not only 0 and 1: {few or 'from {low:.3g} to {high:.3g}'.format(**told)}"


def _histogram(values: NDArray[np.float32]) -> tuple[list[float], str]:
    """Heights of its bars, 30 for the highest, and its range in words; no bar without a number."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return [], "no number"
    counts, _ = np.histogram(finite, _BINS)
    words = f"{finite.min():.3g} … {finite.max():.3g}"
    if finite.min() == finite.max():
        words = f"always {finite[0]:.3g}"
    return (30 * counts / counts.max()).round(1).tolist(), words


def coloured(frames: NDArray[Any]) -> tuple[NDArray[np.uint8], Scale | None]:
    """([F, H, W, 3] pictures, their scale) of depth frames [F, H, W, 1].

    Colours go from the least to the greatest value of all frames. What was not measured (zero, or
    not finite) is black. Without any value there is no scale.
    """
    from matplotlib import colormaps  # an extra

    values = frames[..., 0].astype(np.float64)
    there = np.isfinite(values) & (values != 0)
    pictures = np.zeros((*values.shape, 3), np.uint8)
    if not there.any():
        return pictures, None
    low, high = float(values[there].min()), float(values[there].max())
    share = (values[there] - low) / ((high - low) or 1.0)
    pictures[there] = colormaps[_COLOURS](share, bytes=True)[:, :3]
    return pictures, (low, high)


def _page(panels: Mapping[str, Panel], title: str) -> str:
    """The sheet as an HTML page, in one file."""
    odd = {name: _odd(panel) for name, panel in panels.items()}
    return render("autoloader.cli", "peek.html.jinja", title=title, panels=panels, odd=odd,
                  most=MOST_DRAWN, picture=_picture, histogram=_histogram, drawn=drawn)  # fmt: skip


def drawn(columns: Sequence[Column], lines: Sequence[NDArray[np.float32]]) -> list[dict[str, Any]]:
    """Columns of a field as lines over the steps of an episode, for the page."""
    found = []
    for column, values in zip(columns, lines, strict=False):  # behind these are those taken away
        there = np.flatnonzero(np.isfinite(values))
        low = float(values[there].min(initial=np.inf))
        span = float(values[there].max(initial=-np.inf)) - low or 1.0
        points = (f"{at + 0.5},{28 - 26 * (values[at] - low) / span:.1f}" for at in there)
        told = [float(f"{one:.3g}") if np.isfinite(one) else None for one in values]
        gripper = _is_gripper(column.name) or bool(column.flag)
        line = {"name": column.name, "told": told, "points": " ".join(points)}
        found.append({**line, "gripper": gripper})
    return found


def _picture(frame: NDArray[np.uint8]) -> str:
    """A frame as a data URI."""
    data = simplejpeg.encode_jpeg(np.ascontiguousarray(frame), quality=92)
    return "data:image/jpeg;base64," + base64.b64encode(data).decode()
