"""What all sections of a study are made of, and the section `compute`.

Sections are frozen, strictly typed, and without unknown keys. Names follow the paper's symbols where it has them; units
are in the field descriptions. Each paper has a section in its room; `study` puts them together.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, Strict
from pydantic.functional_validators import AfterValidator, PlainValidator

from subnet_utils.core.messages import auto_or_positive, distinct, invalid, not_empty

T = TypeVar("T")
Several = Annotated[tuple[T, ...], Strict(False), AfterValidator(not_empty)]
Distinct = Annotated[Several[T], AfterValidator(distinct)]
DistinctOrNone = Annotated[tuple[T, ...], Strict(False), AfterValidator(distinct)]
PositiveInt = Annotated[int, Field(gt=0)]
Layers = Annotated[int, Field(gt=0, le=1000)]
"""Each has a name, so a misprint of twelve digits would never end."""
PositiveFloat = Annotated[float, Field(gt=0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Seeds = Distinct[Seed]
AutoCount = Annotated[Literal["auto"] | int, PlainValidator(auto_or_positive)]
AutoSize = Annotated[Literal["auto"] | float, PlainValidator(partial(auto_or_positive, types=(int, float)))]


class Section(BaseModel):
    """A part of a study: frozen, strictly typed, without unknown keys, NaN or infinities."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Compute(Section):
    """Where and how to compute. Nothing here changes what is computed beyond rounding."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the matrix products in training; auto = bfloat16 on GPUs since Ampere and on CPUs with AVX512-BF16;
    elsewhere it is float32 whatever is asked for. Evaluation always is: accuracies can ride on tiny logit gaps."""
    threads: PositiveInt = 1
    """CPU threads of one job. One thread a job, many jobs at a time, is the fastest for small networks."""
    workers: AutoCount = "auto"
    """Jobs (bases, masks) at a time; auto = CPU cores / threads, or 1 on a GPU."""
    masks_at_once: AutoCount = "auto"
    """Masks of one base model trained as one computation; auto = 1 on a CPU and for ResNets, else as many as half of
    the GPU's memory holds by a rough count, at most 24. In a halved search always 1: each mask is paused alone."""
    cache_limit_gb: AutoSize = "auto"
    """Cache of frozen prefixes' outputs, GiB a job, besides those in use; what does not fit is recomputed. auto = a
    third of the memory, or half of the GPU's, divided among the jobs at a time."""


def heads_divide_width(architecture: T) -> T:
    """Validator of a transformer's sizes."""
    if architecture.width % architecture.heads:
        what = f"{architecture.width} is not a multiple of heads {architecture.heads}; change one of them"
        raise invalid("width", what)
    return architecture


def has_a_part(section: T) -> T:
    """Validator of a section whose parts are all optional."""
    parts = tuple(type(section).model_fields)
    if not any(getattr(section, name) for name in parts):
        raise invalid("", f"no part says what to do; add one: {', '.join(parts)}")
    return section


ROOT = Path(__file__).resolve().parents[2]
"""The checkout: params/, artifacts/, figures/ and runs/ lie here, whatever the working directory."""


def _in_checkout(place: str) -> str:
    """Where something lies in the checkout, or its place or name as it is."""
    own = ROOT / Path(place).expanduser()
    return str(own) if own.exists() else place


ELSEWHERE = "comes from elsewhere"
Elsewhere = Annotated[str, ELSEWHERE]
"""A file or folder that is not of the study's making, or a name on a hub. `elsewhere_in` finds it."""
Place = Annotated[Elsewhere, AfterValidator(_in_checkout)]
"""The same. Relative paths start at the checkout: notebooks run in folders of their own."""


def elsewhere_in(section: Section) -> Iterator[str]:
    """All that comes from elsewhere in a section and in those that it holds."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        marks = [*field.metadata, *(mark for kind in get_args(field.annotation) for mark in _metadata(kind))]
        if isinstance(value, str) and ELSEWHERE in marks:
            yield value
        for part in value if isinstance(value, tuple) else (value,):
            yield from elsewhere_in(part) if isinstance(part, Section) else ()


def _metadata(kind: object) -> tuple:
    return getattr(kind, "__metadata__", ())


def without(section: Section, *names: str) -> Section:
    """The section with some fields at their defaults: those that a step does not depend on, such as lists of seeds."""
    return section.model_copy(update={name: type(section).model_fields[name].get_default() for name in names})
