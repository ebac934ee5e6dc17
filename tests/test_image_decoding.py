"""ImageDecoder: Pillow decodes, on pfvm:cpu and in a host segment of xla:cpu."""

from __future__ import annotations

import importlib.util
import io

import numpy as np
import onnx
import onnx_ir as ir
import pytest

pytest.importorskip("PIL")

from pfvm.errors import InputError, MissingExtraError
from pfvm.runtime.api import load
from pfvm.runtime.image_decoding import decode
from pfvm.tools.segments import print_segments
from PIL import Image

PIXELS = np.random.default_rng(0).integers(0, 255, (6, 5, 3)).astype(np.uint8)
HEADER = '<ir_version: 9, opset_import: ["" : 20]>\n'
# Two images in the middle of a graph, one of which decides what the other is decoded from.
TEXT = """
g (uint8[N] a, uint8[M] b, bool swap, float[1] scale) => (float[H, W, C] y, uint8[I, J, 1] gray)
  <float[1] scale = {2}, uint8[1] none = {0}> {
  first = If(swap) <then_branch = t () => (uint8[K] p) { p = Identity(b) },
                    else_branch = e () => (uint8[L] q) { q = Identity(a) }>
  image = ImageDecoder(first)
  bgr = ImageDecoder<pixel_format = "BGR">(b)
  f = Cast<to = 1>(image) s = Mul(f, scale) g = Cast<to = 1>(bgr) y = Add(s, g)
  gray = ImageDecoder<pixel_format = "Grayscale">(a)
}"""
devices = pytest.mark.parametrize("device", ["pfvm:cpu", "xla:cpu"])


def model(text: str = TEXT) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEADER + text)


def encoded(pixels: np.ndarray = PIXELS, form: str = "PNG", mode: str | None = None) -> np.ndarray:
    image, file = Image.fromarray(pixels), io.BytesIO()
    (image.convert(mode) if mode else image).save(file, form)
    return np.frombuffer(file.getvalue(), np.uint8)


@devices
def test_images_between_other_nodes(device: str) -> None:
    if device.startswith("xla"):
        pytest.importorskip("jax")
    run = load(model(), device)
    other = 255 - PIXELS
    feeds = {"a": encoded(), "b": encoded(other), "swap": np.array(False)}
    plain, flipped = PIXELS.astype(np.float32), other[:, :, ::-1].astype(np.float32)
    results = run(feeds)
    np.testing.assert_array_equal(results["y"], 2 * plain + flipped)
    np.testing.assert_array_equal(results["gray"][..., 0], np.asarray(Image.fromarray(PIXELS).convert("L")))
    swapped = run({**feeds, "swap": np.array(True), "scale": np.array([3], np.float32)})
    np.testing.assert_array_equal(swapped["y"], 3 * other.astype(np.float32) + flipped)
    with pytest.raises(InputError, match="missing input 'swap'"):
        run({"a": encoded(), "b": encoded()})


@devices
def test_explain_says_what_decodes(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    if device.startswith("xla"):
        pytest.importorskip("jax")
    print_segments(ir.from_proto(model("g (uint8[9] a) => (uint8[H, W, C] y) { y = ImageDecoder(a) }")), device)
    assert "ImageDecoder (→ 'y'): image decoding" in capsys.readouterr().out


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "I;16"])
def test_other_kinds_of_images_have_the_channels_that_were_asked_for(mode: str) -> None:
    pixels = PIXELS[..., 0].astype(np.uint16) if mode == "I;16" else PIXELS
    data = encoded(pixels, mode=None if mode == "I;16" else mode)
    assert decode(data).shape == decode(data, "BGR").shape == (6, 5, 3)
    assert decode(data, "Grayscale").shape == (6, 5, 1)


@pytest.mark.parametrize("form", ["BMP", "JPEG", "JPEG2000", "TIFF", "PNG", "WEBP", "PPM"])
def test_the_formats_of_the_standard(form: str) -> None:
    assert decode(encoded(form=form)).shape == PIXELS.shape


@pytest.mark.parametrize("data", [b"", b"no image", encoded().tobytes()[:40], encoded(form="GIF").tobytes()])
def test_what_is_no_image_gives_an_empty_array(data: bytes) -> None:
    for pixel_format, channels in (("RGB", 3), ("Grayscale", 1)):
        result = decode(np.frombuffer(data, np.uint8), pixel_format)
        assert result.dtype == np.uint8 and result.shape == (0, 0, channels)


def test_an_image_of_absurd_size_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    run = load(model("g (uint8[N] a) => (uint8[H, W, C] y) { y = ImageDecoder(a) }"))
    with pytest.raises(InputError, match="ImageDecoder cannot decode 'a': Image size"):
        run({"a": encoded()})


@devices
def test_a_missing_pillow_names_the_pip_command(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device.startswith("xla"):
        pytest.importorskip("jax")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "PIL" else find(name, *rest))
    with pytest.raises(MissingExtraError, match=r"operator ImageDecoder needs the 'image' extra: pip install"):
        load(model(), device)({"a": encoded(), "b": encoded(), "swap": np.array(False)})
