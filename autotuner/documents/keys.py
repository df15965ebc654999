"""Keys: which ones may stand at a place of a document, read off its JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotuner.documents.source import Path

Schema = Mapping[str, object]


def split(loc: Sequence[str | int], value: object) -> tuple[Path, tuple[tuple[Path, str], ...]]:
    """A location of pydantic as a path in the document, and the branches of unions on it: (path of the union, name of the branch).

    Pydantic puts the branch's name between the keys (``service, production, ProductionUnit, unit``). A step that leads nowhere in the
    value is such a name; the last step may also be a key that is missing.
    """
    path: list[str | int] = []
    branches: list[tuple[Path, str]] = []
    for position, step in enumerate(loc):
        inside = (isinstance(value, dict) and step in value) or (isinstance(value, list) and isinstance(step, int) and step < len(value))
        if inside:
            path.append(step)
            value = value[step]  # type: ignore[index]
        elif position == len(loc) - 1 and isinstance(value, dict) and step != "[key]" and not _names_branch(step):
            path.append(step)
        elif step != "[key]":
            branches.append((tuple(path), str(step)))
    return tuple(path), tuple(branches)


def _names_branch(step: str | int) -> bool:
    """Whether a last step is a union's branch rather than a missing key: classes are capitalised, literals and types are spelled out."""
    return str(step)[:1].isupper() or str(step).startswith("literal[") or step in {"str", "int", "float", "bool", "categorical"}


def allowed(schema: Schema, loc: Sequence[str | int]) -> tuple[str, ...]:
    """Keys of the mapping at ``loc`` (a location of pydantic without its last step); empty when anything may stand there."""
    places = [schema]
    for step in loc:
        places = [inner for place in places for inner in _inside(schema, place, step)]
    return tuple(dict.fromkeys(key for place in places for key in _properties(_resolved(schema, place))))


def place(schema: Schema, loc: Sequence[str | int]) -> Schema:
    """The schema of the value at ``loc``, with its default; of something or null, that of the something. Empty where none is known."""
    places = [schema]
    for number, step in enumerate(loc):
        following = [inner for place in places for inner in _inside(schema, place, step)]
        if not following and number + 1 == len(loc):  # the name of a union's branch
            break
        places = following
    if len(places) != 1:
        return {}
    found = places[0]
    some = [branch for branch in _branches(found, "anyOf") if branch.get("type") != "null"]
    return {
        **_resolved(schema, found),
        **(some[0] if len(some) == 1 else {}),
        **({"default": found["default"]} if "default" in found else {}),
    }


def _resolved(root: Schema, place: Schema) -> Schema:
    reference = place.get("$ref")
    if isinstance(reference, str):
        definitions = root["$defs"]
        return definitions[reference.rsplit("/", 1)[1]] if isinstance(definitions, dict) else {}
    return place


def _properties(place: Schema) -> Mapping[str, Schema]:
    properties = place.get("properties")
    return properties if isinstance(properties, dict) else {}


def _inside(root: Schema, place: Schema, step: str | int) -> list[Schema]:
    """Where one step leads: into a property, an item, or a branch of a union."""
    place = _resolved(root, place)
    branches = [branch for key in ("anyOf", "oneOf") for branch in _branches(place, key)]
    if branches:
        named = [branch for branch in branches if _is_named(root, place, branch, step)]
        return named or [inner for branch in branches for inner in _inside(root, branch, step)]
    if isinstance(step, str) and step in _properties(place):
        return [_properties(place)[step]]
    following = place.get("items") if isinstance(step, int) else place.get("additionalProperties")
    patterns = place.get("patternProperties")
    if isinstance(patterns, dict) and isinstance(step, str):
        return list(patterns.values())
    return [following] if isinstance(following, dict) else []


def _branches(place: Schema, key: str) -> list[Schema]:
    found = place.get(key)
    return found if isinstance(found, list) else []


def _is_named(root: Schema, union: Schema, branch: Schema, step: str | int) -> bool:
    discriminator = union.get("discriminator")
    if isinstance(discriminator, dict):
        return bool(discriminator["mapping"].get(step) == branch.get("$ref"))
    return _resolved(root, branch).get("title") == step
