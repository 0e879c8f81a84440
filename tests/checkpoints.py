"""Demo checkpoints for tests that need more than one."""

from pathlib import Path

from h3serve.weights.demo.demo_random import write_demo_checkpoint


def write_old_and_new(base: Path) -> tuple[Path, Path]:
    """Two in the folders `old` and `new` below `base`, of the same sizes and with other weights."""
    for name, seed in (("old", 0), ("new", 7)):
        write_demo_checkpoint(base / name, seed=seed)
    return base / "old", base / "new"
