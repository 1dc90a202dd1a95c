"""The pipeline spec: what a user writes in YAML or Python, validated by pydantic, frozen.

``PipelineSpec.from_yaml("mix.yaml")`` reads a file; every fault becomes a ``SpecError`` that names
the field, the value and a remedy. A spec says *which* data a run wants: datasets, weights, cameras,
windows, normalisation. It never says how to read them; that is what ``knobs.Knobs`` are for.

Start here:
    ``model.PipelineSpec`` and ``model.DatasetSpec``: one class for each block of the file.
    ``fields.FieldExpression``: how a spec names numbers, texts and pictures of a dataset.
    ``knobs.Knobs``: settings that may change while running and never change which samples come.

Fields that other projects take from known datasets lie in ``recipes``.

Never here: a look at the dataset's files (``samples.resolve`` compares a spec with them), and any
framework.
"""

from autoloader.spec.augment import AugmentOp
from autoloader.spec.fields import (
    AnyOf,
    FieldExpression,
    FieldOp,
    FieldTerm,
    LanguageChoice,
    parse_expression,
)
from autoloader.spec.mixture import (
    BatchSpec,
    CurriculumSpec,
    FieldNormalizeSpec,
    GivesSpec,
    LocalitySpec,
    MixingSpec,
    NormalizeSpec,
    TransformSpec,
)
from autoloader.spec.model import (
    CameraSpec,
    DatasetSpec,
    ErrorsSpec,
    PipelineSpec,
    SpecSource,
    ValidationSpec,
)
from autoloader.spec.sample import (
    DeltaTimestamps,
    EdgesSpec,
    KeepSpec,
    MovingSpec,
    RangesSpec,
    SampleSpec,
    StepsSpec,
)

__all__ = [
    "AnyOf",
    "AugmentOp",
    "BatchSpec",
    "CameraSpec",
    "CurriculumSpec",
    "DatasetSpec",
    "DeltaTimestamps",
    "EdgesSpec",
    "ErrorsSpec",
    "FieldExpression",
    "FieldNormalizeSpec",
    "FieldOp",
    "FieldTerm",
    "GivesSpec",
    "KeepSpec",
    "LanguageChoice",
    "LocalitySpec",
    "MixingSpec",
    "MovingSpec",
    "NormalizeSpec",
    "PipelineSpec",
    "RangesSpec",
    "SampleSpec",
    "SpecSource",
    "StepsSpec",
    "TransformSpec",
    "ValidationSpec",
    "parse_expression",
]
