"""A study: everything that a run depends on, in one validated and frozen object.

`params/<profile>.yaml` holds one top-level key, `study`, so that `papermill -f params/laptop.yaml` and
`papermill -p study params/laptop.yaml` mean the same. Under it stand `name`, `compute`, and a section for each paper
that the study is about, under the paper's name. Unknown keys, wrong types and impossible combinations stop a run here,
before any work.
"""

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, create_model, model_validator

from subnet_utils.core.messages import explain, first_line, invalid, nearest, of_companion
from subnet_utils.core.papers import papers
from subnet_utils.core.sections import ROOT, Compute, Section


class StudyError(ValueError):
    """A parameter is unknown, of the wrong type, or impossible together with the others."""


class BaseStudy(Section):
    """A whole run: a named profile. `Study` adds the sections of papers."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
    """Figures go to figures/<name>/."""
    compute: Compute = Compute()

    @model_validator(mode="after")
    def _something_to_do(self):
        if all(paper.section_of(self) is None for paper in papers().values()):
            raise invalid("", f"no section says what to do; add one: {', '.join(papers())}")
        return self

    @classmethod
    def load(cls, source: "str | Path | Mapping[str, Any] | Study") -> Self:
        """Read a study from a profile's name, a YAML file or a mapping (with or without the top-level key `study`).

        A relative path is looked for in the working directory, then in the checkout. Raises StudyError, one line per
        error, naming the key, what is wrong and the nearest valid name.

        >>> Study.load("tiny").name
        'tiny'
        """
        if isinstance(source, BaseStudy):
            return source
        file = None if isinstance(source, Mapping) else profile_file(source)
        values = source if file is None else _read(file)
        if "study" in values:
            others = [str(key) for key in values if key != "study"]
            if others:
                raise StudyError(f"{others[0]}: unknown key beside 'study'; move it into 'study' or remove it")
            values = values["study"]
        if not isinstance(values, Mapping):
            raise StudyError(f"study: {reprlib.repr(values)} is not valid; give a mapping of keys such as 'name'")
        try:
            study = cls.model_validate(values)
        except ValidationError as error:
            raise StudyError("\n".join(explain(cls, error))) from None
        if file is not None and study.name != file.stem:  # the notebooks would write into another profile's figures
            raise StudyError(f"{file.name}: study.name is '{study.name}'; make it '{file.stem}'")
        own = ROOT / "params" / f"{study.name}.yaml"
        if own.is_file() and (file is None or not file.samefile(own)):
            _require_own_name(study, cls.load(own))
        return study


Study = create_model(
    "Study",
    __base__=BaseStudy,
    __module__=__name__,
    **{paper.name: (paper.section | None, None) for paper in papers().values()},
)
"""The study with the sections of all papers that are there."""


def _require_own_name(study: BaseStudy, own: BaseStudy) -> None:
    """Raise StudyError for a part that is not as in the profile of this name, whose figures the study would replace.

    It may lack parts.
    """
    for name, paper in papers().items():
        section, there = paper.section_of(study), paper.section_of(own)
        for part, value in section or ():  # in the order of the fields: a set's order is another in each process
            differs = value not in (None, ()) and value != getattr(there, part, None)
            if differs and part in section.model_fields_set:
                what = f"is not that of params/{own.name}.yaml, whose figures the study would replace"
                raise StudyError(f"{name}.{part}: {what}; give the study another name")


def _read(path: Path) -> Mapping[str, Any]:
    with of_companion():
        import yaml

    class Loader(yaml.SafeLoader):
        """YAML as `safe_load` reads it, but a key that stands twice is an error: of two values the last would count."""

        def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
            """A mapping as it is written, before anything is merged into it."""
            node = super().compose_mapping_node(anchor)
            keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            for i, key in enumerate(keys):
                if key.value in [before.value for before in keys[:i]]:
                    what = f"key '{key.value}' stands twice in one section; remove one"
                    raise yaml.constructor.ConstructorError(None, None, what, key.start_mark)
            return node

    try:
        values = Loader(path.read_text(encoding="utf-8")).get_single_data()
    except yaml.MarkedYAMLError as error:
        raise StudyError(f"{path.name}, line {error.problem_mark.line + 1}: not valid YAML, {error.problem}") from None
    except Exception as error:  # PyYAML raises many unrelated types for values that are none of their tag
        raise StudyError(f"{path.name} cannot be read as YAML: {first_line(error)}") from None
    if not isinstance(values, Mapping):
        raise StudyError(f"{path.name} holds no mapping; it must have one top-level key, 'study'")
    return values


def profile_file(source: str | Path) -> Path:
    """The file of a profile: a bare name means `params/<name>.yaml`. Raises StudyError if there is none."""
    if not isinstance(source, str | Path):
        raise StudyError(f"study: {source!r} is not valid; give the name of a profile, a YAML file or a mapping")
    name = str(source) if str(source).endswith((".yaml", ".yml")) else f"params/{source}.yaml"
    for folder in (Path.cwd(), ROOT):
        if (folder / name).is_file():
            return folder / name
    profiles = sorted(path.stem for path in (ROOT / "params").glob("*.yaml"))
    raise StudyError(f"no profile '{source}'; {nearest(Path(source).stem, profiles)}")
