"""`assay schema` and `assay version`."""

from __future__ import annotations

from typing import Any

from kernelassay.cli._errors import CommandError
from kernelassay.cli._options import Json
from kernelassay.cli._out import emit, show, styled

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def version_text() -> str:
    """The version, alone."""
    from kernelassay import __version__

    return __version__


def version(*, json: Json = False) -> int:
    """Print the version.

    Parameters
    ----------
    json
        Print it as JSON, with the environment that a grade would record.
    """
    if json:
        from kernelassay.devices import environment

        emit({"version": version_text(), "environment": environment().model_dump(mode="json")})
    else:
        show(styled(version_text()))
    return 0


def _schemas() -> dict[str, dict[str, Any]]:
    from pydantic.json_schema import models_json_schema

    from kernelassay import records

    models = [
        value
        for name in records.__all__
        if isinstance(value := getattr(records, name), type) and issubclass(value, records.Record)
    ]
    models.remove(records.Record)
    _, definitions = models_json_schema([(model, "validation") for model in models])
    found: dict[str, dict[str, Any]] = definitions["$defs"]
    return found


def schema(name: str | None = None, /, *, json: Json = False) -> int:
    """Print the JSON Schema of the records.

    Parameters
    ----------
    name
        One record, `Grade` say; all of them unless given.
    json
        Accepted for symmetry: a schema is JSON anyway.
    """
    schemas = _schemas()
    if name is None:
        emit({"$schema": _DIALECT, "$defs": schemas})
        return 0
    if name not in schemas:
        import difflib

        close = difflib.get_close_matches(name, schemas, n=1) or difflib.get_close_matches(
            name.capitalize(), schemas, n=1
        )
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise CommandError(f"no record {name!r}{hint} Records: {', '.join(sorted(schemas))}", "assay schema")
    emit({"$schema": _DIALECT, "$ref": f"#/$defs/{name}", "$defs": _needed(schemas, name)})
    return 0


def _needed(schemas: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """`name` and everything that it refers to."""
    needed: dict[str, Any] = {}
    open_names = [name]
    while open_names:
        current = open_names.pop()
        if current in needed:
            continue
        needed[current] = schemas[current]
        open_names.extend(_references(schemas[current]))
    return dict(sorted(needed.items()))


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"].rpartition("/")[2]] if isinstance(node.get("$ref"), str) else []
        return own + [name for value in node.values() for name in _references(value)]
    if isinstance(node, list):
        return [name for value in node for name in _references(value)]
    return []
