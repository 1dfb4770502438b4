"""Filters: compile ``where`` to an SQL expression. User input is bound, never part of the SQL.

Only values of the same kind (numbers, text, booleans) compare; null and a missing field equal
only null. So every condition is either true or false for an item, and ``not`` is its complement.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hashcade.store.ids import is_text
from hashcade.store.payload import plain_value

NULL, BOOL, NUMBER, TEXT = range(4)  # kinds of values; 4: lists and objects, equal to nothing
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_OPERATORS = ("=", "!=", *_COMPARE, "in")
_MAX_DEPTH, _MAX_CONDITIONS = 20, 500
_JSON_TYPES = {NUMBER: "'integer', 'real'", TEXT: "'text'"}

Sql = tuple[str, list[Any]]


class Names(NamedTuple):
    """What the names in a filter refer to."""

    classes: Sequence[int | str]
    text_ids: bool
    indexed: Mapping[str, int]  # number of each indexed field


def json_path(field: str) -> str:
    """SQLite's JSON path of a payload field: ``a.b`` is ``b`` within ``a``."""
    parts = field.split(".")
    if not all(parts) or any(c in '"\\' or ord(c) < 32 for c in field):
        raise ValueError(f"where: {field!r} cannot be the name of a field in a filter")
    _check_text(field)
    return "$" + "".join(f'."{part}"' for part in parts)


def compile_where(where: object, names: Names) -> Sql:
    """A filter as an SQL expression over the table ``items``, and its parameters."""
    count = 0

    def conjunction(conditions: Any, depth: int) -> Sql:
        nonlocal count
        if not isinstance(conditions, Mapping):
            raise ValueError(f"where: {_abbreviate(conditions)} must be a dict of conditions")
        parts = []
        for key, value in conditions.items():
            count += 1
            if depth > _MAX_DEPTH or count > _MAX_CONDITIONS:
                limits = f"{_MAX_CONDITIONS} conditions, {_MAX_DEPTH} levels deep"
                raise ValueError(f"where is too large, it may have {limits}")
            if key == "any":
                if not isinstance(value, Sequence) or isinstance(value, str):
                    raise ValueError(f"where: any={_abbreviate(value)} must be a list of filters")
                parts.append(_join([conjunction(part, depth + 1) for part in value], "OR"))
            elif key == "not":
                parts.append(_negate(conjunction(value, depth + 1)))
            elif not isinstance(key, str):
                raise ValueError(f"where: {_abbreviate(key)} must be the name of a field")
            else:
                parts += [
                    _condition(key, op, operand, names) for op, operand in _comparisons(key, value)
                ]
        return _join(parts, "AND")

    return conjunction(where, 0)


