import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from leanbayes.errors import FileError, InputError
from leanbayes.lab.data import images, read
from leanbayes.lab.data.images import MOST_PIXELS, common_shape, image_size, read_image
from tests.lab.data.makers import class_tree, picture

RAMP = np.arange(24, dtype=np.uint8).reshape(4, 6) * 10


def test_grey_and_colour_bytes_are_as_in_the_file(tmp_path: Path) -> None:
    Image.fromarray(RAMP).save(tmp_path / "g.png")
    assert torch.equal(read_image(tmp_path / "g.png", 1), torch.from_numpy(RAMP)[None])
    assert torch.equal(read_image(tmp_path / "g.png", 3), torch.from_numpy(RAMP).expand(3, -1, -1))
    colour = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    Image.fromarray(colour).save(tmp_path / "c.png")
    assert torch.equal(read_image(tmp_path / "c.png", 3), torch.from_numpy(colour).permute(2, 0, 1))
    luminance = colour @ np.array([0.299, 0.587, 0.114])
    assert np.abs(np.asarray(read_image(tmp_path / "c.png", 1)[0]) - luminance).max() <= 1


def test_16_bits_keep_their_digits(tmp_path: Path) -> None:
    deep = np.linspace(0, 65535, 24).astype(np.uint16).reshape(4, 6)
    for name in ("d.png", "d.tif"):
        Image.fromarray(deep).save(tmp_path / name)
        assert common_shape([tmp_path / name], None) == (1, (4, 6))
        x = read_image(tmp_path / name, 1)
        np.testing.assert_allclose(np.asarray(x[0]), deep / 65535, atol=1e-7)
        assert read_image(tmp_path / name, 3).shape == (3, 4, 6)
        assert read_image(tmp_path / name, 1, (8, 3)).shape == (1, 8, 3)


def test_palettes_become_colours(tmp_path: Path) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((1, 0), 1)
    image.save(tmp_path / "p.png")
    assert common_shape([tmp_path / "p.png"], None) == (3, (1, 2))
    assert read_image(tmp_path / "p.png", 3).tolist() == [[[255, 0]], [[0, 0]], [[0, 255]]]


def test_transparent_pixels_are_black(tmp_path: Path) -> None:
    Image.new("RGBA", (2, 2), (200, 100, 50, 0)).save(tmp_path / "t.png")
    assert read_image(tmp_path / "t.png", 3).sum() == 0
    Image.new("RGBA", (2, 2), (200, 100, 50, 255)).save(tmp_path / "o.png")
    assert read_image(tmp_path / "o.png", 3)[:, 0, 0].tolist() == [200, 100, 50]
    Image.new("LA", (2, 2), (90, 255)).save(tmp_path / "la.png")
    assert common_shape([tmp_path / "la.png"], None) == (1, (2, 2))
    assert read_image(tmp_path / "la.png", 1).unique().tolist() == [90]


def test_one_bit_is_black_and_white(tmp_path: Path) -> None:
    Image.fromarray(RAMP > 100).save(tmp_path / "b.png")
    assert read_image(tmp_path / "b.png", 1).unique().tolist() == [0, 255]


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "gif", "tif", "webp", "ppm"])
def test_every_common_format_is_read(tmp_path: Path, suffix: str) -> None:
    assert read_image(picture(tmp_path / f"a.{suffix}"), 3).shape == (3, 10, 12)


def test_resizing_averages(tmp_path: Path) -> None:
    checks = (np.indices((16, 16)).sum(0) % 2 * 255).astype(np.uint8)
    Image.fromarray(checks).save(tmp_path / "c.png")
    small = read_image(tmp_path / "c.png", 1, (4, 4)).float()
    assert (small - 127.5).abs().max() < 10


def test_floating_point_numbers_stay_as_they_are(tmp_path: Path) -> None:
    numbers = RAMP.astype(np.float32) * 3.7 - 1000
    Image.fromarray(numbers).save(tmp_path / "f.tif")
    assert common_shape([tmp_path / "f.tif"], None) == (1, RAMP.shape)
    assert torch.equal(read_image(tmp_path / "f.tif", 1)[0], torch.from_numpy(numbers))
    numbers[0, 0] = np.nan
    Image.fromarray(numbers).save(tmp_path / "n.tif")
    with pytest.raises(InputError, match=r"n.tif has NaN or infinite values"):
        read_image(tmp_path / "n.tif", 1)


def test_stacks_and_large_numbers_are_refused(tmp_path: Path) -> None:
    Image.fromarray(RAMP).save(tmp_path / "s.tif", save_all=True, append_images=[Image.fromarray(RAMP)])
    with pytest.raises(InputError, match=r"s.tif holds 2 pictures"):
        read_image(tmp_path / "s.tif", 1)
    Image.fromarray(RAMP.astype(np.int32) + 70000).save(tmp_path / "i.tif")
    with pytest.raises(InputError, match="outside 0 to 65535"):
        read_image(tmp_path / "i.tif", 1)


def test_a_small_file_that_claims_too_many_pixels_is_refused(tmp_path: Path) -> None:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    side = int((MOST_PIXELS + 10**6) ** 0.5)
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    path = tmp_path / "huge.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"0")))
    for reading in (lambda: read_image(path, 1), lambda: common_shape([path], None), lambda: image_size(path)):
        with pytest.raises(
            InputError, match=rf"huge.png has {side}x{side} pixels, more than 80000000; make it smaller"
        ):
            reading()


def test_a_program_in_the_guise_of_an_image_is_not_run(tmp_path: Path) -> None:
    """Pillow would give an EPS file to Ghostscript, whatever the suffix of the file."""
    path = tmp_path / "page.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n")
    for reading in (lambda: read_image(path, 1), lambda: common_shape([path], None)):
        with pytest.raises(FileError, match=r"cannot read image .*page.png"):
            reading()


def test_sets_too_large_for_memory_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = class_tree(tmp_path, (10, 10))
    kept = read(top)
    monkeypatch.setattr(images, "_MEMORY", 2000)
    lazy = read(top)
    assert lazy.train.inputs.cache[0] is None
    assert kept.train.inputs.cache[0] is not None
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(kept.train, lazy.train, strict=True))
