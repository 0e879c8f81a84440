"""The version of this package, which results name."""

VERSION = "0.1.0"
