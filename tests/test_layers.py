"""The rooms of docs/architecture.md: who may import whom, walked over every file's syntax tree."""

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "h3serve"

# folder -> h3serve folders it may import (its own is always allowed)
MAY_IMPORT = {
    "core": set(),
    "system": set(),
    "media": {"core", "system"},
    "prompts": {"core", "media"},
    "models": {"core"},
    "weights": {"core", "system", "models"},
    "runtime": {"core", "system", "models", "weights"},
    "pipeline": {"core", "system", "media", "models", "weights", "runtime"},
    "client": {"core"},
    "service": {"core", "system", "media", "prompts"},
    "guard": {"core", "media", "pipeline"},
    "cli": {
        "core",
        "system",
        "media",
        "prompts",
        "models",
        "weights",
        "runtime",
        "pipeline",
        "client",
        "service",
        "guard",
    },
}
# Inside a folder: its sub-rooms, and the files beside them, each of which imports only from those before it.
ORDER = {
    "media": ("sources", "read", "write"),
    "models": (
        "key_map",
        "module_tensors",
        "kernels",
        "transformer",
        "text_encoder",
        "video_vae",
        "audio_vae",
        "quality",
    ),
    "weights": ("files", "formats", "adapters", "demo", "locate"),
    "runtime": (
        "machine",
        "memory_meter",
        "checkpoint_identity",
        "parallel",
        "offload",
        "adaln",
        "adapters",
        "encoding_cache",
        "loading",
        "weight_updates",
        "doctor_checks",
    ),
    "service": ("service_settings", "json_logs", "jobs", "prometheus_metrics", "workers", "http"),
}
EXTRA = {"service/workers/worker.py": {"pipeline"}}
NO_TORCH = {"core", "system", "media", "prompts", "client", "service"}
TORCH_ALLOWED = {"service/workers/worker.py"}
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
                parts = [*path.relative_to(ROOT).parts[: -node.level]]
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
    assert len(relative.parts) <= 3, "two levels of folders"
    room = relative.parts[0]
    allowed = MAY_IMPORT[room] | EXTRA.get(relative.as_posix(), set()) | {room}
    used = {n.split(".")[1] for n in names if n.startswith("h3serve.") and n.count(".") >= 1}
    used &= set(MAY_IMPORT)
    assert used <= allowed, f"{relative} imports {used - allowed}"
    if room in NO_TORCH and relative.as_posix() not in TORCH_ALLOWED:
        assert not tops & HEAVY, f"{relative} imports {tops & HEAVY}"
    if room != DISTRIBUTED_ROOM:
        assert not any(n.startswith("torch.distributed") for n in names)


@pytest.mark.parametrize("room", ORDER)
def test_sub_rooms_import_one_way(room: str) -> None:
    order = ORDER[room]
    for path in (PACKAGE / room).rglob("*.py"):
        own = path.relative_to(PACKAGE / room).parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        assert own in order, f"{path.relative_to(PACKAGE)} has no place in the order of {room}/"
        used = {n.split(".")[2] for n in imported(path) if n.startswith(f"h3serve.{room}.")}
        later = {name for name in used if name in order and order.index(name) > order.index(own)}
        assert not later, f"{path.relative_to(PACKAGE)} imports {later}, which come after {own}"


def test_every_folder_is_a_room() -> None:
    folders = {p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert folders == set(MAY_IMPORT)


def test_no_import_cycles() -> None:
    """Between files of the package, the benchmarks and the demo's training, whatever kind of import it is."""
    sources = [*files(), *(ROOT / "bench").rglob("*.py"), *(ROOT / "demo").rglob("*.py")]
    known = {".".join(f.relative_to(ROOT).with_suffix("").parts): f for f in sources}
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


def test_file_names_are_unique() -> None:
    """So that an editor's quick-open finds the right one; a command's file is named as the command is."""
    names = Counter(f.name for f in files() if f.name != "__init__.py" and f.parent.name != "cli")
    assert [name for name, count in names.items() if count > 1] == []


# Classes of one name in two files, each a network's own block of that name as its paper or checkpoint calls it.
SAME_CLASS_NAME = {"Block", "Downsample"}


def test_class_names_are_unique() -> None:
    """No two classes of the same name for different things; private ones are their file's own."""
    places: dict[str, list[str]] = {}
    for file in files():
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(file.relative_to(PACKAGE).as_posix())
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert twice.keys() == SAME_CLASS_NAME, twice
    assert all(place.startswith("models/") for found in twice.values() for place in found)
