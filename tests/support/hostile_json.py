"""Forged JSON: a document as a tree of which any part becomes something else."""

import json
import random
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

Place = tuple[str | int, ...]
# Texts that stand for what json.dumps never writes.
RAW = {
    "@too large@": "1e999",
    "@long@": "1" * 5_000,
    "@deep@": "[" * 100 + "]" * 100,
    "@deeper@": "[" * 100_000 + "]" * 100_000,
    "@bad escape@": '"\\x"',
    "@nothing@": "",
}
TWICE = "@twice@"
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    2**63,
    10**19,
    10**30,
    1.5,
    -0.0,
    1e308,
    5e-324,
    float("nan"),
    float("inf"),
    *RAW,
    "",
    " ",
    "1",
    "x" * 100_000,
    "../outside/secret",
    "/etc/passwd",
    "a\0b",
    "\x1b[31mred\n",
    "\ud800",
    "\u202eabc",
    "\u0301" * 20_000,
    [],
    {},
    [[]],
    [0] * 1000,
    [None],
    {"": {}},
    {"\x1b[2J\n": 1},
    {str(number): number for number in range(2000)},
)


def dumps(value: Any) -> bytes:
    """Write a forged value, bad as it is."""
    text = json.dumps(value, separators=(",", ":"))
    for name, raw in RAW.items():
        text = text.replace(json.dumps(name), raw)
    return text.replace(TWICE, "").encode()


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """List every place of a tree."""
    yield at
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from places(inner, (*at, key))


def find(value: Any, at: Place) -> Any:
    """Return what stands at a place."""
    for key in at:
        value = value[key]
    return value


def replaced(tree: Any, at: Place, value: Any) -> Any:
    """Copy a tree with something else at a place; what stays is shared."""
    if not at:
        return value
    twin = tree.copy()
    twin[at[0]] = value if len(at) == 1 else replaced(tree[at[0]], at[1:], value)
    return twin


@lru_cache(maxsize=16)
def parsed(data: bytes) -> tuple[Any, list[Place]]:
    """Read a sound document, which must not be changed, and list all its places."""
    tree = json.loads(data)
    return tree, list(places(tree))


def forged(rng: random.Random, data: bytes) -> tuple[str, bytes]:
    """Change one place of a document: what it is, its name, or how often it is there."""
    tree, everywhere = parsed(data)
    at = rng.choice(everywhere[1:])
    kind = rng.choice(("value", "value", "value", "near", "near", "other", "key"))
    if kind == "key":
        return _other_keys(rng, tree, at)
    old = find(tree, at)
    if kind == "value":
        new = rng.choice(VALUES)
    elif kind == "near":
        new = _near(rng, old)
    else:
        new = find(tree, rng.choice(everywhere))
    return f"{at} becomes {new!r:.80}", dumps(replaced(tree, at, new))


def _near(rng: random.Random, old: Any) -> Any:
    """Something of the same kind that looks right."""
    if isinstance(old, bool):
        return not old
    if isinstance(old, int | float):
        return rng.choice((old + 1, old - 1, -old, old * 10**6, old * 1e300, float(old), str(old)))
    if isinstance(old, str):
        return rng.choice(
            (old.upper(), old + "\n", old * 2, old[:-1], old[::-1], f"../{old}", [old])
        )
    if isinstance(old, list):
        return rng.choice((old[:-1], old * 2, old[::-1], [old], dict(enumerate(old))))
    if isinstance(old, dict):
        return rng.choice((dict(list(old.items())[:-1]), {**old, "new": 1}, [*old], [*old.items()]))
    return 0


def _other_keys(rng: random.Random, tree: Any, at: Place) -> tuple[str, bytes]:
    parent, key = find(tree, at[:-1]).copy(), at[-1]
    what = rng.choice(("goes", "stands twice", "is renamed", "has a neighbour"))
    old = parent[key]
    if isinstance(parent, list):
        parent[:] = [] if what == "goes" else parent * 2
    elif what == "goes":
        del parent[key]
    elif what == "stands twice":
        parent[f"{key}{TWICE}"] = rng.choice((old, None, _near(rng, old)))
    else:
        name = rng.choice((f"{key}2", "\x1b[2J\n", "../" + str(key), "-1", "", "9" * 19, "ä" * 500))
        parent[name] = old
        if what == "is renamed":
            del parent[key]
    return f"{at} {what}", dumps(replaced(tree, at[:-1], parent))
