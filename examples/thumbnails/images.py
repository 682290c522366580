"""What runs in the workers: an image comes in, and its thumbnail goes out.

The decoders are C code, and the images come from strangers.  What one of them can do
here is to kill its worker, or to keep it busy until the pool kills it.
"""

import copy  # noqa: F401 - Pillow imports it when it needs it, and the sandbox has no files
import io
import warnings

from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("GIF", "JPEG", "PNG", "WEBP")  # no stranger needs Pillow's rarer decoders

# A few bytes may claim to be an image of any size.  Pillow looks at the claim before it
# decodes anything, but only warns of images up to twice as large as this.
Image.MAX_IMAGE_PIXELS = 50_000_000
warnings.simplefilter("error", Image.DecompressionBombWarning)

# Pillow imports its decoders when it meets the first image.  The pool preloads this
# module, so they are there before any worker is.
Image.init()


class BadImageError(ValueError):
    """The upload is no image, or none that can be read."""


def make_thumbnail(upload: bytes | bytearray, size: int) -> bytes:
    """Return *upload* as a WebP image, *size* pixels wide or high at the most.

    Raises:
        BadImageError: If it cannot be read.
    """
    try:
        with Image.open(io.BytesIO(upload), formats=FORMATS) as image:
            # A palette cannot be scaled, it would only lose pixels.
            picture = image.convert("RGBA") if image.mode == "P" else image
            picture.thumbnail((size, size))
            thumbnail = io.BytesIO()
            ImageOps.exif_transpose(picture).save(thumbnail, "WEBP")
    except UnidentifiedImageError:
        raise BadImageError("this is no GIF, JPEG, PNG or WebP image") from None
    except Exception as error:  # decoders raise whatever they like
        raise BadImageError(f"this image cannot be read: {error}") from error
    return thumbnail.getvalue()
