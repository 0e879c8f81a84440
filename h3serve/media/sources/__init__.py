"""Where media come from: files, uploads, data URIs, tar members, the web."""
