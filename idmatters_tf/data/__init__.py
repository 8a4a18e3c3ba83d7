"""Data sets, and batches that are pure functions of (seed, step).

images     ImageData: labeled images in memory
official   CIFAR-10, CIFAR-100 and MNIST, from their official files or through TensorFlow Datasets
shapes     a built-in, generated data set that needs no files
protocols  interfaces between data sets and training code
batches    batches of images in memory: order, augmentation and shares of replicas, by NumPy
imagenet   ImageNet and other folders of images, read during training
streams    batches of images that are read during training
"""
