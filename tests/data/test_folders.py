"""Folders of images: listing and error messages."""

import os

import pytest

from idmatters_tf.data import _folders, imagenet
from idmatters_tf.data.images import DataError
from tests.support.images import make_tree


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path / "data")


def test_a_tree(tree):
    digest = imagenet.load(tree).digest()
    (tree / "train" / "n01" / "notes.txt").write_text("not an image")
    (tree / "train" / "n00" / "._0_0.JPEG").write_bytes(b"resource fork of macOS")
    (tree / "train" / ".cache").mkdir()
    (tree / "val" / "n02" / "deeper").mkdir()
    data = imagenet.load(tree)
    assert (len(data.train), len(data.test), data.classes) == (12, 12, 3)
    assert data.ignored == ("n01/notes.txt", "n02/deeper")
    assert data.class_names == ("n00", "n01", "n02")
    assert data.image_shape == (224, 224, 3)
    assert data.train.names[4:6] == ["n01/1_0.JPEG", "n01/1_1.JPEG"]
    assert data.train.labels == [0] * 4 + [1] * 4 + [2] * 4
    assert data.train.describe(4) == f"{tree}/train/n01/1_0.JPEG"
    assert data.digest() == digest
    (tree / "val" / "n02" / "2_3.JPEG").unlink()
    assert imagenet.load(tree).digest() != digest


@pytest.mark.parametrize("ending", [".jpg", ".jpe", ".jfif", ".JFIF", ".WebP", ".avif", ".heic", ".ppm"])
def test_formats(tree, ending):
    (tree / "val" / "n02" / "2_3.JPEG").rename(tree / "val" / "n02" / f"2_3{ending}")
    if ending.lower().startswith(".j"):
        assert len(imagenet.load(tree).test) == 12
        return
    message = rf"val/n02 contains images that are not JPEG or PNG files .1, such as 2_3{ending}"
    with pytest.raises(DataError, match=message):
        imagenet.load(tree)


def test_other_layouts_are_rejected(tree):
    (tree / "val" / "n02" / "2_3.JPEG").rename(tree / "val" / "2_3.JPEG")
    with pytest.raises(DataError, match="val contains images outside of class folders. Sort them into .*/val/CLASS/"):
        imagenet.load(tree)
    # The layout of Tiny ImageNet.
    (tree / "train" / "n01" / "images").mkdir()
    for number in range(4):
        (tree / "train" / "n01" / f"1_{number}.JPEG").rename(tree / "train" / "n01" / "images" / f"1_{number}.JPEG")
    with pytest.raises(
        DataError, match=r"train/n01 contains no images .* itself, but its folder images/ does. Move the"
    ):
        imagenet.load(tree)


def test_missing_and_empty_folders_raise(tree, tmp_path):
    with pytest.raises(DataError, match=f"no images were found in {tmp_path}: neither a tree train/CLASS"):
        imagenet.load(tmp_path)
    with pytest.raises(DataError, match="none of the 12 test images can be decoded"):
        imagenet.load(tree).without([], range(12))
    (tree / "val" / "extra").mkdir()
    with pytest.raises(DataError, match=r"class folder .*/val/extra contains no images .*Add images, or remove the"):
        imagenet.load(tree)
    (tree / "val" / "extra").rmdir()
    (tree / "val" / "n02").rename(tree / "val" / "n99")
    with pytest.raises(DataError, match=r"the same class folders. 2 are in only one of .*train and .*val: n02, n99"):
        imagenet.load(tree)
    # Names that look alike are printed with quotes and escapes.
    (tree / "val" / "n99").rename(tree / "val" / "n02 ")
    with pytest.raises(DataError, match=r"/val: 'n02', 'n02 '$"):
        imagenet.load(tree)
    (tree / "val" / "n02 ").rename(tree / "val" / "n99")
    with pytest.raises(DataError, match="cannot be read: No such file"):
        _folders.list_classes(tree / "nowhere")
    with pytest.raises(DataError, match="no images were found in .*/nowhere, which does not exist: neither"):
        imagenet.load(tree / "nowhere")
    (tmp_path / "tars").mkdir()
    (tmp_path / "tars" / "ILSVRC2012_img_val.tar").touch()
    with pytest.raises(DataError, match="Unpack the tar files as described in docs"):
        imagenet.load(tmp_path / "tars")
    (tree / "train" / "n00").rename(tree / "train" / os.fsdecode(b"caf\xe9"))
    with pytest.raises(DataError, match=r"the name of class folder .*/train/caf\\udce9 is not UTF-8. Rename the"):
        imagenet.load(tree)
    (tree / "val").rename(tmp_path / os.fsdecode(b"\xe9"))
    assert imagenet.load(tmp_path / os.fsdecode(b"\xe9"), train_only=True).name == r"\udce9"


def test_first_and_held_out_images(tree):
    with pytest.raises(DataError, match="no validation images: .*/train/val is not a folder. Add it") as raised:
        imagenet.load(tree / "train")
    assert raised.value.arguments == ("held_out",)
    data = imagenet.load(tree / "train", train_only=True)
    first = data.first(6, 4)
    assert (len(first.train), len(first.test)) == (6, 4)
    assert len(set(first.train.labels)) > 1
    assert set(first.train.names) < set(data.first(7).train.names)
    held = data.hold_out(5)
    assert set(held.train.names) == set(data.first(7).train.names)
    assert sorted(held.train.names + held.test.names) == sorted(data.train.names)
    with pytest.raises(DataError, match="less than the 12 training images"):
        data.hold_out(12)
    # Images remain held out when others are renamed.
    (tree / "train" / held.train.names[0]).rename(tree / "train" / "n00" / "new.png")
    assert set(held.test.names) <= set(imagenet.load(tree / "train", train_only=True).hold_out(6).test.names)
