"""The part of JSON Schema 2020-12 that our document uses; an unknown keyword is an error."""

import re
from collections.abc import Callable, Iterator
from typing import Any

Schema = dict[str, Any]

_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
}
_NUMBERS: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda value, limit: value >= limit,
    "maximum": lambda value, limit: value <= limit,
    "exclusiveMinimum": lambda value, limit: value > limit,
}
_ANNOTATIONS = {
    *(
        "title",
        "description",
        "default",
        "contentEncoding",
        "format",
        "discriminator",
        "x-refused",
        "then",
    ),
}


class Validator:
    """Says what is wrong with a value; references are resolved in one document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document

    def resolve(self, reference: str) -> Any:
        """What a `$ref` of the document stands for; KeyError where it stands for nothing."""
        found: Any = self._document
        root, *parts = reference.split("/")
        assert root == "#", reference
        for part in parts:
            found = found[part]
        return found

    def problems(self, value: Any, schema: Schema, at: str = "$") -> list[str]:
        return list(self._problems(value, schema, at))

    def _fits(self, value: Any, schema: Schema) -> bool:
        return not self.problems(value, schema)

    def _problems(self, value: Any, schema: Schema, at: str) -> Iterator[str]:
        for keyword, rule in schema.items():
            if keyword in _ANNOTATIONS:
                continue
            if keyword == "$ref":
                yield from self._problems(value, self.resolve(rule), at)
            elif keyword == "type":
                kinds = [rule] if isinstance(rule, str) else rule
                if not any(_TYPES[kind](value) for kind in kinds):
                    yield f"{at}: {value!r:.80} is not of type {rule}"
            elif keyword in _NUMBERS:
                if _TYPES["number"](value) and not _NUMBERS[keyword](value, rule):
                    yield f"{at}: {value!r:.80} breaks {keyword} {rule}"
            elif keyword in ("anyOf", "oneOf"):
                fitting = sum(self._fits(value, branch) for branch in rule)
                if not fitting or (keyword == "oneOf" and fitting > 1):
                    yield f"{at}: {value!r:.80} fits {fitting} branches of {keyword}"
            elif keyword == "if":
                if self._fits(value, rule):
                    yield from self._problems(value, schema["then"], at)
            else:
                yield from self._of_container(value, keyword, rule, schema, at)

    def _of_container(
        self, value: Any, keyword: str, rule: Any, schema: Schema, at: str
    ) -> Iterator[str]:
        fields = value if isinstance(value, dict) else {}
        items = value if isinstance(value, list) else []
        match keyword:
            case "enum" if value not in rule:
                yield f"{at}: {value!r:.80} is none of {rule}"
            case "const" if value != rule:
                yield f"{at}: {value!r:.80} is not {rule!r}"
            case "pattern" if isinstance(value, str) and not re.search(rule, value):
                yield f"{at}: {value!r:.80} does not match {rule}"
            case "minLength" if isinstance(value, str) and len(value) < rule:
                yield f"{at}: shorter than {rule}"
            case "minItems" if isinstance(value, list) and len(value) < rule:
                yield f"{at}: fewer than {rule} items"
            case "maxItems" if len(items) > rule:
                yield f"{at}: more than {rule} items"
            case "contains" if isinstance(value, list):
                if not any(self._fits(item, rule) for item in items):
                    yield f"{at}: no item is as it must contain"
            case "required" if isinstance(value, dict):
                yield from (f"{at}: {name} is missing" for name in rule if name not in fields)
            case "properties":
                for name in rule.keys() & fields.keys():
                    yield from self._problems(fields[name], rule[name], f"{at}.{name}")
            case "additionalProperties":
                for name in fields.keys() - schema.get("properties", {}).keys():
                    yield from self._problems(fields[name], rule, f"{at}.{name}")
            case "prefixItems":
                for index, (item, part) in enumerate(zip(items, rule, strict=False)):
                    yield from self._problems(item, part, f"{at}[{index}]")
            case "items":
                for index, item in enumerate(items[len(schema.get("prefixItems", ())) :]):
                    if rule is False:
                        yield f"{at}: item {index} is one too many"
                    else:
                        yield from self._problems(item, rule, f"{at}[{index}]")
            case _ if keyword not in _CONTAINERS:
                raise ValueError(
                    f"no schema of ours uses {keyword}, so this validator does not know it"
                )


_CONTAINERS = {
    *("enum", "const", "pattern", "minLength", "minItems", "maxItems", "contains", "required"),
}
