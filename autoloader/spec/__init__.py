"""What the user declares: the pipeline spec, validated, frozen, free of any framework.

Not here: what lies on disk (``catalog``), which samples follow from it (``samples``).
"""

from autoloader.spec.augment import AugmentOp
from autoloader.spec.delta_timestamps import DeltaTimestamps
from autoloader.spec.fields import (
    AnyOf,
    FieldExpression,
    FieldTerm,
    LanguageChoice,
    parse_expression,
)
from autoloader.spec.keep import KeepSpec, MovingSpec, RangesSpec
from autoloader.spec.mixture.batch import BatchSpec, GivesSpec
from autoloader.spec.mixture.curriculum import CurriculumSpec
from autoloader.spec.mixture.locality import LocalitySpec
from autoloader.spec.mixture.mixing import MixingSpec
from autoloader.spec.model import (
    CameraSpec,
    DatasetSpec,
    ErrorsSpec,
    PipelineSpec,
    SpecSource,
    ValidationSpec,
)
from autoloader.spec.normalise import FieldNormalizeSpec, NormalizeSpec
from autoloader.spec.ops import FieldOp
from autoloader.spec.sample import EdgesSpec, SampleOverride, SampleSpec
from autoloader.spec.steps import StepsSpec
from autoloader.spec.transform import TransformSpec

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