def _comparisons(key: str, value: Any) -> list[tuple[str, Any]]:
    """Operators and operands: a plain value means ``=``, a list ``in``."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        if unknown := [op for op in value if op not in _OPERATORS]:
            allowed = ", ".join(_OPERATORS)
            raise ValueError(f"where: {key!r} has the operator {unknown[0]!r} (allowed: {allowed})")
        return list(value.items())
    return [("in" if isinstance(value, list | tuple | set | frozenset) else "=", value)]


def _condition(key: str, op: str, operand: Any, names: Names) -> Sql:
    if op == "in":
        if isinstance(operand, str | Mapping) or not hasattr(operand, "__iter__"):
            raise ValueError(f"where: {key!r} in {_abbreviate(operand)} must be a list")
        values = [_scalar(key, op, value) for value in operand]
    else:
        values = [_scalar(key, op, operand)]
    if op == "!=":
        return _negate(_condition(key, "=", operand, names))
    if op in _COMPARE and kind_of(values[0]) not in (NUMBER, TEXT):
        raise ValueError(f"where: {key!r} {op} {_abbreviate(operand)} must be a number or text")
    if key == "label":
        return _label(op, values, names.classes)
    by_kind: dict[int, list[Any]] = {}
    for value in values:
        by_kind.setdefault(kind_of(value), []).append(value)
    tests = [_test(key, kind, op, group, names) for kind, group in by_kind.items()]
    return _join(tests, "OR")


def _label(op: str, values: list[Any], classes: Sequence[int | str]) -> Sql:
    """A condition on labels, evaluated for each class: items have label codes."""
    if op in _COMPARE:
        compare, bound = _COMPARE[op], values[0]
        comparable = ((c, x) for c, x in enumerate(classes) if kind_of(x) == kind_of(bound))
        codes = [code for code, label in comparable if compare(label, bound)]
    else:
        allowed = {(kind_of(value), value) for value in values}
        codes = [code for code, label in enumerate(classes) if (kind_of(label), label) in allowed]
    condition: Sql = ("label IN (SELECT value FROM json_each(?))", [json.dumps(codes)])
    return _join([condition, ("label IS NULL", [])], "OR") if None in values else condition


def _test(key: str, kind: int, op: str, values: list[Any], names: Names) -> Sql:
    """A comparison of a field with values of one kind."""
    column = {"id": "id" if names.text_ids else "number", "name": "name"}.get(key)
    if column is not None:
        if kind == NULL:
            return f"{column} IS NULL", []
        if kind != (NUMBER if column == "number" else TEXT):
            return "0", []
        return _comparison(column, kind, op, values)
    path = json_path(key)
    if key in names.indexed:
        field = names.indexed[key]
        select = "SELECT number FROM field_values WHERE field = ? AND kind = ?"
        test, parameters = "value = 0", list[Any]()
        if kind == BOOL:
            test, parameters = "value IN (SELECT value FROM json_each(?))", [json.dumps(values)]
        elif kind != NULL:
            test, parameters = _comparison("value", kind, op, values)
        return f"number IN ({select} AND {test})", [field, kind, *parameters]
    if kind == NULL:
        return "COALESCE(json_type(payload, ?), 'null') = 'null'", [path]
    if kind == BOOL:
        words = json.dumps(["true" if value else "false" for value in values])
        return "json_type(payload, ?) IN (SELECT value FROM json_each(?))", [path, words]
    test, parameters = _comparison("json_extract(payload, ?)", kind, op, values)
    types = _JSON_TYPES[kind]
    return f"json_type(payload, ?) IN ({types}) AND {test}", [path, path, *parameters]


def _comparison(operand: str, kind: int, op: str, values: list[Any]) -> Sql:
    if op == "in":
        return f"{operand} IN (SELECT value FROM json_each(?))", [_json(values)]
    if kind == TEXT:
        return f"{operand} {op} ?", values
    # Parsed by SQLite, as the payload is: both are rounded in the same way.
    return f"{operand} {op} json_extract(?, '$')", [_json(values[0])]


def kind_of(value: object) -> int:
    """The kind of a scalar."""
    if value is None:
        return NULL
    if isinstance(value, bool):
        return BOOL
    return TEXT if isinstance(value, str) else NUMBER


def _scalar(key: str, op: str, value: Any) -> Any:
    try:
        plain = plain_value(value)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"where: {key!r} {op} {_abbreviate(value)}: {error}") from None
    if isinstance(plain, list | dict):
        raise ValueError(f"where: {key!r} {op} {_abbreviate(value)} must be a single value")
    if plain is None and isinstance(value, float) and math.isnan(value):
        raise ValueError(f"where: {key!r} {op} nan must be a number; None means missing")
    if isinstance(plain, str):
        _check_text(plain)
    return plain


def _check_text(text: str) -> None:
    if not is_text(text):
        raise ValueError(f"where: {_abbreviate(text)} is not valid text")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _abbreviate(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _negate(part: Sql) -> Sql:
    return f"NOT COALESCE(({part[0]}), 0)", part[1]  # comparing with a missing value yields null


def _join(parts: list[Sql], operator: str) -> Sql:
    if not parts:
        return ("1" if operator == "AND" else "0"), []
    text = f" {operator} ".join(f"({sql})" for sql, _ in parts)
    return text, [value for _, values in parts for value in values]
