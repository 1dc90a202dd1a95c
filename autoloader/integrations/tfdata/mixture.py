"""A mixture of datasets as one tf.data graph.

Theory of operation::

    samples of dataset 0 ─┐
    samples of dataset 1 ─┼─ choose_from_datasets(choices) ─ map(decode) ─ [batch ─ prefetch]
    …                    ─┘

Each dataset has a stream of its own with its own parallelism; samples wait encoded, and are decoded
after the mix. The graph holds no Python (but for a dataset's ``transform``), so that it can be sent
to the workers of tf.data service.

Not here: a dataset's samples (``integrations.tfdata.samples``), turns
(``integrations.tfdata.choices``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoloader.errors import SourceError, UnsupportedError, UsageError
from autoloader.index.counting import count_mixture
from autoloader.index.statistics import statistics_of, with_recorded_sizes
from autoloader.integrations.tfdata.choices import turns
from autoloader.integrations.tfdata.decode import decode_sample
from autoloader.integrations.tfdata.samples import sample_stream
from autoloader.pipeline.graph import files
from autoloader.pipeline.graph.tensorflow import tf
from autoloader.samples.resolve import ResolvedMixture, normalised, resolve
from autoloader.sampling.mixture import mixture_order
from autoloader.spec import CurriculumSpec, PipelineSpec, SpecSource
from autoloader.spec.knobs import Knobs


def as_dataset(
    spec: SpecSource,
    *,
    split: str = "train",
    seed: int | None = None,
    batched: bool = False,
    passes: int | None = None,
    shard: tuple[int, int] | None = None,
    knobs: Mapping[str, Any] | None = None,
) -> Any:
    """A mixture's decoded samples as a ``tf.data.Dataset``.

    The datasets' turns follow ``mixing.strategy``: evenly by weight, or drawn by weight with
    ``sample``. A dataset begins its next pass when one is done. ``mixing.epoch`` has no say here.

    Args:
        spec: the mixture, its YAML file, or a dict that says the same.
        split: which of the spec's splits.
        seed: of all draws and orders, in the place of the spec's.
        batched: give batches of ``batch.size`` samples.
        passes: passes of every dataset, after which it gives nothing more and the others go on;
            without end where not given.
        shard: (of how many, which): take every n-th file of each dataset's passes, the i-th first.
            ``(SHARD_HINT, SHARD_HINT)`` of ``tf.data.experimental`` leaves both to tf.data service.
        knobs: stream knobs, ``dataset.knob`` for one dataset's; ``decode_threads``, which
            TensorFlow tunes where it is not given; ``ring_slots``, batches that wait decoded.

    Returns:
        Elements with the keys of a loader's batch: ``images`` and ``frame_mask`` by camera,
        ``frame_offset``, ``action``, ``action_mask``, ``state``, ``state_mask``, ``language`` (a
        string), and, as ``metadata`` says, ``dataset_index`` and ``provenance``; shapes of
        ``docs/howto/tfdata.md``.

    Raises:
        SpecError, SourceError, KnobError: as their input deserves.
        UsageError: ``passes`` is below 1.
    """
    if passes is not None and passes < 1:
        raise UsageError(f"passes: {passes}", remedy="give 1 or more, or leave it out")
    spec = PipelineSpec.of(spec)
    if seed is not None:
        spec = spec.model_copy(update={"seed": seed})
    if isinstance(spec.weights, CurriculumSpec):
        raise UnsupportedError(
            "weights: a schedule (from, to, over) is not supported in TensorFlow's graph",
            remedy="use AutoLoader, or weights: explicit",
            path="weights",
        )
    if spec.batch.call is not None:
        raise UnsupportedError(
            f"batch.call: {spec.batch.call} is not called in TensorFlow's graph",
            remedy="map it over the dataset yourself, or use AutoLoader",
            path="batch.call",
        )
    mixture = resolve(spec, split)
    _check_told(mixture)
    statistics = None if spec.normalize is None else statistics_of(spec, split)
    if statistics is not None:
        mixture = normalised(mixture, statistics)
    if indexed := [one.name for one in mixture.datasets if not one.streamable]:
        raise UnsupportedError(
            f"datasets: {indexed[0]!r} holds LeRobot data, which TensorFlow's graph does not read",
            remedy="use AutoLoader, or take it out",
            path="datasets",
        )
    if any(dataset.remote for dataset in mixture.datasets):
        files.enter()
    counts = with_recorded_sizes(count_mixture(mixture), spec, statistics)
    samples = {name: count.samples for name, count in counts.items()}
    for name, count in samples.items():
        if not count:
            raise SourceError(
                f"dataset {name!r} gives no sample",
                remedy="widen its split, keep or window, or take it out",
                dataset=name,
            )
    given = dict(knobs or {})
    chosen = Knobs.build(given)
    decode_calls = chosen.decode_threads if "decode_threads" in given else tf.data.AUTOTUNE
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False  # the knobs rule
    with tf.device("/CPU:0"):
        streams = [
            sample_stream(
                dataset,
                mixture.layout,
                chosen.for_dataset(dataset.name),
                passes=passes,
                shard=shard,
            )
            for dataset in mixture.datasets
        ]
        choices = turns(mixture_order(mixture, samples, {n: one.size for n, one in counts.items()}))
        mixed = tf.data.Dataset.choose_from_datasets(streams, choices, stop_on_empty_dataset=False)
        found = mixed.map(_Finish(mixture), num_parallel_calls=decode_calls, deterministic=True)
        if batched:
            found = found.batch(spec.batch.size, drop_remainder=spec.batch.drop_last)
            found = found.prefetch(chosen.ring_slots)
        return found.with_options(options)


def _check_told(mixture: ResolvedMixture) -> None:
    """Refuse what the loader's batches hold and these elements do not yet."""
    for camera in mixture.layout.depth:
        raise UnsupportedError(
            f"cameras.{camera}.depth: as_dataset decodes no depth frames yet",
            remedy="take the camera out of the spec, or read it with AutoLoader",
            path=f"cameras.{camera}.depth",
        )
    for dataset in mixture.datasets:
        if dataset.sample.action_steps:
            raise UnsupportedError(
                "sample.action_per: step: as_dataset gives one chunk a sample",
                remedy="set action_per: sample, or read it with AutoLoader",
                path="sample.action_per",
            )
        fields = [f"features.{name}" for name in dataset.held]
        fields += [f"images.{camera}.present" for camera in dataset.present]
        fields += ["language"] if dataset.words else []
        for field in fields:
            field = f"datasets[{dataset.name}].{field}"
            raise UnsupportedError(
                f"{field}: as_dataset does not look at it yet",
                remedy="take it out of the spec, or read it with AutoLoader",
                path=field,
            )


