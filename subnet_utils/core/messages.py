"""What is wrong with a study's parameters, in one line an error that names the key and the remedy.

pydantic's wording is for programmers, and it does not know the nearest valid name. `invalid` is for checks of our own,
`explain` words both kinds for the reader of a YAML file.
"""

import difflib
import math
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

DISCRIMINATORS = ("family", "method", "task", "source")
"""Fields that tell sections apart that may stand in the same place."""
REMEDIES = {
    "float_type": "a number", "int_type": "a whole number", "bool_type": "true or false", "string_type": "text",
    "tuple_type": "a list, in square brackets", "too_long": "at most {max_length} entries",
    "too_short": "at least {min_length} entries", "multiple_of": "a multiple of {multiple_of:g}",
    "model_type": "a mapping of keys", "model_attributes_type": "a mapping of keys",
    "greater_than": "more than {gt:g}", "greater_than_equal": "at least {ge:g}", "less_than_equal": "at most {le:g}",
    "less_than": "less than {lt:g}", "finite_number": "a finite number",
    "literal_error": "{expected}",
    "string_pattern_mismatch": "lower-case letters, digits, - and _, none of the two first",
}  # fmt: skip
"""What to give instead, by pydantic's name of the error."""


def nearest(name: object, valid: Iterable[str]) -> str:
    """The end of an error message about an unknown name: the nearest valid one if there is one, then all of them.

    >>> nearest("contat", ["contact", "inside"])
    "did you mean 'contact'? valid: contact, inside"
    """
    valid = list(valid)
    close = difflib.get_close_matches(str(name), valid, n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'? " if close else ""
    return f"{hint}valid: {', '.join(valid)}"


def first_line(error: BaseException) -> str:
    """Of what an error says; of one without words, its type."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def of_companion() -> Iterator[None]:
    """Around imports that the core installation lacks. Raises ModuleNotFoundError that says how to get them."""
    try:
        yield
    except ModuleNotFoundError as error:
        what = f"{error.name} is not in the core installation; in the checkout: pip install -e '.[companion]'"
        raise ModuleNotFoundError(what, name=error.name) from None


def invalid(key: str, what: str) -> PydanticCustomError:
    """An error to raise in a validator: what is wrong with a key of the section, or with the value itself (key '')."""
    return PydanticCustomError("error", "{key}: {what}", {"key": key, "what": what})


def not_empty(values: tuple) -> tuple:
    """Validator of a list. pydantic's min_length counts valid entries only and so calls every bad list empty, too."""
    if not values:
        raise invalid("", "is empty; give at least one")
    return values


def distinct(values: tuple) -> tuple:
    """Validator of a list whose entries may stand once: a repeated seed would count twice in the statistics."""
    for i, value in enumerate(values):
        if value in values[:i]:
            raise invalid("", f"holds {value!r} twice; each may stand once")
    return values


def auto_or_positive(value: Any, types: tuple[type, ...] = (int,)) -> str | float:
    """Validator of a number that may be left to the program."""
    if value == "auto" or (type(value) in types and 0 < value < math.inf):
        return value
    what = "a number" if float in types else "a whole number"
    raise invalid("", f"{reprlib.repr(value)} is not valid; give 'auto' or {what} above 0")


def explain(root: type[BaseModel], error: ValidationError) -> Iterator[str]:
    """One line an error; a required key that is merely misspelt is reported once, as an unknown key."""
    errors = error.errors()
    meant = {_meant(root, found["loc"]) for found in errors if found["type"] == "extra_forbidden"}
    own = [found for found in errors if found["type"] != "missing" or found["loc"] not in meant]
    return (" ".join(_line(root, found).split()) for found in own)


def _meant(root: type[BaseModel], location: tuple) -> tuple:
    """Where an unknown key would stand if it were spelt as the nearest valid one."""
    return (*location[:-1], *difflib.get_close_matches(location[-1], _keys_at(root, location[:-1]), n=1, cutoff=0.5))


def _line(root: type[BaseModel], found: Mapping[str, Any]) -> str:
    kind, given, context = found["type"], found["input"], found.get("ctx", {})
    keys, sections = _walk(root, found["loc"])
    where = ".".join(str(key) for key in keys)
    if kind == "error":
        return f"{'.'.join(filter(None, (where, context['key']))) or 'study'}: {context['what']}"
    if kind in ("extra_forbidden", "invalid_key"):
        return f"{where}: unknown key; {_instead(root, found['loc'], given)}"
    if kind == "missing":
        return f"{where}: missing; add it"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        families = [tag for section in sections for tag in _tags(section)]
        what = f"{context['tag']!r} is not valid" if "tag" in context else "missing"
        return f"{where}.{context['discriminator'].strip(chr(39))}: {what}; {nearest(context.get('tag', ''), families)}"
    if kind in ("float_type", "int_type") and _plain(given):
        remedy = "it without quotes" if _plain(given) == given else _plain(given)
        return f"{where}: YAML reads {given} as text; write {remedy}"
    remedy = REMEDIES[kind].format(**context) if kind in REMEDIES else f"another value ({found['msg']})"
    return f"{where}: {reprlib.repr(given)} is not valid; give {remedy}"


def _instead(root: type[BaseModel], location: tuple, given: Any) -> str:
    """What to do about an unknown key: how it is spelt, where it belongs, what it is called, or what there is."""
    key, valid = str(location[-1]), _keys_at(root, location[:-1])
    around = [item for section in _walk(root, location[:-1])[1] for item in section.model_fields.items()]
    inner = {name: _sections(field.annotation) for name, field in around}
    homes = [name for name, sections in inner.items() if any(key in section.model_fields for section in sections)]
    if homes and not difflib.get_close_matches(key, valid, n=1, cutoff=0.8):
        return f"it belongs in {' or '.join(repr(name) for name in homes)}; move it there"
    keys = given.keys() if isinstance(given, Mapping) else ()
    alike = [name for name, sections in inner.items() if any(keys and keys <= s.model_fields.keys() for s in sections)]
    if alike and not difflib.get_close_matches(key, valid, n=1, cutoff=0.5):
        return f"its keys are those of '{alike[0]}'; call it so"
    return nearest(key, valid)


def _plain(given: Any) -> str:
    """A number that was given as text, without an exponent ('1e-3' -> '0.001'); '' for anything else."""
    try:
        number = Decimal(given if isinstance(given, str) else "NaN")
    except InvalidOperation:
        return ""
    return f"{number:f}" if number.is_finite() and abs(number.adjusted()) < 20 else ""


def _keys_at(root: type[BaseModel], location: tuple) -> list[str]:
    """Valid keys of the section at one of pydantic's locations."""
    return [key for section in _walk(root, location)[1] for key in section.model_fields]


def _walk(root: type[BaseModel], location: tuple) -> tuple[list[str | int], list[type[BaseModel]]]:
    """The keys and positions of a location without the tags of unions, and the sections that may stand there."""
    where: list[str | int] = []
    sections = [root]
    for key in location:
        tagged = [section for section in sections if key in _tags(section)]
        if tagged:
            sections = tagged
            continue
        where.append(key)
        fields = [section.model_fields[key] for section in sections if key in section.model_fields]
        sections = [inner for field in fields for inner in _sections(field.annotation)] or sections
    return where, sections


def _tags(section: type[BaseModel]) -> tuple[str, ...]:
    """Values of the field that tells a section from others that may stand in its place."""
    return tuple(tag for name in DISCRIMINATORS if name in section.model_fields
                 for tag in get_args(section.model_fields[name].annotation))  # fmt: skip


def _sections(annotation: Any) -> list[type[BaseModel]]:
    """The sections that an annotation names, such as those of `tuple[Experiment, ...]` or `BaseSearch | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for inner in get_args(annotation) for section in _sections(inner)]
