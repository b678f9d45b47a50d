"""Read YAML as data. This module runs in the child only."""

from __future__ import annotations

from typing import Any

import yaml

from django_dcron.utils.untrusted.value_json import Encoder, TextRefused

MERGE_TAG = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """Refuses a key that a mapping has more than once. PyYAML would keep only the last value."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Not during construction, because merge keys then add pairs of other mappings to a node.
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == MERGE_TAG:
                continue
            if (key.tag, key.value) in seen:
                line = key.start_mark.line + 1
                raise TextRefused(
                    f"line {line}: the mapping has the key {key.value!r} more than once"
                )
            seen.add((key.tag, key.value))
        return node


def read_yaml(text: bytes, max_values: int) -> Any:
    """Return the content of a YAML text as JSON.

    Raises ``TextRefused``, or any exception for a text that exceeds the limits.
    """
    try:
        document = yaml.load(text.decode(), _Loader)  # noqa: S506 (a safe loader)  # nosec B506
    except (yaml.YAMLError, ValueError) as error:
        raise TextRefused(" ".join(str(error).split())) from None
    return Encoder(max_values).encode(document)
