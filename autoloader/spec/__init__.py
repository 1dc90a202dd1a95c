"""What the user declares: the pipeline spec, validated, frozen, free of any framework.

Not here: what lies on disk (``catalog``), which samples follow from it (``sampling``).
"""

from autoloader.spec.fields import AnyOf, FieldExpression, FieldOp, FieldTerm, parse_expression
from autoloader.spec.keep import KeepSpec, RangesSpec
from autoloader.spec.model import (
    BatchSpec,
    CameraSpec,
    DatasetSpec,
    EdgesSpec,
    ErrorsSpec,
    MixingSpec,
    PipelineSpec,
    SampleOverride,
    SampleSpec,
    ValidationSpec,
)

__all__ = [
    "AnyOf",
    "BatchSpec",
    "CameraSpec",
    "DatasetSpec",
    "EdgesSpec",
    "ErrorsSpec",
    "FieldExpression",
    "FieldOp",
    "FieldTerm",
    "KeepSpec",
    "MixingSpec",
    "PipelineSpec",
    "RangesSpec",
    "SampleOverride",
    "SampleSpec",
    "ValidationSpec",
    "parse_expression",
]
