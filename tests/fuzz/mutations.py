"""Damage to files: to bytes, to text, and to the JSON inside a file whose checksums are then right again."""

import io
import json
import random
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from leanbayes._files import write_tensors

Mutate = Callable[[bytes, random.Random], bytes]

EXTREME = [b"\x00" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x80\x00\x00\x00", b"\x01\x00\x00\x00"]

TOKENS = [
    "", "0", "-1", "1e308", "-1e999", "nan", "inf", "NaN", "null", "true", "[]", "{}", '"', "'", ",", ":", "\n", "\t",
    "\x00", "é", "\ud7ff", "9" * 40, "=1+1", "@SUM(A1)", "a" * 3000, "[" * 2000, "{" * 50, "&a [*a]",
    "!!python/object:os", "<<: *x", "- " * 300, "../../x", "%s", "1" * 5000, '{"a":' * 200,
    "0x7f", "1_000", "٣", "&x [*x,*x]", "? ", "|",
]  # fmt: skip

VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 0.5, -0.0, 1e308, float("inf"), float("nan"), "", "x", "sample",
    "os:system", "Normal", "../x", "\x00", "a" * 2000, [], [[]], {}, [None], [1, 2, 3], {"type": "Normal"}, {"": ""},
    [[[[[[[[]]]]]]]], {"name": "x"}, [-1], [10**9] * 3, "1e5", "leanbayes.errors:InputError",
]  # fmt: skip


DTYPES = [torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.float32]


def damage_bytes(data: bytes, source: random.Random) -> bytes:
    """Flip bits, write extreme numbers, cut, repeat, insert or move pieces, once or a few times."""
    changed = bytearray(data)
    for _ in range(source.choice([1, 1, 1, 2, 4, 16])):
        size = len(changed)
        at = source.randrange(size) if size else 0
        span = source.choice([1, 2, 4, 8, 64, 1024])
        # The first bytes of most files decide how the others are read.
        at = min(at, source.choice([16, 64, 256, size])) if size else 0
        kind = source.randrange(8)
        if kind == 0 and size:
            changed[at % size] ^= 1 << source.randrange(8)
        elif kind == 1:
            changed[at : at + 4] = source.choice(EXTREME)
        elif kind == 2:
            changed = changed[:at] if source.random() < 0.7 else changed[at:]
        elif kind == 3:
            del changed[at : at + span]
        elif kind == 4:
            changed[at:at] = changed[at : at + span] * source.choice([1, 3])
        elif kind == 5:
            changed[at:at] = source.randbytes(span)
        elif kind == 6:
            changed[at : at + span] = bytes(len(changed[at : at + span]))
        else:
            other = source.randrange(size) if size else 0
            changed[at : at + span] = changed[other : other + span]
    return bytes(changed)


def damage_text(data: bytes, source: random.Random) -> bytes:
    """Put hostile words between or in place of the words of a text; sometimes damage its bytes."""
    if source.random() < 0.25:
        return damage_bytes(data, source)
    text = data.decode("utf-8", "replace")
    for _ in range(source.choice([1, 1, 2, 5])):
        at = source.randrange(len(text) + 1)
        text = text[:at] + source.choice(TOKENS) + text[at + source.choice([0, 0, 1, 5, 40]) :]
    return text.encode("utf-8", "surrogatepass")


def damage_tree(tree: Any, source: random.Random) -> Any:
    """Replace, remove or add values anywhere in what JSON can hold. The tree itself is changed."""
    for _ in range(source.choice([1, 1, 2, 4])):
        nodes: list[Any] = []

        def visit(node: Any, nodes: list[Any] = nodes) -> None:
            if isinstance(node, dict | list) and node:
                nodes.append(node)
                for child in node.values() if isinstance(node, dict) else node:
                    visit(child)

        visit(tree)
        if not nodes:
            return source.choice(VALUES)
        node = source.choice(nodes)
        key = source.choice(list(node) if isinstance(node, dict) else list(range(len(node))))
        kind = source.randrange(4)
        if kind == 0:
            del node[key]
        elif kind == 1 and isinstance(node, dict):
            node[str(source.choice(VALUES))] = node[key]
        elif kind == 2:
            node[key] = json.loads(json.dumps(source.choice(nodes)))
        else:
            node[key] = json.loads(json.dumps(source.choice(VALUES)))
    return tree


def damage_json(data: bytes, source: random.Random) -> bytes:
    """Damage a JSON text: mostly its values, sometimes its letters."""
    if source.random() < 0.3:
        return damage_text(data, source)
    return json.dumps(damage_tree(json.loads(data), source)).encode()


def forge_zip(data: bytes, source: random.Random) -> bytes:
    """Damage one member of a zip file, such as an array of an .npz file, and pack it with the right checksum."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        names = old.namelist()
        victim = source.choice(names)
        for name in names:
            content = old.read(name)
            new.writestr(name, damage_text(content, source) if name == victim else content)
    return packed.getvalue()


def forge_png(data: bytes, source: random.Random) -> bytes:
    """Damage one chunk of a PNG file, and give it the right checksum and length; image data are packed again."""
    chunks, at = [], 8
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        chunks.append([data[at + 4 : at + 8], data[at + 8 : at + 8 + length]])
        at += 12 + length
    chunk = source.choice(chunks)
    if chunk[0] == b"IDAT":
        chunk[1] = zlib.compress(damage_bytes(zlib.decompress(chunk[1]), source))
    else:
        chunk[1] = damage_bytes(chunk[1], source)
    if source.random() < 0.2:
        chunk[0] = source.choice([b"IHDR", b"PLTE", b"tRNS", b"iCCP", b"zTXt", b"acTL", b"IEND", b"eXIf"])
    return data[:8] + b"".join(
        len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")
        for kind, content in chunks
    )


def forge_tensors(folder: Path) -> Mutate:
    """Damage the header, the names or the shapes of a file of tensors, and write it with the right checksums.

    Args:
        folder: where the file is written meanwhile.
    """

    def mutate(data: bytes, source: random.Random) -> bytes:
        path = folder / "forged"
        path.write_bytes(data)
        length = int.from_bytes(data[:8], "little")
        header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["leanbayes"])
        tensors = load_file(path)
        kind = source.randrange(4)
        if kind == 0 and tensors:
            name = source.choice(sorted(tensors))
            tensor = tensors.pop(name)
            change = source.randrange(5)
            if change == 0:
                tensors[source.choice(["", "x", name + ".x"])] = tensor
            elif change == 1:
                tensors[name] = tensor.flatten()[: source.choice([0, 1, 3])].clone()
            elif change == 2 and tensor.is_floating_point():
                tensors[name] = (tensor * source.choice([float("nan"), float("inf"), 1e30, -1])).contiguous()
            elif change == 3:
                tensors[name] = tensor.to(source.choice(DTYPES))
            elif not tensor.is_floating_point():
                tensors[name] = tensor * source.choice([-1, 1000, 2**30])
        else:
            kept = {name: header[name] for name in ("kind", "format")}
            damaged = damage_tree(header, source)
            header = damaged | kept if isinstance(damaged, dict) else {**kept, "root": damaged}
        write_tensors(path, tensors, header)
        return path.read_bytes()

    return mutate