class _Finish:
    """Makes an element of an encoded sample."""

    def __init__(self, mixture: ResolvedMixture) -> None:
        self._cameras = dict(mixture.spec.cameras)
        self._metadata = mixture.spec.metadata
        self._has = [[c in d.cameras for c in self._cameras] for d in mixture.datasets]
        self._turned = [[c in d.reversed for c in self._cameras] for d in mixture.datasets]

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        place = sample["provenance"]
        present = tf.gather(tf.constant(self._has), place[0])[:, None]
        wanted = present & ~sample["frame_zeroed"][None, :]
        inside = sample["frame_mask"]
        element = {
            "images": self._pictures(sample, wanted),
            "frame_mask": {
                camera: inside & present[number] for number, camera in enumerate(self._cameras)
            },
            **{
                name: sample[name]
                for name in ("frame_offset", "action", "action_mask", "state", "state_mask")
            },
            "language": sample["language"],
        }
        if self._metadata != "none":
            element["dataset_index"] = place[0]
        if self._metadata == "full":
            element["provenance"] = place
        return element

    def _pictures(self, sample: Mapping[str, Any], wanted: Any) -> dict[str, Any]:
        found = decode_sample(sample["frames"], wanted, self._cameras)
        for number, camera in enumerate(self._cameras):
            if any(turned[number] for turned in self._turned):
                turned = tf.gather(tf.constant(self._turned), sample["provenance"][0])[number]
                found[camera] = tf.where(turned, found[camera][..., ::-1], found[camera])
        return found
