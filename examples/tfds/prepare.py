"""Writes the data set once, as TFRecord files, into a folder that all hosts share."""

import sys

import digits

digits.Digits(data_dir=sys.argv[1]).download_and_prepare()
