"""What the user declares: the pipeline spec, validated, frozen, free of any framework.

Not here: what lies on disk (``catalog``), which samples follow from it (``samples``).
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
from autoloader.spec.keep import KeepSpec, MovingSpec, RangesSpec
from autoloader.spec.mixture import (
    BatchSpec,
    CurriculumSpec,
    GivesSpec,
    LocalitySpec,
    MixingSpec,
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
from autoloader.spec.normalise import FieldNormalizeSpec, NormalizeSpec
from autoloader.spec.sample import DeltaTimestamps, EdgesSpec, SampleOverride, SampleSpec, StepsSpec

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
    "SampleOverride",
    "SampleSpec",
    "SpecSource",
    "StepsSpec",
    "TransformSpec",
    "ValidationSpec",
    "parse_expression",
]
