"""The rooms of docs/layout.md: who may import whom, walked over every file's syntax tree."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "h3serve"

# folder -> h3serve folders it may import (its own is always allowed)
MAY_IMPORT = {
    "core": set(),
    "media": {"core"},
    "models": {"core"},
    "weights": {"core", "models"},
    "runtime": {"core", "models", "weights"},
    "pipeline": {"core", "media", "models", "weights", "runtime"},
    "service": {"core", "media"},
    "guard": {"core", "media", "pipeline"},
    "cli": {"core", "media", "models", "weights", "runtime", "pipeline", "service", "guard"},
}
EXTRA = {"service/worker.py": {"pipeline"}}
NO_TORCH = {"core", "media", "service"}
TORCH_ALLOWED = {"service/worker.py"}
HEAVY = {"torch", "transformers", "diffusers"}
NEVER_ANYWHERE = {"diffusers"}
# Only runtime/ speaks torch.distributed.
DISTRIBUTED_ROOM = "runtime"


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imported(path: Path) -> list[str]:
    """Dotted names of every import statement: type-only and function-local ones included."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:  # relative: make it absolute
                parts = ["h3serve", *path.relative_to(PACKAGE).parts[: -node.level]]
                base = ".".join([*parts, base] if base else parts)
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return names


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports(path: Path) -> None:
    relative = path.relative_to(PACKAGE)
    names = imported(path)
    tops = {name.split(".")[0] for name in names}
    assert not tops & NEVER_ANYWHERE
    if len(relative.parts) == 1:
        return  # h3serve/__init__.py re-exports the public names
    assert len(relative.parts) == 2, "one level of folders"
    room = relative.parts[0]
    allowed = MAY_IMPORT[room] | EXTRA.get(relative.as_posix(), set()) | {room}
    used = {n.split(".")[1] for n in names if n.startswith("h3serve.") and n.count(".") >= 1}
    used &= set(MAY_IMPORT)
    assert used <= allowed, f"{relative} imports {used - allowed}"
    if room in NO_TORCH and relative.as_posix() not in TORCH_ALLOWED:
        assert not tops & HEAVY, f"{relative} imports {tops & HEAVY}"
    if room != DISTRIBUTED_ROOM:
        assert not any(n.startswith("torch.distributed") for n in names)


def test_every_folder_is_a_room() -> None:
    folders = {p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert folders == set(MAY_IMPORT)


def test_no_import_cycles() -> None:
    """Between files of the package, whatever kind of import it is."""
    known = {".".join(("h3serve", *f.relative_to(PACKAGE).with_suffix("").parts)): f for f in files()}
    known = {name.removesuffix(".__init__"): f for name, f in known.items()}
    graph = {name: {n for n in imported(f) if n in known and n != name} for name, f in known.items()}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for other in sorted(graph[name]):
                visit(other, (*trail, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


def test_file_length() -> None:
    long = {str(f.relative_to(PACKAGE)): n for f in files() if (n := len(f.read_text().splitlines())) > 350}
    assert not long
