"""Faults of residency, caches and ranks."""

FAULTS = [
    ("encodings.py", 'digest.update(f"{array.dtype}{array.shape}".encode())', "pass", "shape left out of the name"),
    ("encodings.py", "digest.update(repr(content).encode())", 'digest.update(b"")', "texts left out of the name"),
    ("encodings.py", "popitem(last=False)", "popitem(last=True)", "newest dropped first"),
    ("encodings.py", "self._held.move_to_end(name)", "pass", "use is not noted"),
    ("encodings.py", 'get("checksum") != _checksum(tensors)', 'get("checksum") is None', "damage unseen"),
    ("encodings.py", "if size > self._limit:", "if size < 0:", "what is too large empties the cache"),
    ("encodings.py", "key=lambda path: path.stat().st_mtime", "key=lambda path: path.name", "dropped by name on disk"),
    (
        "encodings.py",
        "if self._agree(held is not None) and held is not None",
        "if held is not None",
        "ranks do not agree",
    ),
    ("keys.py", "for key in sorted(set(keys))", "for key in keys", "digest by order"),
    ("keys.py", "return len(key) // 4", "return len(key) // 8", "half the timesteps"),
    (
        "slab.py",
        "if key in self._held:\n            self._held.move_to_end(key)",
        "if False:\n            pass",
        "use is not noted",
    ),
]
