"""Parameters of the augmentation of images in memory, without TensorFlow."""

import dataclasses

from idmatters_tf._arguments import check_choice


@dataclasses.dataclass(frozen=True)
class CropAndFlip:
    """Padding on each side, a random crop to the original size, random flips left to right, and cutout.

    The base code of Hardt & Ma (tensorflow/models `resnet`, 2016) pads by 2 pixels on each side, He et al. (2015) by 4.
    Springenberg et al. (2014) shift images by up to 5 pixels.

    Attributes:
        padding: number of pixels on each side.
        padding_mode: "zero" for black pixels, or "reflect" for the image mirrored at its border.
        flips: "random" flips each image with probability 1/2 at each use. "alternate" flips a random half of the images
            in every other epoch and the other half in between, so that two epochs contain each image and its mirror
            image once (Jordan, *94% on CIFAR-10 in 3.29 seconds*, arXiv 2404.00498, section 3.4).
        cutout: side in pixels of a square that is set to 0 after standardization. Its center is anywhere in the image
            and it is clipped at the border (DeVries & Taylor, arXiv 1708.04552). 0 for none.
    """

    padding: int
    padding_mode: str = "zero"
    flips: str = "random"
    cutout: int = 0

    def __post_init__(self) -> None:
        check_choice("padding_mode", self.padding_mode, ("zero", "reflect"))
        check_choice("flips", self.flips, ("random", "alternate"))


AUGMENTATIONS: dict[str, CropAndFlip | None] = {
    "paper": CropAndFlip(2),
    "standard": CropAndFlip(4),
    "all-cnn": CropAndFlip(5),
    "alternating": CropAndFlip(4, "reflect", "alternate"),
    "none": None,
}
